"""Fails unless a wheel holds every file of the package that git would track: ``check_wheel.py WHEEL``."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "nvfp"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    wanted = {name for name in listed if name and (ROOT / name).is_file()}
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        inside = set(wheel.namelist())
    missing = sorted(wanted - inside)
    sources = sum(name.endswith((".cu", ".cuh")) for name in wanted)
    print(f"{Path(sys.argv[1]).name}: {len(inside)} files, {sources} CUDA sources and headers, {len(missing)} missing")
    print(*missing, sep="\n", end="")
    return 1 if missing or not sources else 0


if __name__ == "__main__":
    raise SystemExit(main())
