"""Writes the tables of docs/performance.md from a count: ``python -m docs.make_performance`` (no GPU is needed).

One forward and backward of a TransformerLayer runs on `tests.fake_gpu`, which notes every launch with the bytes of the
arrays that it names. ``--json`` writes nothing, but prints the page and what tests/nn/test_launches.py wants to know.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("performance.md")
HIDDEN, HEADS, LENGTH, BATCH = 4096, 32, 2048, 4
COPY = 4.25e12  # bytes per second of a large copy on an H200
ATTENTION = {"sdpa": 609e12, "sdpa_backward": 480e12}
# FLOP per second of fprop and dgrad, and of wgrad, on an H200; formats that it lacks multiply in bfloat16.
RATES = {
    "bf16": (780e12, 780e12), "delayed": (1513e12, 1513e12), "current": (1513e12, 1513e12),
    "block": (1302e12, 1031e12), "mxfp8": (780e12, 780e12), "nvfp4": (780e12, 780e12),
}  # fmt: skip
TARGETS = {"bf16": 15.8, "delayed": 10.0, "current": 10.6, "block": 11.8, "mxfp8": 17.5, "nvfp4": 18.5}
PEAKS = {"bf16": "1.97", "delayed": "2.35", "current": "2.73", "block": "2.61"}  # GiB, of TransformerEngine 2.20.2
# Kernel, what it does, the input functions or the macro it is compiled with, why it is there; the first that fits.
ACTIVATION, GRADIENT, NORM = (1, 2), (3, 4), (5,)
BEFORE_CODES = "the scale must be known before the first code"
WORK: tuple[tuple[str, str, tuple[int, ...] | str | None, str], ...] = (
    ("quantize_", "norm + quantize, both copies", NORM, "x once, codes once"),
    ("quantize_", "activation + quantize, both copies", ACTIVATION, "its input once, codes once"),
    ("quantize_", "activation gradient + bias gradient + quantize", GRADIENT, "both inputs once, codes once"),
    ("quantize_", "quantize + bias gradient, both copies", "BIAS_GRAD", "dY once, codes once"),
    ("quantize_", "quantize", None, "a weight, or what attention gave"),
    ("amax_flat", "largest magnitude", None, BEFORE_CODES),
    ("hadamard", "largest magnitudes, plain and rotated", None, BEFORE_CODES),
    ("layer_norm_statistics", "norm: statistics and largest magnitude", None, BEFORE_CODES),
    ("layer_norm_vjp", "norm gradient + the residual's gradient", None, "dY, x and the other gradient once"),
    ("layer_norm_finish", "norm gradient: sums of rows", None, "partial sums in a fixed order"),
    ("layer_norm", "norm", None, "its result is read in bfloat16"),
    ("activation_vjp", "activation gradient, with its largest magnitude", "RECORD", BEFORE_CODES),
    ("activation", "activation, with its largest magnitude", "RECORD", BEFORE_CODES),
    ("activation_vjp", "activation gradient", None, "its result is read in bfloat16"),
    ("activation", "activation", None, "its result is read in bfloat16"),
    ("bias_grad_partial", "bias gradient", None, "dY as it is"),
    ("bias_grad_finish", "bias gradient: sums of tiles", None, "partial sums in a fixed order"),
    ("dequantize_", "expand an operand to bfloat16", None, "no tensor core for the format"),
    ("amax_history_update", "histories and scales of all tensors", None, "once forward, once backward"),
    ("advance_steps", "step word of stochastic rounding", None, "once"),
    ("elementwise", "residual addition", None, "the product is rounded before it is added"),
)  # fmt: skip


@dataclass
class Line:
    """One kind of work of a step: launches, bytes, FLOP, seconds at the roofs, and why it is there."""

    why: str
    launches: int = 0
    moved: int = 0
    flops: float = 0.0
    seconds: float = 0.0


@dataclass
class Step:
    """What was noted of a step.

    Attributes:
        events: its work.
        saved: bytes that forward leaves for backward, its result included.
        peak: most bytes at one time, parameters, input and gradients included.
    """

    events: list[Any]
    saved: int
    peak: int


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, its figures to the right."""
    lines = [head, ["---" if name in ("work", "recipe", "why") else "---:" for name in head], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def named(event: Any) -> tuple[str, str]:
    """What a piece of work does, and why it is there."""
    if event.kind == "gemm":
        return "GEMM", "fprop, dgrad and wgrad of four layers"
    if event.kind == "attention":
        return f"attention {'forward' if event.name == 'sdpa' else 'backward'}", "cuDNN"
    if event.kind == "memset":
        return "memset of words", "a maximum or a counter starts at 0"
    if event.name == "elementwise" and event.moved < 1024:
        return "tensor factors into alpha", "two words of NVFP4 operands"
    macros = dict(event.macros)
    for start, work, wanted, why in WORK:
        fits = wanted is None or (wanted in macros if isinstance(wanted, str) else macros.get("INPUT") in wanted)
        if event.name.startswith(start) and fits:
            return work, why
    raise LookupError(f"no words for {event}")


def lines(name: str, events: list[Any]) -> dict[str, Line]:
    """The kinds of work of a step, in the order in which they first run."""
    found: dict[str, Line] = {}
    products = 0
    for event in events:
        work, why = named(event)
        line = found.setdefault(work, Line(why))
        line.launches += 1
        line.moved += event.moved
        line.flops += event.flops
        if event.kind == "gemm":
            wgrad = products >= 4 and products % 2 == 1
            products += 1
            line.seconds += event.flops / RATES[name][wgrad]
        else:
            line.seconds += event.flops / ATTENTION[event.name] if event.flops else event.moved / COPY
    return found


def measured() -> dict[str, Step]:
    """Recipe -> what one step of the layer asks of the GPU."""
    from tests.fake_gpu import MEMORY, fake_gpu

    events = fake_gpu()
    import nvfp as nf
    from nvfp import recipes

    made: dict[str, Any] = {
        "bf16": None, "delayed": recipes.DelayedScaling(), "current": recipes.Float8CurrentScaling(),
        "block": recipes.Float8BlockScaling(), "mxfp8": recipes.MXFP8BlockScaling(),
        "nvfp4": recipes.NVFP4BlockScaling(),
    }  # fmt: skip
    found = {}
    for name, recipe in made.items():
        options: dict[str, Any] = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "dtype": nf.bfloat16}
        layer = nf.nn.TransformerLayer(HIDDEN, 4 * HIDDEN, HEADS, **options)
        x, dy = (nf.empty((BATCH, LENGTH, HIDDEN), dtype=nf.bfloat16) for _ in range(2))
        x.requires_grad = True
        y, saved = None, 0
        for _ in range(2):  # the first makes plans and state
            layer.zero_grad()
            x.grad = y = None
            events.clear()
            MEMORY.peak = before = MEMORY.live
            with nf.autocast(enabled=recipe is not None, recipe=recipe):
                y = layer(x)
            saved = MEMORY.live - before
            y.backward(dy)
        found[name] = Step(list(events), saved, MEMORY.peak)
        del layer, x, dy, y
    return found


