"""Attention by cuDNN: `unsupported` says whether, `attention` and `attention_vjp` run it.

Numerics: scores, softmax and sums in float32, weights rounded to the operands' dtype before they meet V, one
rounding of each result. Masks travel as a bias of -65504 (so that nothing overflows in float16); a row whose
log-sum-exp shows that it had no other key gives 0 and no gradient. Scores themselves must stay above -32752.
Dropout has cuDNN's own random stream: the draw of step, key and ordinal, not the bits of `nvfp.kernels.dropout`.
Bits repeat, forward and (where the record is deterministic) backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nvfp.errors import ArgumentError, KernelError, message
from nvfp.kernels.cast import cast
from nvfp.kernels.cublaslt.typemap import NAMED
from nvfp.kernels.cuda._memory import address, aligned
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.cudnn.layout import Port, bias_shape
from nvfp.kernels.cudnn.plan import Plan, Refusal, plan_for
from nvfp.kernels.cudnn.record import UNIT, AttentionRecord, Strides, contiguous, own_strides, seen_strides
from nvfp.kernels.cudnn.words import offset_word, snapshot
from nvfp.kernels.elementwise import elementwise

MASKED = -65504.0  # bfloat16 rounds it to -65536
DEAD = MASKED / 2  # a log-sum-exp below: every key of the row was masked
_FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class Saved:
    """What the backward needs beside operands and output.

    Attributes:
        stats: log-sum-exp of the scores, float32 [B, H, Lq]; None if the record asked for none and has no mask.
        mask: the mask array that the forward got.
        seed: int64 word, the step that the forward drew with.
        offset: int64 word, from key and ordinal.
    """

    stats: Any | None
    mask: Any | None = None
    seed: Any | None = None
    offset: Any | None = None


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
    out = cp.ndarray((record.batch, record.queries, record.heads, record.value_depth), NAMED[record.dtype])
    stats = cp.ndarray((record.batch, record.heads, record.queries), _FLOAT32) if plan.stats else None
    drops = record.dropout > 0
    saved = Saved(
        stats,
        mask,
        snapshot(step) if drops else None,
        offset_word(device, key, ordinal) if drops else None,
    )
    ports = {Port.Q: q, Port.K: k, Port.V: v, Port.O: out} | ({} if stats is None else {Port.STATS: stats})
    _execute(plan.forward, ports, record, saved)
    if mask is not None:
        elementwise("where", _dead(stats), 0.0, out, out=out)
    return out, saved


def attention_vjp(
    record: AttentionRecord, dout: Any, q: Any, k: Any, v: Any, out: Any, saved: Saved
) -> tuple[Any, Any, Any]:
    """Return (dQ, dK, dV) of `attention`, each C-contiguous in its operand's shape.

    Gradients of operands that lie side by side in one buffer (`AttentionRecord.packed`) lie so too.

    Args:
        record: that of the forward; it has ``stats``.
        dout: gradient of O, any strides.
        q: as in the forward.
        k: likewise.
        v: likewise.
        out: O as the forward gave it.
        saved: likewise.

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
    n = plan.entries
    if n == record.batch:
        _execute(plan.backward, ports, record, saved)
        return dq, dk, dv
    bias = None if saved.mask is None else _bias(record, saved.mask)
    for at in range(0, record.batch, n):
        part = {port: x[at : at + n] for port, x in ports.items()}
        if bias is not None:
            part[Port.BIAS] = bias if len(bias) == 1 else bias[at : at + n]
        _execute(plan.backward, part, record, saved)
    return dq, dk, dv


def _gradients(record: AttentionRecord, kind: str | None, q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    """Where dQ, dK and dV go: arrays of their own, or one buffer."""
    dtype = NAMED[record.dtype]
    if kind is None:
        return cp.ndarray(q.shape, dtype), cp.ndarray(k.shape, dtype), cp.ndarray(v.shape, dtype)
    heads, groups, depth = record.heads, record.groups, record.depth
    lead = (record.batch, record.queries)
    buffer = cp.ndarray((*lead, (heads + 2 * groups) * depth), dtype)
    if kind == "by head":
        each = buffer.reshape((*lead, heads, 3, depth))
        return each[:, :, :, 0], each[:, :, :, 1], each[:, :, :, 2]
    flat = buffer.reshape((*lead, heads + 2 * groups, depth))
    return flat[:, :, :heads], flat[:, :, heads : heads + groups], flat[:, :, heads + groups :]


def _execute(graph: Any, ports: dict[Port, Any], record: AttentionRecord, saved: Saved) -> None:
    if saved.mask is not None and Port.BIAS not in ports:
        ports[Port.BIAS] = _bias(record, saved.mask)
    if saved.seed is not None:
        ports[Port.SEED], ports[Port.OFFSET] = saved.seed, saved.offset
    graph.execute({int(port): address(x) for port, x in ports.items()}, cp.cuda.get_current_stream().ptr)


def _operands(record: AttentionRecord, q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    return _seen(q, record.q_strides), _seen(k, record.k_strides), _seen(v, record.v_strides)


def _seen(x: Any, strides: Strides) -> Any:
    """``x`` in the given strides: itself, or a contiguous copy where `seen_strides` announced one."""
    if own_strides(x) == strides and aligned(x, UNIT):
        return x
    if seen_strides(x) != strides:
        got = f"{x.strides} bytes"
        raise ArgumentError(message("attention", f"an operand of strides {strides}", got, "make its record anew"))
    return cast(x, x.dtype)


def _plain(x: Any) -> Any:
    """``x``, or a contiguous copy."""
    return x if own_strides(x) == contiguous(x.shape) and aligned(x, UNIT) else cast(x, x.dtype)


def _bias(record: AttentionRecord, mask: Any) -> Any:
    """The mask as what is added to the scores, [B or 1, H or 1, Lq, Lk] with padded rows."""
    bias = cp.ndarray(bias_shape(record), NAMED[record.dtype])
    elementwise("where", mask, MASKED, 0.0, out=bias[..., : record.keys])
    return bias


def _dead(stats: Any) -> Any:
    """Which rows had no key, bool [B, Lq, H, 1]."""
    return elementwise("less", stats, DEAD).transpose(0, 2, 1)[..., None]
