"""``y = x W^T + b`` and its gradients, under any plan.

One primitive serves every recipe: the plan says what each GEMM operand becomes, the code only
carries operands. Without a plan the three GEMMs run on the arrays as they are.

    fprop  y  [M,N] = x row  @ (W row)^T           saved: x column copy, W pair (nothing unquantized)
    dgrad  dx [M,K] = dy row @ W column
    wgrad  dW [N,K] = (dy column)^T @ x column
    bias   db [N]   = column sums of dy
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.creation import empty_raw
from nvfp.arrays.deferred import Deferred, Pending
from nvfp.arrays.functions._common import array
from nvfp.arrays.quantized import QuantizedArray, dense_dtype
from nvfp.autograd.tape import needs_grad, record
from nvfp.dtypes.dense import float32, float64
from nvfp.errors import ArgumentError, message
from nvfp.kernels.bias_grad import bias_grad
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.gemm import gemm
from nvfp.kernels.operand import Operand, OperandPair
from nvfp.kernels.quantize import other_side
from nvfp.kernels.reduce import reduce
from nvfp.nn._random_state import RandomState
from nvfp.nn.functional._checks import check_operands
from nvfp.nn.functional._delivery import PLAIN, Delivery, reshaped
from nvfp.nn.functional._gradient_steps import begin_gradient_step
from nvfp.nn.functional._matrix import matrix
from nvfp.recipes.operands import quantize_for_gemm
from nvfp.recipes.plan import LinearPlan, TensorPlan
from nvfp.recipes.state import DelayedState


@dataclass(frozen=True, slots=True)
class LinearStates:
    """The delayed-scaling states of one linear layer.

    Attributes:
        forward: of input and weight.
        backward: of the output's gradient.
        recording: whether amaxes are recorded (not in evaluation mode, which only uses the scales).
    """

    forward: DelayedState
    backward: DelayedState
    recording: bool = True


def linear(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    plan: LinearPlan | None = None,
    states: LinearStates | None = None,
    weight_pair: OperandPair | None = None,
    random: RandomState | None = None,
    delivery: Delivery = PLAIN,
) -> Array:
    """Return ``x W^T + b``.

    Args:
        x: [..., K], float32/bfloat16/float16. A quantized one in the plan's format for x, with one scale per
            tensor, is used as it is, and the result then has the dtype of the weight; others count as float32.
        weight: [N, K]. Its dtype equals x's unless a plan quantizes both, or it is quantized itself.
        bias: [N] or None.
        plan: what each GEMM operand becomes; None computes in the dtype of ``x``.
        states: scaling states, needed when the plan uses delayed scaling.
        weight_pair: the weight already quantized under this plan.
        random: gives the random numbers, needed when the plan rounds gradients stochastically.
        delivery: where dW goes, and whether y and dx are quantized.

    Returns:
        [..., N] in the dtype of ``x``.

    Raises:
        ShapeError: inner lengths or the bias length differ.
        DTypeError: no floating arrays, or (without a plan) dtypes of x and weight that differ.
        ArgumentError: a plan with stochastic rounding without ``random``.

    Numerics: float32 accumulation (Hopper's FP8 cores keep fewer bits where the plan says fast),
        one rounding to the output dtype; the bias is added before that rounding.

    Example:
        >>> import nvfp as nf
        >>> from nvfp.nn.functional.linear import linear
        >>> linear(nf.asarray([[1.0, 2.0]], device="cpu"), nf.asarray([[3.0, 4.0]], device="cpu")).item()
        11.0
    """
    dtype = dense_dtype(weight) if usable(x, plan) else None
    x = x if dtype is not None or (plan is not None and type(x) is Deferred) else array("linear", x)
    weight = weight if isinstance(weight, QuantizedArray) else array("linear", weight)
    bias = None if bias is None else array("linear", bias)
    check_operands(x, weight, bias, quantized=plan is not None)
    out_shape = (*x.shape[:-1], weight.shape[0])
    b = None if bias is None else bias.raw
    if plan is None:
        y = gemm(matrix(x.raw), weight.raw.T, bias=b, dtype=x.raw.dtype)
        node = record("linear", (x, weight, bias), _dense_vjp, saved=(x, weight, delivery, _dtype(bias)))
        return wrap(y.reshape(out_shape), node=node)
    if plan.dy.stochastic and random is None:
        do = "pass a RandomState, or round the gradients to nearest"
        raise ArgumentError(message("linear", "random= for stochastic rounding", None, do))
    dtype = dtype or x.dtype
    if delivery.save_original_input and type(x) is Deferred:
        x = x.settled()
    needs = [needs_grad(a) for a in (x, weight)]
    x_pair = _input_pair(x, plan, states, col=needs[1] and not delivery.save_original_input)
    _show_given(plan.x, x, x_pair)
    held = isinstance(weight, QuantizedArray)
    turned = one_copy(plan.w, frozen=not needs[1])  # the column copy: backward transposes the row copy
    if weight_pair is not None:
        w_pair = weight_pair
    elif isinstance(weight, QuantizedArray):
        w_pair = held_pair(weight, plan)
    else:
        w_pair = quantize_weight(weight.raw, plan, states, col=needs[0] and not turned, dtype=dtype)
    _show_given(plan.w, weight, w_pair)
    if needs[0] and not held and not turned:
        w_pair.side("col")  # now: a kept pair without it would read the weight in backward, after an update
    if delivery.needs_output:
        y = gemm(
            x_pair.side("row"),
            w_pair.side("row").T,
            bias=b,
            dtype=dtype,
            fast_accumulation=plan.fast_fprop,
        )
    else:
        y = empty_raw((x_pair.side("row").shape[0], weight.shape[0]), dtype, weight.device)
    kept = x if delivery.save_original_input and needs[1] else None
    x_pair.row = None  # backward reads the column copies only
    if weight_pair is None and not held and w_pair.col is not None:
        w_pair.row = None
    saved: tuple[Any, ...] = (
        x_pair,
        w_pair,
        plan,
        states,
        random,
        x.shape,
        (dtype, dense_dtype(weight)),
        _dtype(bias),
        delivery,
        kept,
    )
    saved += (*_borrowed((x, x_pair), (weight, w_pair)), *((weight,) if held else ()))
    node = record("linear", (x, weight, bias), _quantized_vjp, saved=saved)
    if delivery.output is not None:
        return delivery.output(y, out_shape, node)
    return wrap(y.reshape(out_shape), node=node)


def _show_given(plan: TensorPlan, x: Array, pair: OperandPair) -> None:
    """Show a tensor that came quantized to whoever looks on; what is quantized here is shown then."""
    if plan.watch is not None and isinstance(x, QuantizedArray):
        plan.watch(None, pair, "")


def usable(x: Any, plan: LinearPlan | None) -> bool:
    """Whether a quantized input is what the plan makes of an input, for both of its GEMMs."""
    if plan is None or not isinstance(x, QuantizedArray):
        return False
    return plan.x.format == x.dtype and plan.x.column is None and x.dtype.block is None and not x.operand.transposed


def one_copy(plan: TensorPlan, *, frozen: bool) -> bool:
    """Whether one copy of a weight serves both directions: it is frozen, and its bytes transposed are its column copy.

    Args:
        plan: of the weight.
        frozen: whether it has no gradient of its own.
    """
    return frozen and plan.column is None and plan.format is not None and plan.format.square


def _column(pair: OperandPair) -> Any:
    """The column copy of a weight; one that is made here is not kept."""
    return other_side(pair, "col") if pair.col is None else pair.col


def held_pair(weight: QuantizedArray, plan: LinearPlan) -> OperandPair:
    """Return the pair of a weight that is kept quantized: its own codes, in both directions.

    The column copy of square blocks and of one scale per tensor is their transpose, made in backward. Others are read
    in the blocks of the row copy and expanded there, so that both directions see the same values.

    Raises:
        ArgumentError: a plan with another format for the weight.
    """
    fmt = plan.w.format
    if fmt is not None and fmt != weight.dtype:
        expected, do = f"a recipe with {weight.dtype} weights, as this one was made", "use the recipe it was made under"
        raise ArgumentError(message("linear", expected, fmt, do))
    row: Any = weight.raw
    column = plan.w.column
    if column is not None and column.format is not None:
        return OperandPair(
            row, None, lambda _: quantize_for_gemm(dequantize(row, float32), column, row=False, col=True).col
        )
    return OperandPair(row, None if weight.dtype.square and column is None else row)


def check_narrow(plan: LinearPlan | None, x: Array, *, fp8_output: bool, fp8_grad: bool) -> None:
    """Raise unless a recipe's format allows that the result, or the gradient of the input, leaves quantized.

    Raises:
        ArgumentError: no recipe, one with more than one scale per tensor, or an input that does not come from a
            quantized layer (its gradient then goes where only dense ones are understood).
    """
    x_plan, dy_plan = (None, None) if plan is None else (plan.x, plan.dy)
    for name, asked, tensor in (("fp8_output", fp8_output, x_plan), ("fp8_grad", fp8_grad, dy_plan)):
        if not isinstance(asked, bool):
            raise ArgumentError(message("linear", f"{name} as a bool", repr(asked), "pass True or False"))
        if asked and (tensor is None or tensor.column is not None or tensor.format is None or tensor.format.block):
            got = "none" if tensor is None else tensor.format or "high precision"
            do = f"leave {name} off, or use DelayedScaling or Float8CurrentScaling"
            raise ArgumentError(message("linear", f"a recipe with one FP8 scale per tensor for {name}", got, do))
    if fp8_grad and x._node is not None and not takes_quantized_gradient(x):
        got, do = "one made by something else", "leave fp8_grad off for this layer"
        raise ArgumentError(message("linear", "an input made by a quantized layer for fp8_grad", got, do))


def _input_pair(x: Array, plan: LinearPlan, states: LinearStates | None, *, col: bool) -> OperandPair:
    if type(x.raw) is Operand:
        pair = OperandPair(reshaped(x.raw, (x.size // x.shape[-1] if x.shape[-1] else 0, x.shape[-1])), None)
        if col:
            pair.side("col")
        return pair
    return _forward_pair(x.raw if type(x) is Deferred else matrix(x.raw), plan.x, states, "x", col=col)


def _borrowed(*given: tuple[Array, OperandPair]) -> tuple[Array, ...]:
    """The arrays whose own memory backward reads as a column copy: the tape then notices when they are written."""
    dense: list[tuple[Array, Any]] = [
        (x, pair.col)
        for x, pair in given
        if pair.col is not None and type(x) is not Deferred and Operand not in (type(x.raw), type(pair.col))
    ]
    return tuple([x for x, raw in dense if raw.dtype == x.raw.dtype])


def quantize_weight(
    raw: Any, plan: LinearPlan, states: LinearStates | None, *, col: bool, dtype: Any = None
) -> OperandPair:
    """Quantize a weight [N, K] under a plan; the column copy is made when backward will want it.

    Args:
        raw: the weight.
        plan: the plan.
        states: scaling states under delayed scaling.
        col: make the column copy now.
        dtype: of copies in high precision.
    """
    pair = _forward_pair(raw, plan.w, states, "w", col=col, dtype=dtype)
    fmt = plan.w.format
    if not col and (plan.w.column is not None or fmt is None or not fmt.square):
        # A later call may want the other direction of a cached pair: quantize it again from the source.
        state = None if states is None else states.forward
        again: dict[str, Any] = {"dtype": dtype, "state": state, "role": "w", "recording": False}
        pair.make = lambda which: quantize_for_gemm(raw, plan.w, row=which == "row", col=which == "col", **again).side(
            which
        )
    return pair


def _forward_pair(
    raw: Any, plan: TensorPlan, states: LinearStates | None, role: str, *, col: bool, dtype: Any = None
) -> OperandPair:
    if states is None:
        return quantize_for_gemm(raw, plan, row=True, col=col, dtype=dtype)
    state, recording = states.forward, states.recording
    return quantize_for_gemm(raw, plan, row=True, col=col, dtype=dtype, state=state, role=role, recording=recording)


def _dense_vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    x, weight, delivery, b_dtype = saved
    w, x2, dy2 = weight.raw, matrix(x.raw), matrix(dy.raw)
    dx = wrap(gemm(dy2, w, dtype=x2.dtype).reshape(x.shape)) if needs[0] else None
    dw = delivery.give(dy2.T, x2, dtype=dense_dtype(weight)) if needs[1] else None
    return dx, dw, _bias_gradient(dy2, b_dtype, needs[2])


def _quantized_vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    x_pair, w_pair, plan, states, random, shape, (dtype, w_dtype), b_dtype, delivery, kept, *_ = saved
    dx = dw = None
    dy2, pair = _given_gradient(dy, plan, dtype, dense=needs[2])
    if pair is not None:
        _show_given(plan.dy, dy, pair)
    del dy  # memory: a pending gradient lets go of its source
    if needs[0] or needs[1]:
        backward = None if states is None else states.backward
        if pair is None:
            pair = _gradient_pair(
                dy2, plan, backward, random, row=needs[0], col=needs[1], bias=b_dtype if needs[2] else None
            )
        if needs[0]:
            dx = gemm(pair.side("row"), _column(w_pair), dtype=dtype, fast_accumulation=plan.fast_dgrad)
            dx = wrap(dx.reshape(shape)) if delivery.gradient is None else _narrow_gradient(delivery, dx, shape)
        if needs[1]:
            x = _input_pair(kept, plan, None, col=True) if kept is not None else x_pair
            options: dict[str, Any] = {"dtype": w_dtype, "fast_accumulation": plan.fast_wgrad}
            dw = delivery.give(pair.side("col").T, x.side("col"), **options)
    if not needs[2]:  # a pending dy2 may have been taken: nobody reads it any more
        return dx, dw, None
    if pair is not None and pair.bias_grad is not None:
        return dx, dw, wrap(pair.bias_grad)
    return dx, dw, _bias_gradient(dy2.matrix() if type(dy2) is Pending else dy2, b_dtype, needs[2])


def _given_gradient(dy: Array, plan: LinearPlan, dtype: Any, *, dense: bool) -> tuple[Any, OperandPair | None]:
    """The gradient of y as a matrix, and its pair where the next layer has quantized it already."""
    if type(dy) is Deferred:
        return dy.raw, None
    if type(dy.raw) is not Operand:
        return matrix(dy.raw), None
    row = reshaped(dy.raw, (dy.size // dy.shape[-1] if dy.shape[-1] else 0, dy.shape[-1]))
    same = row.format == plan.dy.format
    dy2 = dequantize(row, dtype) if dense or not same else None
    return dy2, OperandPair(row, None) if same else None


def _gradient_pair(
    dy2: Any,
    plan: LinearPlan,
    backward: DelayedState | None,
    random: RandomState | None,
    *,
    row: bool,
    col: bool,
    bias: Any,
) -> OperandPair:
    if backward is not None:
        begin_gradient_step(backward)
    rng = None
    if plan.dy.stochastic:
        assert random is not None, "checked in forward"
        random.ends_step()  # before the draw: a pass that fails has drawn nothing
        draw = random.draw(dy2.like if type(dy2) is Pending else dy2)
        rng = (draw.key, draw.ordinal, draw.step)
    bias = None if dy2.dtype == float64 else bias  # the bias kernel sums in float32
    return quantize_for_gemm(dy2, plan.dy, row=row, col=col, state=backward, role="dy", rng=rng, bias=bias)


def _narrow_gradient(delivery: Delivery, dx: Any, shape: tuple[int, ...]) -> Array:
    assert delivery.gradient is not None
    if delivery.gradient.state is not None:
        begin_gradient_step(delivery.gradient.state)
    return delivery.gradient(dx, shape)


def takes_quantized_gradient(x: Array) -> bool:
    """Whether the gradient of ``x`` goes straight to a quantized linear layer."""
    return getattr(x._node, "vjp", None) is _quantized_vjp


def _dtype(bias: Array | None) -> Any:
    return None if bias is None else bias.dtype


def _bias_gradient(dy2: Any, dtype: Any, needed: bool) -> Array | None:
    if not needed:
        return None
    if dy2.dtype == float64:  # the bias kernel sums in float32
        return wrap(reduce("sum", dy2, axis=0, dtype=dtype))
    return wrap(bias_grad(dy2, dtype=dtype))
