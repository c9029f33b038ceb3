"""``python -m nvfp``: complete, calm without a GPU, and exact about what is missing."""

from __future__ import annotations

import pytest

from nvfp import __main__ as report
from nvfp.dtypes.formats import FORMATS
from nvfp.errors import MissingDependencyError


def test_report_has_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([]) == 0
    text = capsys.readouterr().out
    for part in ("versions", "devices", "requirements of CUDA devices", "dtypes on cpu", *FORMATS):
        assert part in text
    for requirement in ("driver", "NVRTC", "CUDA headers", "cuBLASLt", "cuDNN"):
        assert requirement in text


def test_another_chip(capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--capability", "10.0"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("dtypes on compute capability 10.0")
    assert "versions" not in text


def test_bad_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        report.main(["--capability", "hopper"])
    assert stop.value.code == 2
    assert "expected a compute capability" in capsys.readouterr().err


def _absent() -> tuple[int, ...]:
    raise MissingDependencyError("absent") from ModuleNotFoundError("No module named 'x'")


def _broken() -> tuple[int, ...]:
    raise MissingDependencyError("broken") from ImportError("libx.so: undefined\n symbol")


@pytest.mark.parametrize(
    ("probe", "state", "remedy"),
    [
        (lambda: (9, 20), "ok", ""),
        (lambda: (9, 1), "too old", "needs 9.10 or newer: install x"),
        (_absent, "missing", "install x"),
        (_broken, "missing", "install x (libx.so: undefined symbol)"),
        (lambda: 1 // 0, "missing", "install x"),
    ],
)
def test_requirement(probe: object, state: str, remedy: str) -> None:
    row = report.Requirement("x", "doing", probe, (9, 10), "install x").row()  # type: ignore[arg-type]
    assert (row[1], row[3]) == (state, remedy)


def test_table_aligns_and_takes_short_rows() -> None:
    lines = report.table(("a", "b"), [("long cell", "x"), ("y",)])
    assert lines == ["  a          b", "  long cell  x", "  y"]
