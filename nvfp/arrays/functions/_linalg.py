"""What the functions of `nf.linalg` share: matrices in, a library's factors out, results recorded and rounded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import HALVES, array, dense, widened
from nvfp.arrays.functions._library import library
from nvfp.arrays.registry import nf
from nvfp.autograd.tape import Node, Output, Vjp, needs_grad
from nvfp.dtypes.dense import float32
from nvfp.errors import GradientError, LinAlgError, NotBuiltError, ShapeError, message
from nvfp.kernels._dispatch import kind_of
from nvfp.optional import need


def matrix(op: str, x: Any, *, square: bool = False) -> tuple[Array, np.dtype]:
    """Return floating matrices to compute with, and the dtype of the result.

    16-bit floats come as float32 and are rounded once at the end (`back`); integers and bools count as float32.

    Raises:
        ShapeError: fewer than two axes, or matrices that are not square.
    """
    x = array(op, x)
    if x.dtype.kind in "iub":
        x = nf.astype(x, float32)
    if x.ndim < 2 or (square and x.shape[-1] != x.shape[-2]):
        expected = "square matrices [..., N, N]" if square else "matrices [..., M, N]"
        raise ShapeError(message(op, expected, f"shape {x.shape}", "reshape or slice it"))
    (wide,) = widened(x)
    return wide, x.dtype


def back(y: Array, dtype: np.dtype) -> Array:
    """Round to ``dtype`` if that is a 16-bit float."""
    return nf.astype(y, dtype) if dtype in HALVES else y


def factors(op: str, name: str, *inputs: Array, **kwargs: Any) -> Any:
    """Return what the library's ``linalg.name`` gives for raw arrays.

    Raises:
        LinAlgError: a matrix without inverse or factors. On CUDA the call waits for the GPU to know.
        NotBuiltError: the library has no such function.
    """
    raws = [x.raw for x in inputs]
    on_cuda = kind_of(raws[0]) == "cuda"
    function = getattr(import_module(library(raws[0]).__name__ + ".linalg"), name, None)
    if function is None:
        do = "update CuPy, or compute on x.to_device('cpu')"
        raise NotBuiltError(message(op, f"{name} in CuPy", "a version without it", do))
    place = raws[0].device if on_cuda else nullcontext()
    state = need("cupyx", extra="cuda13").errstate(linalg="raise") if on_cuda else np.errstate(all="ignore")
    try:
        with place, state:
            return function(*raws, **kwargs)
    except np.linalg.LinAlgError as error:
        do = "look at the condition of the matrix, or use nf.linalg.pinv or nf.linalg.svd"
        raise LinAlgError(message(op, "a matrix that the method works for", error, do)) from error


def recorded(
    name: str, inputs: Sequence[Any], vjp: Vjp, raws: Sequence[Any], saved: Sequence[Any] = ()
) -> tuple[Array, ...]:
    """Return the results of one operation; its rule gets them first, then ``saved``."""
    made = tuple(wrap(raw) for raw in raws)
    if needs_grad(*inputs):
        values = (*(Output(y, i) for i, y in enumerate(made)), *saved)
        node: Node | None = dense(name, inputs, vjp, values, outputs=len(made))
        for i, y in enumerate(made):
            y._node, y._index = node, i
    return made


def transposed(x: Array) -> Array:
    """The matrices transposed."""
    return nf.matrix_transpose(x)


def _inv_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    y = transposed(saved[0])
    return (nf.negative(y @ g @ y),)


def inverse(op: str, x: Array) -> Array:
    """Return the inverse of wide matrices; errors name ``op``."""
    return recorded("linalg.inv", (x,), _inv_vjp, (factors(op, "inv", x),))[0]


def like_matrix(values: np.ndarray, x: Array) -> Array:
    """A constant in the dtype and on the device of ``x``."""
    return nf.asarray(values, dtype=x.dtype, device=x.device)


def apart(values: Array) -> Array:
    """``1 / (values[j] - values[i])`` as [..., i, j], and 0 where they are equal.

    Vectors of equal values are any basis of their space: what depends on the space alone gets the right gradient.
    """
    distance = nf.expand_dims(values, -2) - nf.expand_dims(values, -1)
    same = nf.equal(distance, 0)
    return nf.where(same, 0.0, 1.0 / nf.where(same, 1.0, distance))


def no_rule(name: str, case: str, do: str) -> GradientError:
    """The error of a case that has no gradient rule."""
    return GradientError(message(name, "a case with a gradient rule", case, do))
