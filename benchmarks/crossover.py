"""Measure from which size on a recipe makes a Linear faster than bfloat16, and fit the rows of `recipes.small_gemms`.

    python benchmarks/crossover.py                 # on a GPU; writes benchmarks/crossover.json and prints the fits
    python -m docs.make_recipes                    # then the tables of docs/recipes.md

Forward and backward of `nf.nn.Linear` without bias in bfloat16, ten steps in a row between two CUDA events: launched by
the host, and replayed as a CUDA graph. The fit is to the graph's times, each difference to bfloat16 weighed by
bfloat16's time, so that small layers count as much as large ones.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from _timing import time_in_a_row
from bench_linear import RECIPES, Shape

import nvfp as nf

OUT = Path(__file__).with_name("crossover.json")
TOKENS = (512, 2048, 8192)
LAYERS = (
    (768, 768), (768, 3072), (1024, 4096), (2048, 2048), (2048, 8192), (4096, 4096), (4096, 16384), (8192, 8192),
)  # fmt: skip
SHAPES: list[Shape] = [(m, k, n) for k, n in LAYERS for m in TOKENS]


def measure(shape: Shape, recipe: Any) -> dict[str, float]:
    """Milliseconds of one layer's forward and backward, both ways."""
    m, k, n = shape
    rng = nf.random.default_rng(0, device="cuda")
    layer = nf.nn.Linear(k, n, bias=False, dtype=nf.bfloat16, device="cuda", rng=rng)
    x, dy = (rng.normal(size=(m, width), dtype=nf.bfloat16, device="cuda") for width in (k, n))
    x.requires_grad = True

    def step() -> nf.Array:
        x.grad = layer.weight.grad = None
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            y = layer(x)
        y.backward(dy)
        return y.detach()

    graph = nf.cuda_graph(step)
    times = {"eager_ms": step, "graph_ms": graph}
    return {name: round(time_in_a_row(call, steps=10, groups=5).median * 1e3, 4) for name, call in times.items()}


def fit(rows: list[dict[str, Any]], recipe: str) -> dict[str, float]:
    """``saved``, ``cost`` and ``fixed`` in seconds: saved M N K - cost (M K + N K + M N) - fixed is the gain."""
    base = {(r["m"], r["k"], r["n"]): r["graph_ms"] / 1e3 for r in rows if r["recipe"] == "bf16"}
    own = [(r["m"], r["k"], r["n"], r["graph_ms"] / 1e3) for r in rows if r["recipe"] == recipe]
    terms = [(m * n * k, -(m * k + n * k + m * n), -1.0) for m, k, n, _ in own]
    weights = np.array([1 / base[m, k, n] for m, k, n, _ in own])
    gain = np.array([base[m, k, n] - t for m, k, n, t in own])
    found = np.linalg.lstsq(np.array(terms) * weights[:, None], gain * weights, rcond=None)[0]
    return {name: float(f"{value:.4g}") for name, value in zip(("saved", "cost", "fixed"), found, strict=True)}


def main() -> None:
    """Measure, print and write."""
    device = nf.Device("cuda")
    rows: list[dict[str, Any]] = []
    for shape in SHAPES:
        for name, recipe in RECIPES.items():
            rows.append({"recipe": name, **dict(zip("mkn", shape, strict=True)), **measure(shape, recipe())})
        print(shape, {r["recipe"]: r["graph_ms"] for r in rows[-len(RECIPES) :]}, flush=True)
    fits = {name: fit(rows, name) for name in RECIPES if name != "bf16"}
    print("\n".join(f"{name}: {values}" for name, values in fits.items()))
    head = {"gpu": device.name, "compute": device.compute_capability, "date": str(date.today()), "fits": fits}
    lines = ",\n".join(json.dumps(row) for row in rows)
    OUT.write_text(f'{json.dumps(head)[:-1]}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
