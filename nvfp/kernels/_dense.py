"""What contracts of dense kernels share: contiguous arguments, outputs of any strides, checked indices."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from nvfp import config
from nvfp.errors import BlockIndexError, DTypeError, ShapeError, message
from nvfp.kernels._check import FLOAT32

# What the fused kernels take: computed in float32, rounded once. (float64 would need kernels of its own.)
COMPUTED: tuple[np.dtype, ...] = (FLOAT32, np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
INDICES: tuple[np.dtype, ...] = (np.dtype(np.int32), np.dtype(np.int64))


def check_computed(op: str, name: str, x: Any) -> None:
    """Raise unless ``x`` is a float32, bfloat16 or float16 array."""
    if x.dtype not in COMPUTED:
        raise DTypeError(message(op, f"{name} of float32, bfloat16 or float16", x.dtype, "cast it with x.astype first"))


def check_computed_dtype(op: str, dtype: np.dtype) -> None:
    """Raise unless ``dtype`` is float32, bfloat16 or float16."""
    if dtype not in COMPUTED:
        raise DTypeError(message(op, "an output of float32, bfloat16 or float16", dtype, "choose one of these"))


def check_like(op: str, name: str, x: Any, like: Any) -> None:
    """Raise unless ``x`` has the shape and dtype of ``like``."""
    if x.shape != like.shape:
        raise ShapeError(message(op, f"{name} of shape {like.shape}", x.shape, "pass one value for each element"))
    if x.dtype != like.dtype:
        raise DTypeError(message(op, f"{name} of {like.dtype}", x.dtype, f"cast {name} first"))


def contiguous(x: Any) -> Any:
    """Return ``x`` if it is C-contiguous (and aligned), else a contiguous copy made by the strided-copy kernel."""
    if isinstance(x, np.ndarray):
        return np.require(x, requirements=("C", "A"))
    if x.flags.c_contiguous:
        return x
    from nvfp.kernels.cast import cast

    return cast(x, x.dtype)


def plain_out(out: Any | None) -> Any | None:
    """Return ``out`` if a kernel can write it directly, else None (then see `deliver`)."""
    if out is None or not out.flags.c_contiguous or not getattr(out.flags, "aligned", True):
        return None
    return out


def deliver(result: Any, out: Any | None) -> Any:
    """Return ``result``, or ``out`` after copying the result into it where the kernel could not write it."""
    if out is None or result is out:
        return result
    if isinstance(out, np.ndarray):
        out[...] = result
        return out
    from nvfp.kernels.cast import cast

    return cast(result, result.dtype, out=out)


def indices(op: str, name: str, ids: Any) -> Any:
    """Return integer ``ids`` as contiguous int32 or int64."""
    if ids.dtype.kind not in "iu":
        raise DTypeError(message(op, f"integer {name}", ids.dtype, "cast them to int64"))
    if ids.dtype in INDICES:
        return contiguous(ids)
    if isinstance(ids, np.ndarray):
        return np.ascontiguousarray(ids, np.int64)
    from nvfp.kernels.cast import cast

    return cast(ids, np.dtype(np.int64))


def check_range(op: str, name: str, ids: Any, length: int, ignore: int | None = None) -> None:
    """Raise if an index lies outside ``0 .. length-1`` and is not ``ignore``.

    Looks at CPU arrays always, at CUDA arrays only under ``NVFP_DEBUG=1`` (it waits for the GPU).
    """
    if not isinstance(ids, np.ndarray):
        if not config.flag("NVFP_DEBUG"):
            return
        ids = ids.get()
    bad = (ids < 0) | (ids >= length)
    if ignore is not None:
        bad &= ids != ignore
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        rule = f"{name} in 0..{length - 1}" + ("" if ignore is None else f" (or {ignore})")
        raise BlockIndexError(message(op, rule, f"{int(ids[at])} at {at}", "correct the index"))
