"""README's sample runs as written."""

from __future__ import annotations

import re

from tests.structure.tree import ROOT


def test_the_sample_runs() -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    names: dict[str, object] = {}
    exec(compile(block[1], "README.md", "exec"), names)
    loss, q = names["loss"], names["q"]
    assert loss.shape == ()  # type: ignore[attr-defined]
    assert q.nbytes == 2048 * 768 * 4.5 / 8 + 4  # type: ignore[attr-defined]
