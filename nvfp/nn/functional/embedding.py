"""Embedding lookup and its gradient (sorted, deterministic)."""

from __future__ import annotations

from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import array
from nvfp.autograd.tape import record
from nvfp.kernels import embedding as kernel


def embedding(table: Array, ids: Array) -> Array:
    """Return ``table[ids]``.

    Args:
        table: [V, H].
        ids: integers [...], each in ``0..V-1``.

    Returns:
        [..., H] in the table's dtype. The gradient sums over repeated ids in float32, in a fixed order.

    Raises:
        DTypeError: ids that are no integers, or no array.
        IndexError: on the CPU, an id out of range. On CUDA such a row is NaN and gets no gradient.

    Example:
        >>> import nvfp as nf
        >>> table = nf.asarray([[0.0], [1.0], [2.0]], device="cpu")
        >>> embedding(table, nf.asarray([2, 0], device="cpu")).tolist()
        [[2.0], [0.0]]
    """
    table, ids = array("embedding", table), array("embedding", ids)
    y = kernel.embedding(table.raw, ids.raw)
    node = record("embedding", (table,), _vjp, saved=(ids, table.shape[0], table.raw.dtype))
    return wrap(y, node=node)


def _vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    ids, rows, dtype = saved
    return (wrap(kernel.embedding_vjp(dy.raw, ids.raw, rows, dtype=dtype)),)
