"""Writes the tables of docs/recipes.md from the code and benchmarks/crossover.json: ``python -m docs.make_recipes``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nvfp import inspect, recipes
from nvfp.recipes.base import MMParams
from nvfp.recipes.small_gemms import CROSSOVERS

PAGE = Path(__file__).with_name("recipes.md")
MEASURED = Path(__file__).parents[1] / "benchmarks" / "crossover.json"
RECIPES: dict[str, recipes.Recipe] = {
    "delayed": recipes.DelayedScaling(),
    "current": recipes.Float8CurrentScaling(),
    "block": recipes.Float8BlockScaling(),
    "mxfp8": recipes.MXFP8BlockScaling(),
    "nvfp4": recipes.NVFP4BlockScaling(),
}
CHIPS = {"cpu": "CPU", "8.0": "8.0 (A100)", "8.9": "8.9 (Ada)", "9.0": "9.0 (H100, H200)", "10.0": "10.0 (B200)",
         "12.0": "12.0 (RTX 50)"}  # fmt: skip


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def support() -> str:
    """Recipe x chip: native GEMMs, or where operands are expanded to."""
    rows = []
    for recipe in RECIPES.values():
        told = [inspect.explain_recipe(recipe, chip) for chip in CHIPS]
        cells = ["native" if t.native else " ".join(dict.fromkeys(o.multiplied for o in t)) for t in told]
        rows.append([f"`{recipe}`", *cells, str(inspect.alignment(recipe))])
    return table(["recipe", *CHIPS.values(), "no padding at multiples of"], rows)


def operands() -> str:
    """What each tensor becomes under each recipe, by its two copies."""
    rows = []
    for recipe in RECIPES.values():
        plan = recipe.linear_plan()
        for name, tensor in (("x", plan.x), ("W", plan.w), ("dy", plan.dy)):
            fmt = tensor.format
            assert fmt is not None, "the built-in recipes quantize every tensor"
            block = "tensor" if fmt.block_shape is None else "{} x {}".format(*fmt.block_shape)
            scale = f"{tensor.scaling}, {fmt.scale.name}" + ", float32 per tensor" * fmt.tensor_scale
            rows.append([f"`{recipe}`" * (name == "x"), name, fmt.element.name, block, scale, tensor.rounding,
                         tensor.turned or "-"])  # fmt: skip
    return table(["recipe", "tensor", "element", "block", "scale", "rounding", "rotation of the column copy"], rows)


def options() -> str:
    """Every argument of every recipe with its default."""
    rows = []
    for recipe in (*RECIPES.values(), None):
        kind = recipes.CustomRecipe if recipe is None else type(recipe)
        for field in dataclasses.fields(kind):
            if field.name.startswith("fp8_dpa") or field.name == "fp8_mha":
                continue
            rows.append([f"`{kind.__name__}`", f"`{field.name}`", f"`{_default(field)}`"])
    return table(["recipe", "argument", "default"], rows)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    if isinstance(field.default, MMParams):
        return f"MMParams({field.default.use_split_accumulator})"
    return repr(field.default)


def measured() -> str:
    """Time of a Linear, forward and backward, by recipe, and its ratio to bfloat16."""
    data = json.loads(MEASURED.read_text(encoding="utf-8"))
    kinds = [kind for kind in ("graph_ms", "eager_ms") if any(kind in row for row in data["rows"])]
    what = "`nf.nn.Linear` without bias in bfloat16, forward and backward, ms and how often as fast as bfloat16:"
    parts = [f"{data['gpu']}, {data['date']}, {what}"]
    for kind in kinds:
        found = {(r["m"], r["k"], r["n"], r["recipe"]): r[kind] for r in data["rows"] if kind in r}
        rows = []
        for m, k, n in dict.fromkeys(key[:3] for key in found):
            base = found[m, k, n, "bf16"]
            cells = [_cell(found.get((m, k, n, name)), base) for name in RECIPES]
            rows.append([f"{m} x {k} x {n}", f"{base:.3f}", *cells])
        how = "as a CUDA graph" if kind == "graph_ms" else "ten steps in a row, launched by the host"
        parts += ["", f"{how[0].upper()}{how[1:]}:", "", table(["tokens x in x out", "bf16", *RECIPES], rows)]
    return "\n".join(parts)


def _cell(time: float | None, base: float) -> str:
    return "-" if time is None else f"{time:.3f} ({base / time:.2f}x)"


def rule() -> str:
    """The rows of `recipes.small_gemms`, and the least sizes that gain by them."""
    rows = []
    for row in CROSSOVERS:
        wide = next(m for m in range(16, 1 << 20, 16) if row.gains(m, 4096, 4096))
        figures = (f"{row.saved:.2g}", f"{row.cost:.3g}", f"{row.fixed:.2g}", str(row.square), str(wide))
        rows.append(["{}.{}".format(*row.compute), f"{row.dtype}, {row.scaling}", *figures, row.source])
    head = ["chip", "input", "saved, s per multiply-add", "cost, s per element", "fixed, s", "least M = N = K",
            "least M at N = K = 4096", "source"]  # fmt: skip
    return table(head, rows)


SECTIONS = {"support": support, "operands": operands, "options": options, "measured": measured, "rule": rule}


def render(text: str) -> str:
    """Return the page with every section between its marks written anew.

    Raises:
        ValueError: a section without its marks.
    """
    for name, make in SECTIONS.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if begin not in text or end not in text:
            raise ValueError(f"{PAGE.name} has no section {name}")
        body = f"{begin}\n{make()}\n{end}"
        before, after = text.partition(begin)[0], text.partition(end)[2]
        text = before + body + after
    return text


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
