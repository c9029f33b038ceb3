"""Put the figures of a run into RESULTS.md: ``python benchmarks/results.py run.json [--keep]``.

A run on the CPU replaces the CPU section, one on a GPU the GPU section; the rest of the page stays. With ``--keep``
the rows that the run lacks (``run.py --only``) stay too, with a star and the line that says what they stand on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from _recorded import Recorded
from _row import HEADINGS, Limit, Row, rate_text, roofs_text

PAGE = Path(__file__).with_name("RESULTS.md")


def section(report: dict[str, Any], old: str = "") -> str:
    """Return a run as Markdown: what it stands on, then one line for each row.

    Args:
        report: the run.
        old: the section so far, whose other rows are kept; empty to keep none.
    """
    rows = {fields["name"]: f"| {' | '.join(_row(fields).cells())} |" for fields in report["rows"]}
    kept = [line for line in _rows(old) if _name(line) not in rows]
    lines = [
        f"- Device: {report['name']}",
        f"- Date: {report['date']}, command: `{report['command']}`",
        f"- Load average at the start: {report['load']} (a busy machine shows in every figure)",
        f"- Versions: {', '.join(f'{name} {version}' for name, version in report['versions'].items())}",
        f"- Roofs: {roofs_text(report['roofs'])}; a copy in this run: {rate_text(report['copy now'], 'B')}",
        *_earlier(old, bool(kept)),
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"| --- {'| ---: ' * (len(HEADINGS) - 1)}|",
    ]
    return "\n".join([*lines, *rows.values(), *(line if _STAR in line else _starred(line) for line in kept)])


_STAR = " \\* |"


def _rows(old: str) -> list[str]:
    """The rows of a section's table."""
    lines = [line for line in old.splitlines() if line.startswith("| ")]
    return [line for line in lines if not line.startswith(("| case |", "| ---"))]


def _name(line: str) -> str:
    return line.split(" | ")[0].removeprefix("| ").removesuffix(" \\*")


def _starred(line: str) -> str:
    return line.replace(" |", _STAR, 1)


def _earlier(old: str, needed: bool) -> list[str]:
    """What the kept rows stand on."""
    if not needed:
        return []
    known = [line for line in old.splitlines() if line.startswith("- Rows with a star")]
    date = next(line for line in old.splitlines() if line.startswith("- Date: ")).removeprefix("- Date: ")
    return known or [f"- Rows with a star are of an earlier run: {date}"]


def _row(fields: dict[str, Any]) -> Row:
    known = fields["recorded"]
    limits = tuple(Limit(**limit) for limit in fields.get("limits", ()))
    return Row(**{**fields, "recorded": Recorded(**known) if known else None, "limits": limits})


def replaced(page: str, kind: str, text: str) -> str:
    """Return the page with another text between the markers of a kind of device."""
    first, last = f"<!-- {kind} -->", f"<!-- end {kind} -->"
    before, found, rest = page.partition(first)
    _, closed, after = rest.partition(last)
    if not (found and closed):
        raise SystemExit(f"RESULTS.md has no section between {first} and {last}")
    return f"{before}{first}\n{text}\n{last}{after}"


def main() -> None:
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--keep"]):
        raise SystemExit(__doc__)
    report, page = json.loads(Path(sys.argv[1]).read_text()), PAGE.read_text()
    old = page.partition(f"<!-- {report['device']} -->")[2].partition("<!-- end")[0] if sys.argv[2:] else ""
    PAGE.write_text(replaced(page, report["device"], section(report, old)))


if __name__ == "__main__":
    main()
