"""Attention by cuDNN: `unsupported` says whether, `attention` and `attention_vjp` run it.

Numerics: scores, softmax and sums in float32, weights rounded to the operands' dtype before they meet V, one
rounding of each result. Masks travel as a bias of -65504 (so that nothing overflows in float16); a row whose
log-sum-exp shows that it had no other key gives 0 and no gradient. Scores themselves must stay above -32752.
Dropout has cuDNN's own random stream: the draw of step, key and ordinal, not the bits of `nvfp.kernels.dropout`.
Bits repeat, forward and (where the record is deterministic) backward.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nvfp.errors import ArgumentError, KernelError, message
from nvfp.kernels._attention import NO_TERMS, Lengths, Terms
from nvfp.kernels._attention_mask import positions
from nvfp.kernels.cast import cast
from nvfp.kernels.cublaslt.typemap import NAMED
from nvfp.kernels.cuda._memory import address, aligned, zero
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.cudnn.layout import OFFSETS, Port, bias_shape
from nvfp.kernels.cudnn.plan import Plan, Refusal, plan_for
from nvfp.kernels.cudnn.record import UNIT, AttentionRecord, Strides, contiguous, own_strides, seen_strides
from nvfp.kernels.cudnn.words import offset_word, snapshot
from nvfp.kernels.elementwise import elementwise

MASKED = -65504.0  # bfloat16 rounds it to -65536
DEAD = MASKED / 2  # a log-sum-exp below: every key of the row was masked
_FLOAT32, _INT32, _INT64 = (np.dtype(name) for name in ("float32", "int32", "int64"))


@dataclass(frozen=True, slots=True)
class Saved:
    """What the backward needs beside operands and output.

    Attributes:
        stats: log-sum-exp of the scores, float32 [B, H, Lq]; None if the record asked for none and has no mask.
        mask: the mask array that the forward got.
        seed: int64 word, the step that the forward drew with.
        offset: int64 word, from key and ordinal.
        places: lengths and offsets of the entries by port, int32 and int64 arrays, where they have their own.
    """

    stats: Any | None
    mask: Any | None = None
    seed: Any | None = None
    offset: Any | None = None
    places: dict[int, Any] = field(default_factory=dict)


def unsupported(record: AttentionRecord) -> str | None:
    """Return why cuDNN does not run a record on the current device, or None; builds its plan at the first asking.

    Args:
        record: the attention.

    Raises:
        KernelError: there is no plan yet and the current stream is being captured.
    """
    found = plan_for(record)
    return found.reason if isinstance(found, Refusal) else None


def _plan(record: AttentionRecord) -> Plan:
    found = plan_for(record)
    if isinstance(found, Refusal):
        do = 'leave backend= out or take backend="composed"'
        raise KernelError(message("attention", "a record that cuDNN runs", f"{record}: {found.reason}", do))
    return found


def attention(
    record: AttentionRecord,
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any | None = None,
    key: int = 0,
    ordinal: int = 0,
    step: Any | None = None,
    terms: Terms = NO_TERMS,
) -> tuple[Any, Saved]:
    """Compute O = dropout(softmax(scale Q K^T + mask)) V on the current stream.

    Args:
        record: of these operands, from `record_of`.
        q: [B, Lq, H, D].
        k: [B, Lk, G, D].
        v: [B, Lk, G, Dv].
        mask: bool, True = masked out, where the record has one.
        key: 64 bits of the dropout state.
        ordinal: of the draw inside a step.
        step: int64 0-d device word, where the record has dropout.
        terms: bias, sink and lengths, where the record has them.

    Returns:
        O [B, Lq, H, Dv] C-contiguous, and what `attention_vjp` needs.

    Raises:
        ArgumentError: mask or step missing, or operands laid out otherwise than the record says.
        KernelError: cuDNN does not run the record, or fails.
    """
    plan = _plan(record)
    if (mask is None) != (record.mask is None) or (step is None and record.dropout > 0):
        got = f"mask {'no' if mask is None else 'yes'}, step {'no' if step is None else 'yes'}"
        raise ArgumentError(message("attention", f"what the record has: {record}", got, "make its record anew"))
    device: int = cp.cuda.runtime.getDevice()
    q, k, v = _operands(record, q, k, v)
    out = _result((*q.shape[:-1], record.value_depth), record)
    stats = cp.ndarray((record.batch, record.heads, record.queries), _FLOAT32) if plan.stats else None
    drops = record.dropout > 0
    saved = Saved(
        stats,
        mask,
        snapshot(step) if drops else None,
        offset_word(device, key, ordinal) if drops else None,
        {} if terms.lengths is None else places(record, terms.lengths, q, k, v),
    )
    ports = {Port.Q: q, Port.K: k, Port.V: v, Port.O: out} | ({} if stats is None else {Port.STATS: stats})
    if terms.sink is not None:
        ports[Port.SINK] = terms.sink if aligned(terms.sink, UNIT) else cast(terms.sink, terms.sink.dtype)
    _execute(plan.forward, ports, record, saved, terms.bias)
    if mask is not None:
        elementwise("where", _dead(stats), 0.0, out, out=out)
    return out, saved


def attention_vjp(
    record: AttentionRecord, dout: Any, q: Any, k: Any, v: Any, out: Any, saved: Saved, bias: Any | None = None
) -> tuple[Any, Any, Any, Any | None]:
    """Return (dQ, dK, dV) of `attention`, each C-contiguous in its operand's shape, and the gradient of the bias.

    The latter is [B, H, Lq, Lk], not summed over what the bias repeats; None where the record does not ask for it.

    Gradients of operands that lie side by side in one buffer (`AttentionRecord.packed`) lie so too.

    Args:
        record: that of the forward; it has ``stats``.
        dout: gradient of O, any strides.
        q: as in the forward.
        k: likewise.
        v: likewise.
        out: O as the forward gave it.
        saved: likewise.
        bias: as in the forward.

    Raises:
        ArgumentError: the record is one without a backward, or operands are laid out otherwise than it says.
        KernelError: cuDNN fails.
    """
    plan = _plan(record)
    if plan.backward is None:
        raise ArgumentError(message("attention", "a record with stats", record, "make it with stats=True"))
    q, k, v = _operands(record, q, k, v)
    if record.mask is None:
        dout = _plain(dout)
    else:
        dout = elementwise("where", _dead(saved.stats), 0.0, dout)
    dq, dk, dv = _gradients(record, plan.packed, q, k, v)
    ports = {
        Port.Q: q, Port.K: k, Port.V: v, Port.O: out, Port.DO: dout, Port.STATS: saved.stats,
        Port.DQ: dq, Port.DK: dk, Port.DV: dv,
    }  # fmt: skip
    dbias = None
    if record.bias_gradient:
        ld = bias_shape(record)[3]
        ports[Port.DBIAS] = dbias = cp.ndarray((record.batch, record.heads, record.queries, ld), NAMED[record.dtype])
        dbias = dbias[..., : record.keys]
    n = plan.entries
    if n == record.batch:
        _execute(plan.backward, ports, record, saved, bias)
        return dq, dk, dv, dbias
    scores = _bias(record, saved.mask, bias) if record.biased else None
    for at in range(0, record.batch, n):
        part = {port: x[at : at + n] for port, x in ports.items()}
        if scores is not None:
            part[Port.BIAS] = scores if len(scores) == 1 else scores[at : at + n]
        _execute(plan.backward, part, record, saved, bias)
    return dq, dk, dv, dbias


def _gradients(record: AttentionRecord, kind: str | None, q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """Where dQ, dK and dV go: arrays of their own, or one buffer."""
    if kind is None:
        return _result(q.shape, record), _result(k.shape, record), _result(v.shape, record)
    heads, groups, depth = record.heads, record.groups, record.depth
    lead = (record.batch, record.queries)
    buffer = cp.ndarray((*lead, (heads + 2 * groups) * depth), NAMED[record.dtype])
    if kind == "by head":
        each = buffer.reshape((*lead, heads, 3, depth))
        return each[:, :, :, 0], each[:, :, :, 1], each[:, :, :, 2]
    flat = buffer.reshape((*lead, heads + 2 * groups, depth))
    return flat[:, :, :heads], flat[:, :, heads : heads + groups], flat[:, :, heads + groups :]


def _result(shape: tuple[int, ...], record: AttentionRecord) -> Any:
    """Room for a result; zero where entries have lengths, as no one writes behind their ends."""
    found = cp.ndarray(shape, NAMED[record.dtype])
    if record.lengths:
        zero(found, 0, found.nbytes)
    return found


def places(record: AttentionRecord, lengths: Lengths, q: Any, k: Any, v: Any) -> dict[int, Any]:
    """Return the lengths of entries, and where each lies in each tensor, by number of the tensor.

    Args:
        record: of the call.
        lengths: likewise.
        q: as cuDNN reads it.
        k: likewise.
        v: likewise.
    """
    queries, keys = lengths.queries, lengths.keys
    if not record.even:  # a query without any key is none that counts
        queries = elementwise("where", elementwise("greater", keys, 0), queries, 0, dtype=_INT32)
    found: dict[int, Any] = {Port.Q_LENGTHS: queries, Port.K_LENGTHS: keys}
    found = {port: x if aligned(x, UNIT) else cast(x, _INT32) for port, x in found.items()}
    heads, groups = record.heads, record.groups
    known: dict[tuple[int, int], Any] = {}
    rows = (  # of q and k, v as they lie; of what lies contiguously
        ((Port.Q,), 0, q, None), ((Port.K,), 1, k, None), ((Port.V,), 1, v, None),
        ((Port.O, Port.DO), 0, q, heads * record.value_depth), ((Port.DQ,), 0, q, heads * record.depth),
        ((Port.DK,), 1, k, groups * record.depth), ((Port.DV,), 1, v, groups * record.value_depth),
    )  # fmt: skip
    for ports, side, x, width in rows:
        starts = (lengths.q_starts, lengths.k_starts)[side]
        if starts is None:
            step = x.strides[0] // x.itemsize if width is None else x.shape[1] * width
        else:
            step = x.strides[0] // x.itemsize if width is None else width
        if (side, step) not in known:
            known[side, step] = _offsets(starts, record.batch, step, x.shape[0], x)
        found |= {port + OFFSETS: known[side, step] for port in ports}
    return found


def _offsets(starts: Any | None, batch: int, step: int, total: int, like: Any) -> Any:
    """Elements before each entry, int64 [B + 1]; the last, which no one reads, lies behind all."""
    if starts is None:
        return elementwise("multiply", positions(batch + 1, like), step, dtype=_INT64)
    found = cp.ndarray((batch + 1,), _INT64)
    elementwise("multiply", starts, step, dtype=_INT64, out=found[:batch])
    elementwise("multiply_add", found[:1], 0, total * step, out=found[batch:])
    return found


def _execute(graph: Any, ports: dict[Port, Any], record: AttentionRecord, saved: Saved, bias: Any | None) -> None:
    if record.biased and Port.BIAS not in ports:
        ports[Port.BIAS] = _bias(record, saved.mask, bias)
    used: dict[int, Any] = {int(port): x for port, x in ports.items()}
    if saved.places:
        lengths = {port: saved.places[port] for port in (Port.Q_LENGTHS, Port.K_LENGTHS)}
        used |= lengths | {
            at + OFFSETS: saved.places[at + OFFSETS] for at in list(used) if at + OFFSETS in saved.places
        }
    if saved.seed is not None:
        used |= {Port.SEED: saved.seed, Port.OFFSET: saved.offset}
    graph.execute({int(port): address(x) for port, x in used.items()}, cp.cuda.get_current_stream().ptr)


def _operands(record: AttentionRecord, q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    return _seen(q, record.q_strides), _seen(k, record.k_strides), _seen(v, record.v_strides)


def _seen(x: Any, strides: Strides) -> Any:
    """``x`` in the given strides: itself, or a contiguous copy where `seen_strides` announced one."""
    if x.ndim == 3:
        own, at = own_strides(x[None]), aligned(x, UNIT)
        return x if own is not None and own[1:] == strides[1:] and at else cast(x, x.dtype)
    if own_strides(x) == strides and aligned(x, UNIT):
        return x
    if seen_strides(x) != strides:
        got = f"{x.strides} bytes"
        raise ArgumentError(message("attention", f"an operand of strides {strides}", got, "make its record anew"))
    return cast(x, x.dtype)


def _plain(x: Any) -> Any:
    """``x``, or a contiguous copy."""
    full = x if x.ndim == 4 else x[None]
    return x if own_strides(full) == contiguous(full.shape) and aligned(x, UNIT) else cast(x, x.dtype)


def _bias(record: AttentionRecord, mask: Any | None, bias: Any | None) -> Any:
    """Bias and mask as what is added to the scores, [B or 1, H or 1, Lq, Lk] with padded rows."""
    room = cp.ndarray(bias_shape(record), NAMED[record.dtype])
    if mask is None:
        cast(bias, room.dtype, out=room[..., : record.keys])
    else:
        elementwise("where", mask, MASKED, 0.0 if bias is None else bias, out=room[..., : record.keys])
    return room


def _dead(stats: Any) -> Any:
    """Which rows had no key, bool [B, Lq, H, 1]."""
    return elementwise("less", stats, DEAD).transpose(0, 2, 1)[..., None]
