"""Put the figures of a run into RESULTS.md: ``python benchmarks/results.py run.json``.

A run on the CPU replaces the CPU section, one on a GPU the GPU section; the rest of the page stays.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from _recorded import Recorded
from _row import HEADINGS, Limit, Row, rate_text, roofs_text

PAGE = Path(__file__).with_name("RESULTS.md")


def section(report: dict[str, Any]) -> str:
    """Return a run as Markdown: what it stands on, then one line for each row."""
    lines = [
        f"- Device: {report['name']}",
        f"- Date: {report['date']}, command: `{report['command']}`",
        f"- Load average at the start: {report['load']} (a busy machine shows in every figure)",
        f"- Versions: {', '.join(f'{name} {version}' for name, version in report['versions'].items())}",
        f"- Roofs: {roofs_text(report['roofs'])}; a copy in this run: {rate_text(report['copy now'], 'B')}",
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"| --- {'| ---: ' * (len(HEADINGS) - 1)}|",
    ]
    lines += [f"| {' | '.join(_row(fields).cells())} |" for fields in report["rows"]]
    return "\n".join(lines)


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
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    report = json.loads(Path(sys.argv[1]).read_text())
    PAGE.write_text(replaced(PAGE.read_text(), report["device"], section(report)))


if __name__ == "__main__":
    main()
