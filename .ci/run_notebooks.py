"""Executes notebooks in a scratch copy and fails at the first error: ``run_notebooks.py NOTEBOOK...``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def main() -> int:
    for name in sys.argv[1:]:
        start = time.perf_counter()
        notebook = nbformat.read(name, as_version=4)
        folder = {"metadata": {"path": str(Path(name).parent)}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=folder).execute()
        print(f"{name}: {len(notebook.cells)} cells in {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
