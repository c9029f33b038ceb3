"""The quick starts run and do what they print."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_quickstart(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "quickstart.py"), run_name="__main__")
    assert "out (2048, 3072) float32" in capsys.readouterr().out


def test_quickstart_functional_learns(capsys: pytest.CaptureFixture[str]) -> None:
    losses = runpy.run_path(str(EXAMPLES / "quickstart_functional.py"))["main"]()
    assert len(losses) == 10 and losses[-1] < 0.25 * losses[0]
    assert "gradient of x (256, 64)" in capsys.readouterr().out
