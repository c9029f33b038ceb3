"""Prints the shell block of README.md that follows the marker ``<!-- ci:NAME -->``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def command(name: str) -> str:
    """Return the fenced block after the marker, as written."""
    block = re.search(rf"<!-- ci:{name} -->\s*```(?:bash|sh)?\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    if block is None:
        raise SystemExit(f"README.md has no shell block after <!-- ci:{name} -->")
    return block[1]


if __name__ == "__main__":
    sys.stdout.write(command(sys.argv[1]))
