"""Fails when a test was skipped for a reason that is not declared: ``check_skips.py REASONS ALLOWED``.

REASONS is what pytest wrote (NVFP_SKIP_REPORT), one reason a line; ALLOWED holds one regular
expression a line, each matching from the reason's start.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def undeclared(reasons: list[str], allowed: list[str]) -> list[str]:
    """Return the reasons that no expression matches."""
    patterns = [re.compile(line) for line in allowed if line.strip() and not line.startswith("#")]
    return [reason for reason in reasons if not any(p.match(reason.removeprefix("Skipped: ")) for p in patterns)]


def main() -> int:
    reasons, allowed = (Path(name).read_text(encoding="utf-8").splitlines() for name in sys.argv[1:3])
    wrong = undeclared(reasons, allowed)
    for reason in wrong:
        print(f"skipped for a reason that {sys.argv[2]} does not declare: {reason}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
