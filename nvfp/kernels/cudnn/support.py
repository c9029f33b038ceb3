"""What cuDNN is not asked for, as rules over the record. What it refuses beyond that shows when plans are built."""

from __future__ import annotations

import numpy as np

from nvfp.capability import Compute
from nvfp.kernels._attention import Settings, Terms
from nvfp.kernels.cudnn.record import AttentionRecord

DTYPES = ("bfloat16", "float16")
OLDEST: Compute = (8, 0)
DEEPEST = 256  # of D and Dv; the backward takes 128 outside compute capability 9 and says so itself


def beyond(settings: Settings, terms: Terms, dtype: np.dtype) -> str | None:
    """Return what of a call no record holds, or None.

    Args:
        settings: of the call.
        terms: likewise.
        dtype: of q, k and v.
    """
    if settings.bias_type == "alibi":
        return "cuDNN has the usual slopes of ALiBi only, and copies them from the host at every call"
    if settings.bias_type == "pre_scale_bias":
        return "cuDNN adds a bias behind the scale, not before it"
    if terms.bias is not None and terms.bias.dtype != dtype:
        return f"cuDNN takes a bias in the dtype of q, {dtype}, not in {terms.bias.dtype}"
    if settings.softcap:
        return "cuDNN's attention node has no softcap"
    return "the largest score of a head is composed" if settings.max_logit else None


def refusal(record: AttentionRecord, compute: Compute) -> str | None:
    """Return why cuDNN cannot compute an attention rightly, or None.

    Args:
        record: the attention.
        compute: compute capability of the device.

    Returns:
        One reason in words, the first that holds.

    Example:
        >>> strides = (512, 64, 64, 1)
        >>> record = AttentionRecord(2, 8, 8, 1, 1, 64, 64, "float32", strides, strides, strides, 0.125)
        >>> refusal(record, (9, 0))
        'cuDNN attends in bfloat16 and float16, not in float32'
    """
    return _operands(record, compute) or _masks(record)


def _operands(record: AttentionRecord, compute: Compute) -> str | None:
    depths = (record.depth, record.value_depth)
    if record.dtype not in DTYPES:
        return f"cuDNN attends in {' and '.join(DTYPES)}, not in {record.dtype}"
    if compute < OLDEST:
        return f"cuDNN attends from compute capability 8.0 on, this device has {compute[0]}.{compute[1]}"
    if 0 in (record.batch, record.queries, record.keys, record.heads, record.groups, *depths):
        return "there is nothing to compute: an axis has length 0"
    if record.heads % record.groups:
        return f"{record.heads} heads are no multiple of {record.groups} groups"
    if any(d % 8 or d > DEEPEST for d in depths):
        return f"head sizes must be multiples of 8 up to {DEEPEST}, not {depths[0]} and {depths[1]}"
    if record.sink and record.queries == 1:
        return "cuDNN takes no sink with a single query"
    if record.stats and record.queries == record.keys == 1:
        return "cuDNN has no backward for one query and one key"
    return None


def _lengths(record: AttentionRecord) -> str | None:
    """Why entries of different lengths are composed."""
    if record.dropout or record.bias is not None:
        return "dropout and biases over entries of different lengths are composed"
    left, right = record.band
    blind = left is not None or (right is not None and record.alignment == "bottom_right")
    if blind and not record.even:
        return "cuDNN gives NaN to queries without keys, which this diagonal may have"
    return None


def _masks(record: AttentionRecord) -> str | None:
    left, right = record.band
    if record.lengths:
        return _lengths(record)
    if record.dropout >= 1:
        return "cuDNN drops weights with a probability below 1 only"
    if left is not None and record.queries > record.keys:
        return "cuDNN takes no sliding window over fewer keys than queries"
    if record.alignment == "bottom_right" and (left, right) != (None, None):
        if record.queries > record.keys:
            return "cuDNN takes no bottom-right diagonal over fewer keys than queries"
        if record.biased or record.dropout:
            return "cuDNN takes a bottom-right diagonal neither with a mask or bias nor with dropout"
    return None
