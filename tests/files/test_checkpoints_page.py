"""The example of docs/checkpoints.md runs as it stands there, and its table names every dialect and part."""

from __future__ import annotations

import re
from pathlib import Path

from nvfp.files.dialects.reading import DIALECTS

PAGE = (Path(__file__).parents[2] / "docs/checkpoints.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "docs/checkpoints.md", "exec"), {})


def test_the_table_is_complete() -> None:
    for dialect in DIALECTS.values():
        assert f"| `{dialect.name}` |" in PAGE
        assert all(f"`{method}`" in PAGE for method in dialect.methods)
        parts = [part for row in dialect.layouts for part in row.parts.values()]
        for suffix in {part.pattern[2:] for part in parts} - {"", ".blocks", ".scales"}:
            assert f"weight{suffix}`" in PAGE or f"X{suffix}`" in PAGE
