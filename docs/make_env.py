"""Writes docs/env.md from the table in nvfp/config.py: ``python -m docs.make_env``."""

from __future__ import annotations

from pathlib import Path

from nvfp.config import SWITCHES

PAGE = Path(__file__).with_name("env.md")
HEAD = """# Environment switches

Written by `python -m docs.make_env` from `nvfp/config.py`; a test compares them.

| variable | unset | meaning |
| --- | --- | --- |
"""
TESTS = """
Read by the tests only:

| variable | unset | meaning |
| --- | --- | --- |
"""


def render() -> str:
    """Return the page's text."""
    rows = dict.fromkeys(("library", "tests"), "")
    for s in SWITCHES.values():
        rows[s.scope] += f"| `{s.name}` | {f'`{s.default}`' if s.default else ''} | {s.doc} |\n"
    return HEAD + rows["library"] + TESTS + rows["tests"]


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
