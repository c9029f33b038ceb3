"""The examples of docs/formats.md run, in one session from top to bottom."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

from nvfp.dtypes.formats import FORMATS

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


def test_examples_run() -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```pycon\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, PAGE.name, str(PAGE), 0)
    assert len(examples.examples) > 40
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples, out=report.append)
    assert result.failed == 0, "".join(report)


def test_every_row_has_its_section() -> None:
    headings = re.findall(r"^## (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(FORMATS) <= set(headings)
