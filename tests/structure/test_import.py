"""``import nvfp`` is quick, loads nothing heavy, and works from any folder."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.structure.tree import BRIDGES, ROOT, modules

HEAVY = ("numba", "llvmlite", "cupy", "torch", "jax", "matplotlib", "cuda", "nvmath", "cudnn", "tqdm")
# CPU time of the one thread, so that what else the machine does decides nothing; files are warm after the first run.
CODE = """
import time
start = time.thread_time()
import nvfp
print(time.thread_time() - start)
import sys
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def _run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_import_time_and_modules() -> None:
    seconds, loaded = [], ""
    for _ in range(5):
        first, loaded = _run(CODE).splitlines()
        seconds.append(float(first))
    heavy = sorted(set(HEAVY) & set(loaded.split()))
    assert not heavy, f"import nvfp loads {heavy}"
    assert min(seconds) < 0.3, f"import nvfp takes {min(seconds):.3f} s (best of 5; limit 0.3 s)"


def test_rooms_load_nothing_heavy() -> None:
    """Every room but the kernel twins can be imported without Numba, CuPy and the rest."""
    rooms = [m for m in modules() if not m.startswith(("nvfp.kernels.c", "nvfp.__main__", *BRIDGES))]
    loaded = _run(
        f"import sys\nfor m in {rooms!r}: __import__(m)\nprint(*{{m.partition('.')[0] for m in sys.modules}})"
    )
    heavy = sorted(set(HEAVY) & set(loaded.split()))
    assert not heavy, f"importing the rooms loads {heavy}"


@pytest.mark.parametrize("name", [m for m in modules() if m.count(".") == 1 and not m.endswith("__main__")])
def test_each_room_imports_first(name: str) -> None:
    """No room depends on another having been imported before it."""
    _run(f"import {name}")
