"""Prints requirements of pyproject.toml: ``extra NAME`` (an extra's), ``lower`` (core ones at their lower bounds)."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def lower() -> list[str]:
    """Return each core dependency pinned to its lower bound."""
    found = []
    for requirement in PROJECT["dependencies"]:
        match = re.fullmatch(r"([\w.-]+)>=([\w.]+)(,<[\w.]+)?", requirement)
        if match is None:
            raise SystemExit(
                f"pyproject.toml: a core dependency needs a lower bound (name>=version), not {requirement!r}"
            )
        found.append(f"{match[1]}=={match[2]}")
    return found


if __name__ == "__main__":
    print(*(lower() if sys.argv[1] == "lower" else PROJECT["optional-dependencies"][sys.argv[2]]), sep="\n")
