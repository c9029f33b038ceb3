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
from nvfp.arrays.functions._common import array
from nvfp.autograd.region import collect_after_backward
from nvfp.autograd.tape import needs_grad, record
from nvfp.dtypes.dense import float64
from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels.bias_grad import bias_grad
from nvfp.kernels.gemm import gemm
from nvfp.kernels.operand import OperandPair
from nvfp.kernels.reduce import reduce
from nvfp.nn._random_state import RandomState
from nvfp.nn.functional._matrix import matrix
from nvfp.recipes.context import current_region
from nvfp.recipes.operands import quantize_for_gemm
from nvfp.recipes.plan import LinearPlan, TensorPlan
from nvfp.recipes.state import DelayedState, update_states


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
) -> Array:
    """Return ``x W^T + b``.

    Args:
        x: [..., K], float32/bfloat16/float16; a quantized one counts as float32.
        weight: [N, K]. Its dtype equals x's unless a plan quantizes both.
        bias: [N] or None.
        plan: what each GEMM operand becomes; None computes in the dtype of ``x``.
        states: scaling states, needed when the plan uses delayed scaling.
        weight_pair: the weight already quantized under this plan.
        random: gives the random numbers, needed when the plan rounds gradients stochastically.

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
    x, weight = array("linear", x), array("linear", weight)
    bias = None if bias is None else array("linear", bias)
    check_operands(x, weight, bias, quantized=plan is not None)
    x2 = matrix(x.raw)
    out_shape = (*x.shape[:-1], weight.shape[0])
    b = None if bias is None else bias.raw
    if plan is None:
        y = gemm(x2, weight.raw.T, bias=b)
        node = record("linear", (x, weight, bias), _dense_vjp, saved=(x, weight, _dtype(bias)))
        return wrap(y.reshape(out_shape), node=node)
    if plan.dy.rounding == "stochastic" and random is None:
        do = "pass a RandomState, or round the gradients to nearest"
        raise ArgumentError(message("linear", "random= for stochastic rounding", None, do))
    needs = [needs_grad(a) for a in (x, weight)]
    x_pair = _forward_pair(x2, plan.x, states, "x", col=needs[1])
    w_pair = weight_pair or quantize_weight(weight.raw, plan, states, col=needs[0])
    if needs[0]:
        w_pair.side("col")  # now: a kept pair without it would read the weight in backward, after an update
    y = gemm(
        x_pair.side("row"),
        w_pair.side("row").T,
        bias=b,
        dtype=x.raw.dtype,
        fast_accumulation=plan.fast_fprop,
    )
    x_pair.row = None  # backward reads the column copy only
    saved = (x_pair, w_pair, plan, states, random, x.shape, weight.raw.dtype, _dtype(bias))
    node = record("linear", (x, weight, bias), _quantized_vjp, saved=saved)
    return wrap(y.reshape(out_shape), node=node)


def quantize_weight(raw: Any, plan: LinearPlan, states: LinearStates | None, *, col: bool) -> OperandPair:
    """Quantize a weight [N, K] under a plan; the column copy is made when backward will want it."""
    pair = _forward_pair(raw, plan.w, states, "w", col=col)
    if not col and not plan.w.format.square:
        # A later call may want the other direction of a cached pair: quantize it again from the source.
        pair.make = lambda which: quantize_for_gemm(raw, plan.w, row=which == "row", col=which == "col").side(which)
    return pair


def _forward_pair(raw: Any, plan: TensorPlan, states: LinearStates | None, role: str, *, col: bool) -> OperandPair:
    if states is None:
        return quantize_for_gemm(raw, plan, row=True, col=col)
    return quantize_for_gemm(raw, plan, row=True, col=col, state=states.forward, role=role, recording=states.recording)


def _dense_vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    x, weight, b_dtype = saved
    w, x2, dy2 = weight.raw, matrix(x.raw), matrix(dy.raw)
    dx = wrap(gemm(dy2, w, dtype=x2.dtype).reshape(x.shape)) if needs[0] else None
    dw = wrap(gemm(dy2.T, x2, dtype=w.dtype)) if needs[1] else None
    return dx, dw, _bias_gradient(dy2, b_dtype, needs[2])


def _quantized_vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    x_pair, w_pair, plan, states, random, shape, w_dtype, b_dtype = saved
    dy2 = matrix(dy.raw)
    dx = dw = None
    if needs[0] or needs[1]:
        backward = None if states is None else states.backward
        if backward is not None:
            _begin_gradient_step(backward)
        rng = None
        if plan.dy.rounding == "stochastic":
            draw = random.draw(dy2)
            draw.finish()
            rng = (draw.key, draw.ordinal, draw.step)
        pair = quantize_for_gemm(dy2, plan.dy, row=needs[0], col=needs[1], state=backward, role="dy", rng=rng)
        if needs[0]:
            w = w_pair.side("col")
            dx = wrap(gemm(pair.row, w, dtype=dy2.dtype, fast_accumulation=plan.fast_dgrad).reshape(shape))
        if needs[1]:
            x = x_pair.side("col")
            dw = wrap(gemm(pair.side("col").T, x, dtype=w_dtype, fast_accumulation=plan.fast_wgrad))
    return dx, dw, _bias_gradient(dy2, b_dtype, needs[2])


def _dtype(bias: Array | None) -> Any:
    return None if bias is None else bias.dtype


def _bias_gradient(dy2: Any, dtype: Any, needed: bool) -> Array | None:
    if not needed:
        return None
    if dy2.dtype == float64:  # the bias kernel sums in float32
        return wrap(reduce("sum", dy2, axis=0, dtype=dtype))
    return wrap(bias_grad(dy2, dtype=dtype))


def _begin_gradient_step(state: DelayedState) -> None:
    """Have the state updated when this backward ends; drop amaxes that a failed backward left."""
    run = collect_after_backward("delayed scaling", _EndOfBackward)
    if state not in run.gradients:
        state.discard()
        run.gradients.append(state)


class _EndOfBackward:
    """Collects the gradient states of one backward run and updates them in one launch at its end."""

    def __init__(self) -> None:
        self.gradients: list[DelayedState] = []

    def __call__(self) -> None:
        update_states(self.gradients)
        region = current_region()
        if region is not None:  # a step ends here; outside autocast its exit has ended it
            region.step.finish()


def check_operands(x: Array, weight: Array, bias: Array | None, *, quantized: bool) -> None:
    """Raise unless the shapes fit and the dtypes are floating (and equal, where nothing is quantized)."""
    for name, given in (("x", x), ("weight", weight)):
        if not given._differentiable:
            do = "cast it with .astype(nf.float32) first"
            raise DTypeError(message("linear", f"{name} of a dense floating dtype", given.dtype, do))
    if x.ndim < 1 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            message(
                "linear", "x [..., K] and weight [N, K]", f"{x.shape} and {weight.shape}", "make the last lengths equal"
            )
        )
    if bias is not None and bias.shape != (weight.shape[0],):
        raise ShapeError(
            message("linear", f"bias ({weight.shape[0]},)", bias.shape, "give one value per output feature")
        )
    if not quantized and x.dtype != weight.dtype:
        raise DTypeError(
            message(
                "linear",
                "x and weight of one dtype outside autocast",
                f"{x.dtype} and {weight.dtype}",
                f"cast with x.astype(nf.{weight.dtype}), or make the module with dtype=nf.{x.dtype}",
            )
        )
