"""Make the copies of a tensor that its GEMMs read, as its plan says."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.arrays.deferred import Pending
from nvfp.kernels.amax import amax
from nvfp.kernels.cast import cast
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.gemm import native_scale_layout
from nvfp.kernels.input_fn import InputFn
from nvfp.kernels.operand import Operand, OperandPair
from nvfp.kernels.quantize import quantize
from nvfp.recipes.plan import TensorPlan
from nvfp.recipes.state import DelayedState

NARROW_ROLES = ("y", "dx")  # results that leave quantized, under the plan of the next layer's input or gradient


def quantize_for_gemm(
    raw: Any,
    plan: TensorPlan,
    *,
    row: bool,
    col: bool,
    dtype: Any = None,
    state: DelayedState | None = None,
    role: str = "",
    recording: bool = True,
    rng: Any | None = None,
    bias: np.dtype | None = None,
) -> OperandPair:
    """Return the row and/or column copy of a matrix under a tensor plan.

    Args:
        raw: raw array [M, K], float32/bf16/fp16/float64; or a result that is not computed yet (`Pending`): its function
            is applied in the pass that quantizes where one pass makes all that is asked for, else before.
        plan: format, scaling, rounding, rotation of each copy.
        row: make the row copy.
        col: make the column copy.
        dtype: of copies in high precision; None keeps that of ``raw``.
        state: scaling state; needed when ``plan`` has delayed scaling.
        role: name of the tensor inside the state.
        recording: record the amax of ``raw`` in the state.
        rng: ``(key, ordinal, step)`` of this call; needed when the plan rounds stochastically.
        bias: dtype of the column sums, if one pass can make them too: then ``bias_grad`` of the pair.

    Returns:
        The pair, its scales in the layout that GEMMs read on the device of ``raw``. A side in high precision is a
        raw array: ``raw`` itself where the dtype fits. A column copy that is to hold the row copy's values in high
        precision is the row copy's Operand, which GEMMs expand.
    """
    options: dict[str, Any] = {"dtype": dtype, "state": state, "role": role, "recording": recording, "rng": rng}
    column, input_fn = plan.column, None
    if type(raw) is Pending:
        taken = raw.take() if at_once(plan, row=row, col=col, rows=raw.rows) else None
        raw, input_fn = (raw.matrix(), None) if taken is None else taken
    if column is None or not col:
        pair = _copies(raw, plan, row=row, col=col, input_fn=input_fn, bias=bias, **options)
    else:
        from_row = column.source == "row"
        pair = _copies(raw, plan, row=True, col=False, **options) if row or from_row else OperandPair(None, None)
        if from_row and plan.format is not None:
            pair.col = pair.row if column.format is None else _again(pair.row, raw, column, options)
        else:
            pair.col = _copies(raw, column, row=False, col=True, **options).col
        if not row:
            pair.row = None
    if plan.watch is not None:
        plan.watch(raw, pair, role if role in NARROW_ROLES else "")
    return pair


def at_once(plan: TensorPlan, *, row: bool, col: bool, rows: bool = False) -> bool:
    """Whether a function is better applied by `quantize` than before it, for all copies of a plan.

    One call of it must make them all, in an order in which the function comes first. Norms (``rows``) are applied
    before, unless a maximum is needed first: both FP8 copies of LayerNorm of 8192 x 4096 take an H200 .09 ms at once
    and .073 in two steps.

    Args:
        plan: of the tensor.
        row: whether the row copy is made.
        col: whether the column copy is made.
        rows: whether whole rows decide an element.
    """
    fmt = plan.format
    if (
        fmt is None
        or plan.watch is not None
        or not (row or col)
        or (col and (plan.rotation or plan.column is not None))
    ):
        return False
    return not rows or plan.scaling == "current" or fmt.tensor_scale


def _again(operand: Any, raw: Any, column: TensorPlan, options: dict[str, Any]) -> Any:
    """The column copy of what the row copy holds, in the dtype of the tensor."""
    return _copies(dequantize(operand, raw.dtype), column, row=False, col=True, **options).col


def _copies(
    raw: Any,
    plan: TensorPlan,
    *,
    row: bool,
    col: bool,
    dtype: Any,
    state: DelayedState | None,
    role: str,
    recording: bool,
    rng: Any | None,
    input_fn: InputFn | None = None,
    bias: np.dtype | None = None,
) -> OperandPair:
    """Both copies under one and the same plan."""
    fmt, scale, amax_out = plan.format, None, None
    if plan.scaling == "delayed":
        assert state is not None, "a delayed plan comes with its state"
        scale, amax_out = state.scale_word(role), state.amax_word(role) if recording else None
    if fmt is None:
        if amax_out is not None:
            amax(raw, out=amax_out)
        dense = raw if type(raw) is Operand or dtype is None or raw.dtype == dtype else cast(raw, dtype)
        return OperandPair(dense if row else None, dense if col else None)
    return quantize(
        raw,
        fmt,
        row=row,
        col=col,
        scale=scale,
        amax_out=amax_out,
        amax_epsilon=plan.amax_epsilon,
        rounding=plan.rounding,
        rng=rng if plan.rounding == "stochastic" else None,
        rotation=plan.rotation,
        input_fn=input_fn,
        bias_grad=False if bias is None else bias,
        scale_layout=native_scale_layout(raw, fmt),
    )
