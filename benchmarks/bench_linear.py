"""Time a Linear, forward and backward in a row, under every recipe, and its parts one by one.

"In a row": ten steps between two CUDA events, median of five, so that the host may run ahead, as in training.
Parameters, input and incoming gradient are bfloat16, there is no bias; gradients are dropped at each step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from _harness import BFLOAT16, Bench, main
from _recorded import RECORDED
from _row import Limit, Row
from _timing import Call, Timing, time_in_a_row

import nvfp as nf
from nvfp.arrays.array import wrap
from nvfp.kernels._dispatch import place_like
from nvfp.kernels.gemm import gemm, native_scale_layout
from nvfp.kernels.operand import OperandPair
from nvfp.kernels.quantize import quantize
from nvfp.recipes.plan import LinearPlan, TensorPlan

Shape = tuple[int, int, int]  # M tokens, K inputs, N outputs
RECIPES: dict[str, Callable[[], Any]] = {
    "bf16": lambda: None,
    "delayed": nf.recipes.DelayedScaling,
    "current": nf.recipes.Float8CurrentScaling,
    "block": nf.recipes.Float8BlockScaling,
    "mxfp8": nf.recipes.MXFP8BlockScaling,
    "nvfp4": nf.recipes.NVFP4BlockScaling,
}
TARGETS_MS: dict[tuple[str, Shape], float] = {  # on one H200
    ("delayed", (8192, 4096, 16384)): 2.65,
    ("current", (8192, 4096, 16384)): 2.80,
    ("block", (8192, 4096, 16384)): 3.25,
    ("delayed", (16384, 8192, 8192)): 5.15,
    ("current", (16384, 8192, 8192)): 5.35,
    ("block", (16384, 8192, 8192)): 6.35,
}
# Rates of fprop and dgrad, and of wgrad, in FLOP/s, and bytes that each element of x, w and dy moves when it is
# quantized both ways: what the floor is made of (cuBLASLt and a copy on an H200).
_FLOORS = {
    "bf16": (780e12, 780e12, 0),
    "delayed": (1513e12, 1513e12, 4),
    "current": (1513e12, 1513e12, 6),
    "block": (1302e12, 1031e12, 4),
    "mxfp8": (780e12, 780e12, 4),
    "nvfp4": (780e12, 780e12, 3),
}


def bench(b: Bench) -> None:
    shapes: list[Shape] = b.size(
        [(8192, 4096, 16384), (16384, 8192, 8192)], [(8192, 4096, 4096)], [(512, 1024, 1024)], [(256, 512, 512)]
    )
    for shape in shapes:
        for name, recipe in RECIPES.items():
            _step(b, shape, name, recipe())
            b.release()


def _step(b: Bench, shape: Shape, name: str, recipe: Any) -> None:
    m, k, n = shape
    layer = nf.nn.Linear(k, n, bias=False, dtype=nf.bfloat16, device=b.device, rng=nf.random.default_rng(0))
    x, dy = wrap(b.normal((m, k))), wrap(b.normal((m, n)))
    x.requires_grad = True
    held = [x, *layer.parameters().values()]

    def step() -> None:
        for variable in held:
            variable.grad = None
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            y = layer(x)
        y.backward(dy)

    peer = None
    if name == "bf16" and b.torch is not None:
        peer = _in_a_row(b, _torch_step(b, x.raw, layer.weight.raw, dy.raw)).median
    t = _in_a_row(b, step)
    target = TARGETS_MS.get((name, shape)) if b.cuda and "H200" in b.device.name else None
    limits = () if target is None else (Limit(f"speed at the target of {target} ms", target / 1e3 / t.median, 1.0),)
    row = f"linear {name} forward+backward, in a row"
    known = RECORDED.get((row, shape)) if "H200" in b.device.name else None
    roof = b.roofs.get("bfloat16" if name in ("bf16", "mxfp8", "nvfp4") else "float8 fast") if b.cuda else None
    b._add(
        Row(
            f"{row} {shape}", t.median, t.low, t.high, 0, 6 * m * k * n, roof, torch=peer, recorded=known, limits=limits
        )
    )
    parts = _parts(x.raw, layer.weight.raw, dy.raw, None if recipe is None else recipe.linear_plan())
    alone = {part: _in_a_row(b, call).median * 1e3 for part, call in parts.items()}
    told = ", ".join(f"{part} {ms:.3f}" for part, ms in alone.items())
    text = f"    alone, ms: {told}; together {sum(alone.values()):.3f}"
    print(f"{text}{_floor(shape, name, t.median) if 'H200' in b.device.name else ''}", flush=True)


def _floor(shape: Shape, name: str, seconds: float) -> str:
    m, k, n = shape
    fast, wgrad, moved = _FLOORS[name]
    products, moves = 4 * m * k * n / fast + 2 * m * k * n / wgrad, (m * k + k * n + m * n) * moved / 4.25e12
    floor = products + moves
    return f"; floor {floor * 1e3:.3f} (products {products * 1e3:.3f}), x {seconds / floor:.2f}"


def _parts(x: Any, w: Any, dy: Any, plan: LinearPlan | None) -> dict[str, Call]:
    """What a step consists of: each tensor's quantization, both ways, and the three products."""
    if plan is None:
        products = (x, w.T), (dy, w), (dy.T, x)
        return {name: partial(gemm, *sides) for name, sides in zip(("fprop", "dgrad", "wgrad"), products, strict=True)}
    casts = {name: _cast(raw, part) for name, raw, part in (("x", x, plan.x), ("w", w, plan.w), ("dy", dy, plan.dy))}
    px, pw, pdy = (casts[name]() for name in ("x", "w", "dy"))
    sides = (
        ("fprop", px.side("row"), pw.side("row").T, plan.fast_fprop),
        ("dgrad", pdy.side("row"), pw.side("col"), plan.fast_dgrad),
        ("wgrad", pdy.side("col").T, px.side("col"), plan.fast_wgrad),
    )
    calls: dict[str, Call] = {f"quantize {name}": call for name, call in casts.items()}
    return calls | {
        name: partial(gemm, left, right, dtype=BFLOAT16, fast_accumulation=fast) for name, left, right, fast in sides
    }


def _cast(raw: Any, plan: TensorPlan) -> Callable[[], OperandPair]:
    words = {}
    if plan.scaling == "delayed":
        words = {name: place_like(np.ones((), np.float32), raw) for name in ("scale", "amax_out")}
    rng = (2024, 0, place_like(np.zeros((), np.int64), raw))
    return partial(
        quantize, raw, plan.format, row=True, col=True, amax_epsilon=plan.amax_epsilon, rounding=plan.rounding,
        rng=rng if plan.rounding == "stochastic" else None, rotation=plan.rotation,
        scale_layout=native_scale_layout(raw, plan.format), **words,
    )  # fmt: skip


def _torch_step(b: Bench, x: Any, w: Any, dy: Any) -> Call:
    tx, tw, tdy = (b.tensor(a).detach() for a in (x, w, dy))
    tx.requires_grad_(True)
    tw.requires_grad_(True)

    def step() -> None:
        tx.grad = tw.grad = None
        b.torch.nn.functional.linear(tx, tw).backward(tdy)  # type: ignore[union-attr]

    return step


def _in_a_row(b: Bench, call: Call, steps: int = 10, groups: int = 5) -> Timing:
    """Time calls of which the host may enqueue the next before the GPU has done the last."""
    return time_in_a_row(call, steps=steps, groups=groups) if b.cuda else b._time(call)


if __name__ == "__main__":
    main(bench)
