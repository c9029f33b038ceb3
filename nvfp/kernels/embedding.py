"""`embedding` and `embedding_vjp`: rows of a table by index, and the gradient of the table."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from nvfp.errors import ArgumentError, ShapeError, message
from nvfp.kernels._check import check_out
from nvfp.kernels._dense import (
    check_computed,
    check_computed_dtype,
    check_range,
    contiguous,
    deliver,
    indices,
    plain_out,
)  # fmt: skip
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared

_MOST = 2**31 - 1  # the CUDA sort keeps positions and row numbers in 32 bits


@partial(prepared, looks=True)
def embedding(table: Any, ids: Any, *, out: Any | None = None) -> Any:
    """Return ``table[ids]``: one row of the table for each index.

    ``y[..., h] = table[ids[...], h]``

    Args:
        table: raw array [R, H] of float32, bfloat16 or float16; any strides.
        ids: integers [...] in ``0..R-1``; any shape and strides. Negative ones do not count from the end.
        out: array [..., H] of the table's dtype, any strides.

    Returns:
        [..., H], of the table's dtype.

    Raises:
        DTypeError: a table of another dtype, or ids that are no integers.
        ShapeError: a table without two axes, or an ``out`` that does not fit.
        BlockIndexError: (an IndexError) an id out of range, on the CPU. On CUDA such a row is NaN;
            ``NVFP_DEBUG=1`` checks there too.

    Numerics:
        Exact copies. CPU and CUDA give the same bits.

    Source:
        Own.

    Example:
        >>> import numpy as np
        >>> table = np.array([[0.0, 1.0], [2.0, 3.0]], np.float32)
        >>> embedding(table, np.array([1, 1, 0])).tolist()
        [[2.0, 3.0], [2.0, 3.0], [0.0, 1.0]]
    """
    check_computed("embedding", "table", table)
    if table.ndim != 2:
        raise ShapeError(message("embedding", "a table [R, H]", table.shape, "reshape it to two axes"))
    rows, width = table.shape
    shape = (*ids.shape, width)
    check_out("embedding", out, shape, table.dtype)
    flat = indices("embedding", "ids", ids).reshape(-1)
    check_range("embedding", "ids", flat, rows)
    target = plain_out(out)
    y = backend("embedding", table, ids, out).embedding(
        contiguous(table), flat, out=None if target is None else target.reshape(flat.size, width)
    )
    return out if target is not None else deliver(y.reshape(shape), out)


@partial(prepared, looks=True)
def embedding_vjp(dy: Any, ids: Any, rows: int, *, dtype: np.dtype, out: Any | None = None) -> Any:
    """Return the gradient of the table: the rows of ``dy`` summed by index.

    ``dtable[r, h] = sum over ids[i] = r of dy[i, h]``; 0 for rows that no index names.

    Args:
        dy: raw array [..., H] of float32, bfloat16 or float16; any strides.
        ids: the integers [...] given to `embedding`.
        rows: R, the number of rows of the table.
        dtype: float32, bfloat16 or float16, of the result.
        out: array [R, H] of ``dtype``, any strides; overwritten, not added to.

    Returns:
        [R, H] of ``dtype``.

    Raises:
        DTypeError: another dtype, or ids that are no integers.
        ShapeError: ``dy`` and ``ids`` that do not fit, or an ``out`` that does not.
        ArgumentError: ``rows`` negative, or ``rows`` or the number of ids above 2**31 - 1.
        BlockIndexError: an id out of range, on the CPU. On CUDA it contributes nothing
            (``NVFP_DEBUG=1`` checks there too).

    Numerics:
        Summed in float32 and rounded once. The order is fixed, so each device repeats its bits: the CPU adds
        in the order of the ids; CUDA sorts the ids stably, adds pieces of the sorted list, and then the
        pieces of each row in order. The two agree within tolerance.

    Source:
        Own; `numpy.add.at` is the oracle.

    Example:
        >>> import numpy as np
        >>> dy = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)
        >>> embedding_vjp(dy, np.array([1, 1, 3, 1]), 5, dtype=np.dtype(np.float32)).tolist()
        [[0.0, 0.0], [11.0, 14.0], [0.0, 0.0], [5.0, 6.0], [0.0, 0.0]]
    """
    op = "embedding_vjp"
    check_computed(op, "dy", dy)
    check_computed_dtype(op, dtype)
    if dy.ndim == 0 or dy.shape[:-1] != ids.shape:
        raise ShapeError(message(op, "dy [..., H] and ids [...]", f"{dy.shape} and {ids.shape}", "drop or add axes"))
    count, width = math.prod(ids.shape), dy.shape[-1]
    if not 0 <= rows <= _MOST or count > _MOST:
        raise ArgumentError(message(op, f"0 to {_MOST} rows and ids", f"{rows} rows, {count} ids", "split the call"))
    check_out(op, out, (rows, width), dtype)
    flat = indices(op, "ids", ids).reshape(-1)
    check_range(op, "ids", flat, rows)
    twin = backend("embedding", dy, ids, out)
    dtable = twin.embedding_vjp(contiguous(dy).reshape(count, width), flat, rows, dtype=dtype, out=plain_out(out))
    return deliver(dtable, out)
