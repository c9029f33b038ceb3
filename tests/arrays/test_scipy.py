"""SciPy and scikit-learn on nvfp arrays: the array API's first users. Both need the `oracles` extra."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.devices import need_oracle

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize(("package", "count"), [("scipy", 24), ("sklearn", 13)])
def test_functions_take_and_give_arrays(package: str, count: int) -> None:
    """Under array API dispatch nvfp arrays come back; scikit-learn also works without it, through NumPy's protocols."""
    need_oracle(package)
    env = {
        **os.environ,
        "SCIPY_ARRAY_API": "1",
        "PYTHONPATH": os.pathsep.join(p for p in (os.getcwd(), *sys.path) if p),
    }
    command = [sys.executable, "-m", "tests.arrays.scipy_programs", package]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.strip() == f"{count} functions"
