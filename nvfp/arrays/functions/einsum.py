"""`einsum`: sums of products by letters, made of functions on axes, sums and products that have gradients."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import promoted
from nvfp.arrays.functions.matmul import unless_broken
from nvfp.arrays.habits import explained
from nvfp.arrays.quantized import QuantizedArray
from nvfp.arrays.registry import nf, public
from nvfp.dtypes.dense import float32
from nvfp.dtypes.promotion import result_type
from nvfp.errors import ArgumentError, ShapeError, message

Labels = tuple[str, ...]  # one per axis: a letter, or "...i" for the i-th axis from the end under an ellipsis
Term = tuple[Array, Labels]
_TERM = re.compile(r"([A-Za-z]*)(\.\.\.)?([A-Za-z]*)")


@public
@explained
def einsum(subscripts: str, /, *operands: Any) -> Array:
    """Return the sum of products that ``subscripts`` tell: ``einsum("ij,jk->ik", a, b)`` is ``a @ b``.

    Args:
        subscripts: a letter per axis and an ellipsis for further ones, operands between commas; after ``->`` the axes
            of the result. Without ``->`` these are the ellipsis and the letters that occur once, in alphabetic order.
        operands: Arrays. Axes under one letter have one length, or 1; those under ellipses broadcast.

    Returns:
        An Array of ``nf.result_type(*operands)``.

    Raises:
        ArgumentError: subscripts that do not parse, or another number of operands.
        ShapeError: letters that do not fit an operand, or lengths that differ under one letter.
        DeviceError: operands on different devices.

    Numerics:
        From left to right, two operands at a time, each step one batch of matrix products, or one product element
        by element. Floats are summed and kept between steps in float32 (float64, if one of them is), with one
        rounding to the result's dtype. A quantized operand enters the matrix product that reads it first as it is,
        as in `nf.matmul`, where its blocks stay whole; elsewhere it counts with its values.

    Example:
        >>> import nvfp as nf
        >>> x = nf.asarray([[1.0, 2.0], [3.0, 4.0]], device="cpu")
        >>> nf.einsum("ij,kj->ik", x, x).tolist(), nf.einsum("ii", x).tolist()
        ([[5.0, 11.0], [11.0, 25.0]], 5.0)
    """
    inputs, output = _parsed(subscripts, len(operands))
    found, dtype = promoted("einsum", *operands)
    device = next(x.device for x in found if isinstance(x, Array))
    kept = (given if isinstance(given, QuantizedArray) else x for given, x in zip(operands, found, strict=True))
    arrays = [x if isinstance(x, Array) else nf.asarray(x, device=device) for x in kept]
    between = dtype if dtype.kind in "iub" else result_type(dtype, float32)
    if dtype.kind in "iub":
        arrays = [nf.astype(x, dtype, copy=False) for x in arrays]
    terms = [_without_repeats(x, _labels(text, x)) for text, x in zip(inputs, arrays, strict=True)]
    wanted = _wanted(output, inputs, terms)
    lengths = _lengths(subscripts, terms)
    left = terms[0]
    for i, right in enumerate(terms[1:], 1):
        keep = {*wanted, *(label for _, labels in terms[i + 1 :] for label in labels)}
        left = _pair(left, right, keep, lengths, dtype if i == len(terms) - 1 else between)
    x, labels = _summed(left, wanted, dtype)
    x = x if labels == wanted else nf.permute_dims(x, [labels.index(label) for label in wanted])
    return nf.astype(x, dtype, copy=False)


def _parsed(subscripts: Any, count: int) -> tuple[list[str], str | None]:
    """The text of every operand, and of the result if there is one."""
    if not isinstance(subscripts, str):
        do = "write the subscripts as text"
        raise ArgumentError(message("einsum", "subscripts like 'ij,jk->ik'", type(subscripts).__name__, do))
    before, arrow, output = subscripts.replace(" ", "").partition("->")
    inputs = before.split(",")
    twice = [letter for letter, n in Counter(output.replace(".", "")).items() if n > 1]
    new = set(output) - {*before, "."}
    if twice or new or not all(_TERM.fullmatch(text) for text in (*inputs, output)):
        do = "give letters and at most one '...' per operand; result letters once, out of the operands'"
        raise ArgumentError(message("einsum", "subscripts like 'ij,jk->ik'", repr(subscripts), do))
    if len(inputs) != count:
        raise ArgumentError(
            message("einsum", f"{len(inputs)} operands for {subscripts!r}", count, "pass one per comma")
        )
    return inputs, output if arrow else None


def _labels(text: str, x: Array) -> Labels:
    before, dots, after = _TERM.fullmatch(text).groups()  # type: ignore[union-attr]  # `_parsed` has matched it
    rest = x.ndim - len(before) - len(after)
    if rest < 0 or (rest and not dots):
        do = "give one letter per axis, or '...'"
        raise ShapeError(message("einsum", f"an operand that {text!r} fits", f"shape {x.shape}", do))
    return (*before, *(f"...{i}" for i in reversed(range(rest))), *after)


def _without_repeats(x: Array, labels: Labels) -> Term:
    """The diagonal over axes of one label: of the two axes flattened, every (n + 1)-th element."""
    if len({*labels}) < len(labels):
        x = _dense(x)
    for label, count in Counter(labels).items():
        for _ in range(count - 1):
            first = labels.index(label)
            second = labels.index(label, first + 1)
            n = x.shape[first]
            if x.shape[second] != n:
                do = "use two letters"
                raise ShapeError(message("einsum", f"one length under {label!r}", f"{n} and {x.shape[second]}", do))
            rest = [i for i in range(x.ndim) if i not in (first, second)]
            square = nf.permute_dims(x, (*rest, first, second))
            x = nf.reshape(square, (*square.shape[:-2], n * n))[..., :: n + 1]
            labels = (*(labels[i] for i in rest), label)
    return x, labels


def _wanted(output: str | None, inputs: list[str], terms: list[Term]) -> Labels:
    """The labels of the result."""
    depth = max((label for _, labels in terms for label in labels if "." in label), key=_depth, default="")
    dots = tuple(f"...{i}" for i in reversed(range(_depth(depth) + 1))) if depth else ()
    if output is None:
        counted = Counter("".join(inputs).replace(".", ""))
        return (*dots, *sorted(letter for letter, n in counted.items() if n == 1))
    before, found, after = _TERM.fullmatch(output).groups()  # type: ignore[union-attr]
    if dots and not found:
        raise ArgumentError(message("einsum", "'...' in the result, as in the operands", repr(output), "add it"))
    return (*before, *dots, *after)


def _depth(label: str) -> int:
    return int(label[3:])


def _lengths(subscripts: str, terms: list[Term]) -> dict[str, int]:
    found: dict[str, int] = {}
    for x, labels in terms:
        for label, n in zip(labels, x.shape, strict=True):
            have = found.get(label, 1)
            if n != have and 1 not in (n, have):
                got = f"{[x.shape for x, _ in terms]} under {label!r} in {subscripts!r} (diagonals taken)"
                raise ShapeError(message("einsum", "one length per letter", got, "correct the letters or the shapes"))
            found[label] = have if n == 1 else n
    return found


def _summed(term: Term, keep: Collection[str], dtype: Any) -> Term:
    """Without the labels that nobody else needs."""
    x, labels = term
    gone = tuple(i for i, label in enumerate(labels) if label not in keep)
    if gone:
        x = nf.any(x, axis=gone) if dtype.kind == "b" else nf.sum(x, axis=gone, dtype=dtype)
    return x, tuple(label for label in labels if label in keep)


def _pair(left: Term, right: Term, keep: set[str], lengths: dict[str, int], dtype: Any) -> Term:
    """The product of two operands, summed over the labels of both that are not kept."""
    between = dtype if dtype.kind in "iub" else result_type(dtype, float32)
    a, in_a = _summed(left, {*keep, *right[1]}, between)
    b, in_b = _summed(right, {*keep, *left[1]}, between)
    if not {type(a), type(b)} & {QuantizedArray} and (a.dtype != b.dtype or a.dtype.kind in "iub"):
        a, b = (nf.astype(x, between, copy=False) for x in (a, b))
    both = [label for label in in_a if label in in_b]
    batch, inner = [label for label in both if label in keep], [label for label in both if label not in keep]
    free_a, free_b = [label for label in in_a if label not in both], [label for label in in_b if label not in both]
    labels = (*batch, *free_a, *free_b)
    if not inner:
        a, b = _dense(a), _dense(b)
        if a.dtype != dtype and dtype == between:
            a, b = nf.astype(a, dtype), nf.astype(b, dtype)
        x = _placed(_ordered(a, in_a, [*batch, *free_a]), len(labels), (*range(len(batch) + len(free_a)),))
        y = _placed(_ordered(b, in_b, [*batch, *free_b]), len(labels), (*range(len(batch)), *range(-len(free_b), 0)))
        return nf.astype(nf.multiply(x, y), dtype, copy=False), labels
    sizes = [[lengths[label] for label in group] for group in (batch, free_a, inner, free_b)]
    shared, m, k, n = (math.prod(s) for s in sizes)
    lead = (shared,) if batch else ()
    order_a, order_b = [*batch, *free_a, *inner], [*batch, *inner, *free_b]
    x = unless_broken(a, lambda x: nf.reshape(_stretched(_ordered(x, in_a, order_a), sizes, (0, 1, 2)), (*lead, m, k)))
    y = unless_broken(b, lambda x: nf.reshape(_stretched(_ordered(x, in_b, order_b), sizes, (0, 2, 3)), (*lead, k, n)))
    return nf.reshape(nf.matmul(x, y, dtype=dtype), (*sizes[0], *sizes[1], *sizes[3])), labels


def _dense(x: Array) -> Array:
    return nf.dequantize(x) if isinstance(x, QuantizedArray) else x


def _ordered(x: Array, labels: Labels, wanted: list[str]) -> Array:
    return nf.permute_dims(x, [labels.index(label) for label in wanted])


def _placed(x: Array, ndim: int, axes: tuple[int, ...]) -> Array:
    """With axes of length 1 besides ``axes``, where its own go."""
    own = {axis % ndim for axis in axes}
    return nf.expand_dims(x, [i for i in range(ndim) if i not in own])


def _stretched(x: Array, sizes: list[list[int]], groups: tuple[int, ...]) -> Array:
    """With lengths of 1 broadcast, as the other operand has them."""
    shape = tuple(n for group in groups for n in sizes[group])
    return x if x.shape == shape else nf.broadcast_to(x, shape)
