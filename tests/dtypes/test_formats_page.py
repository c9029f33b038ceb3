"""The examples of docs/formats.md run, in one session from top to bottom."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from nvfp.dtypes.conventions import CONVENTIONS
from nvfp.dtypes.elements import ELEMENTS
from nvfp.dtypes.formats import FORMATS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "formats.md"


def test_examples_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # one example reads a file of tests/data
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```pycon\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    examples = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, PAGE.name, str(PAGE), 0)
    assert len(examples.examples) > 200
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples, out=report.append)
    assert result.failed == 0, "".join(report)


def test_every_row_has_its_section() -> None:
    headings = re.findall(r"^## (\w+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(FORMATS) <= set(headings)


def table_rows(heading: str) -> list[list[str]]:
    """The cells of the first table whose first column is called ``heading``."""
    text = PAGE.read_text(encoding="utf-8")
    start = text.index(f"\n| {heading} |") + 1
    lines = text[start : text.index("\n\n", start)].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_of_rows() -> None:
    """Element, block, scale and bits of the first table are the rows' own."""
    names = {"whole tensor": None}
    for cells in table_rows("dtype"):
        fmt = FORMATS[cells[0].split("`")[1]]
        assert cells[1].strip("`") == fmt.element.name
        assert names.get(cells[2], cells[2]) == (None if fmt.block is None else str(fmt.block))
        assert cells[3].strip("`") == fmt.scale.name
        assert (cells[4] == "`float32`") == fmt.tensor_scale
        assert float(cells[5]) == fmt.bits_per_value
        assert ("becomes NaN" in cells[6]) == (fmt.nonfinite == "nan_block")
    assert len(table_rows("dtype")) == len(FORMATS)


def test_the_table_of_elements() -> None:
    """Bits, bias and the largest code of the second table."""
    told = {cells[0].split("`")[1]: cells for cells in table_rows("element")}
    assert set(told) == {e.name for e in ELEMENTS.values() if e.bits <= 8}
    for name, cells in told.items():
        e = ELEMENTS[name]
        if not e.integer:
            assert cells[1] == f"{int(e.signed)}/{e.exponent_bits}/{e.mantissa_bits}"
            assert int(cells[2]) == e.bias
            value, code = cells[3].split(" = ")
            assert int(code, 0) == e.max_code
            assert (float(2 ** int(value[2:])) if value.startswith("2^") else float(value)) == e.max


def test_every_convention_is_told() -> None:
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("## Conventions") : text.index("## How codes")]
    for row in CONVENTIONS:
        assert f'| `"{row.stack}"` |' in section
        assert section.count(f'"{row.stack}"') >= 2, f"no example of {row.stack}"
