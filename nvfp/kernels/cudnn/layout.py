"""How the tensors of an attention lie in memory, in cuDNN's terms: extents and strides over [B, H, L, D]."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from nvfp.kernels.cublaslt.layout import round_up
from nvfp.kernels.cudnn.record import AttentionRecord, Strides, contiguous

BIAS_UNIT = 8  # elements to which the rows of a bias are padded, so that each starts aligned


class Port(IntEnum):
    """A tensor's place in a graph; the number is its unique id there."""

    Q, K, V, O, STATS, BIAS, SEED, OFFSET, DO, DQ, DK, DV = range(1, 13)  # noqa: E741
    SINK, Q_LENGTHS, K_LENGTHS, DBIAS = range(13, 17)


OFFSETS = 32  # added to a tensor's number: the tensor that says where its entries lie


class Tensor(NamedTuple):
    """A tensor as cuDNN sees it: extents, strides in elements, dtype name, whether offsets say where entries lie."""

    dim: tuple[int, int, int, int]
    stride: Strides
    dtype: str
    ragged: bool = False


Tensors = dict[Port, Tensor]


def bias_shape(record: AttentionRecord) -> tuple[int, int, int, int]:
    """Return the shape [B or 1, H or 1, Lq, Lk padded] of the bias, which stands for the mask too.

    Example:
        >>> strides = (8, 8, 8, 1)
        >>> bias_shape(AttentionRecord(2, 7, 9, 4, 4, 8, 8, "float16", *(strides,) * 3, 1.0, "padding", (2, 1)))
        (2, 1, 7, 16)
    """
    batch, heads = (max(pair) for pair in zip(record.mask or (1, 1), record.bias or (1, 1), strict=True))
    return batch, heads, record.queries, round_up(record.keys, BIAS_UNIT)


def _by_head(shape: tuple[int, int, int, int], strides: Strides, record: AttentionRecord) -> Tensor:
    """[B, L, H, D] as cuDNN's [B, H, L, D]."""
    (b, n, h, d), (sb, sn, sh, sd) = shape, strides
    return Tensor((b, h, n, d), (sb, sh, sn, sd), record.dtype, record.lengths)


def _scores(shape: tuple[int, int, int, int], record: AttentionRecord) -> Tensor:
    """[B or 1, H or 1, Lq, Lk] in rows that are padded."""
    batch, heads, rows, ld = shape
    return Tensor((batch, heads, rows, record.keys), (heads * rows * ld, rows * ld, ld, 1), record.dtype)


def tensors(record: AttentionRecord, *, packed: bool = False) -> Tensors:
    """Return every tensor that forward or backward of a record may have; results and dO are C-contiguous.

    Args:
        record: the attention.
        packed: dQ, dK and dV lie as Q, K and V do.
    """
    r = record
    q, k = (r.batch, r.queries, r.heads, r.depth), (r.batch, r.keys, r.groups, r.depth)
    v, o = (*k[:3], r.value_depth), (*q[:3], r.value_depth)
    found = {
        Port.Q: _by_head(q, r.q_strides, r),
        Port.K: _by_head(k, r.k_strides, r),
        Port.V: _by_head(v, r.v_strides, r),
        Port.STATS: Tensor((r.batch, r.heads, r.queries, 1), (r.heads * r.queries, r.queries, 1, 1), "float32"),
    }
    shapes = {Port.O: o, Port.DO: o, Port.DQ: q, Port.DK: k, Port.DV: v}
    found |= {port: _by_head(shape, contiguous(shape), r) for port, shape in shapes.items()}
    if packed:
        operands = ((Port.DQ, Port.Q), (Port.DK, Port.K), (Port.DV, Port.V))
        found |= {gradient: found[operand] for gradient, operand in operands}
    if r.biased:
        found[Port.BIAS] = _scores(bias_shape(r), r)
    if r.bias_gradient:  # not summed over what the bias repeats: cuDNN does not say in which order it would
        found[Port.DBIAS] = _scores((r.batch, r.heads, *bias_shape(r)[2:]), r)
    if r.sink:
        found[Port.SINK] = Tensor((1, r.heads, 1, 1), (r.heads, 1, 1, 1), "float32")
    if r.lengths:
        words = Tensor((r.batch, 1, 1, 1), (1, 1, 1, 1), "int32")
        found |= {Port.Q_LENGTHS: words, Port.K_LENGTHS: words}
    if r.dropout:
        found |= {port: Tensor((1, 1, 1, 1), (1, 1, 1, 1), "int64") for port in (Port.SEED, Port.OFFSET)}
    return found