def tables(steps: dict[str, Step]) -> dict[str, str]:
    """The generated parts of the page, by name."""
    found, summary = {}, []
    for name, step in steps.items():
        work = lines(name, step.events)
        ours = [line for key, line in work.items() if key != "GEMM" and not key.startswith(("attention", "memset"))]
        total = sum(line.seconds for line in work.values())
        summary.append([
            name, str(sum(line.launches for line in ours)), str(work["GEMM"].launches), "2",
            str(work["memset of words"].launches if "memset of words" in work else 0),
            f"{sum(line.moved for line in ours) / 1e6:,.0f}", f"{sum(line.seconds for line in ours) * 1e3:.2f}",
            f"{total * 1e3:.2f}", f"{TARGETS[name]}", f"{step.peak / 2**30:.2f}", PEAKS.get(name, ""),
        ])  # fmt: skip
        rows = [
            [key, str(line.launches), f"{line.moved / 1e6:,.1f}", f"{line.seconds * 1e6:,.0f}", line.why]
            for key, line in work.items()
        ]
        found[name] = table(("work", "launches", "MB", "us at the roofs", "why"), rows)
    head = ("recipe", "kernels", "GEMMs", "attention", "memsets", "MB of the kernels", "their ms", "all, ms",
            "target, ms", "peak, GiB", "TE's peak")  # fmt: skip
    return {"summary": table(head, summary), **found}


def page(parts: dict[str, str]) -> str:
    """The page with its generated parts replaced."""
    text = PAGE.read_text(encoding="utf-8")
    for name, part in parts.items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        assert mark.search(text), f"no place for {name}"
        text = mark.sub(lambda found, part=part: found[1] + part + found[2], text)  # type: ignore[misc]
    return text


def counted() -> dict[str, dict[str, int]]:
    """Launches of the steps of tests/nn/test_launches.py, by the name of the table there."""
    from tests.nn import test_launches as steps
    from tests.recipes.every import RECIPES

    makers = {"LINEAR": steps.linear_step, "TRAINING": steps.training_step, "LAYER": steps.layer_step}
    return {table: {name: steps.launches(make(name)) for name in RECIPES} for table, make in makers.items()}


def main() -> None:
    """Write the page, or print what it would be and the counts."""
    steps = measured()
    text = page(tables(steps))
    if "--json" in sys.argv[1:]:
        from tests.nn.test_fused import apart

        with apart():
            saved = {name: (step.saved, steps[name].saved) for name, step in measured().items()}
        peaks = {name: step.peak / 2**30 for name, step in steps.items()}
        print(json.dumps({"page": text, "counts": counted(), "saved": saved, "peaks": peaks}))
    else:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
