"""The benchmarks run from the command line, each file loads, and a run becomes a section of RESULTS.md."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from nvfp.kernels.quantize import quantize
from tests.structure.tree import ROOT

FOLDER = ROOT / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a file of benchmarks/ as its own scripts do: by its bare name."""
    monkeypatch.syspath_prepend(FOLDER)

    def module(name: str) -> ModuleType:
        return importlib.import_module(name)

    return module


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("bench_*.py")))
def test_every_file_loads(load: Any, name: str) -> None:
    assert callable(load(name).bench)


def test_all_of_them_are_run(load: Any) -> None:
    assert {f"{file}.py" for file in load("run").BENCHMARKS.values()} == {p.name for p in FOLDER.glob("bench_*.py")}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``run.py --json`` writes, after its printed rows were looked at."""
    target = tmp_path_factory.mktemp("benchmarks") / "run.json"
    command = [sys.executable, str(FOLDER / "run.py"), "--device", "cpu", "--quick", "--no-peers"]
    done = subprocess.run(
        [*command, "--only", "amax,cast", "--json", str(target)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "[2/2] cast" in done.stderr
    printed = [line for line in done.stdout.splitlines() if " ms " in line or " us " in line]
    found: dict[str, Any] = json.loads(target.read_text())
    assert [row["name"] for row in found["rows"]] == [line.partition("  ")[0] for line in printed]
    return found


def test_run_reports_rows(report: dict[str, Any]) -> None:
    assert {"amax bfloat16", "cast bfloat16 to e4m3"} <= {row["name"] for row in report["rows"]}
    assert all(0 < row["low"] <= row["seconds"] <= row["high"] for row in report["rows"])
    assert report["device"] == "cpu" and report["roofs"]["copy"] > 0
    assert "numpy" in report["versions"]


def test_a_run_becomes_a_section(load: Any, report: dict[str, Any]) -> None:
    results = load("results")
    page = Path(results.PAGE).read_text(encoding="utf-8")
    text = results.section(report)
    changed = results.replaced(page, "cpu", text)
    assert text.count("\n| ") == len(report["rows"]) + 2
    assert text in changed and changed.partition("<!-- cuda -->")[2].partition("<!-- end cuda -->")[0] in page
    assert results.replaced(changed, "cpu", text) == changed


@pytest.mark.parametrize("wanted", ["cuda:99", "tpu"])
def test_a_missing_device_is_one_line(load: Any, wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    harness = load("_harness")
    with pytest.raises(SystemExit) as stop:
        harness.start(harness.parser("").parse_args(["--device", wanted]))
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_limits_compare_rates_and_rivals(load: Any, capsys: pytest.CaptureFixture[str]) -> None:
    harness, row, results = load("_harness"), load("_row"), load("results")
    bench = harness.Bench(harness.Device("cpu"), quick=True)
    bench.roofs = {"copy": 1.0}

    def missing() -> Any:
        raise ImportError("no such library")

    def nothing() -> None:
        pass

    rivals = {"same": lambda: nothing, "missing": missing}
    bench.row("nothing", nothing, moved=1, least=("float32 in", 1 << 40, 1e9), rivals=rivals)
    made = bench.rows[0]
    assert [(limit.what, limit.least, limit.met) for limit in made.limits] == [
        ("float32 in", 1e9, True),
        ("same", 5.0, False),
    ]
    printed = capsys.readouterr()
    assert "'nothing' without missing: no such library" in printed.err
    assert "(at least 1 GB/s: met); same" in printed.out and "x (at least 5x: MISSED)" in printed.out
    assert row.limits_text(bench.rows).startswith("limits: 1 met, 1 missed\n  nothing: same")
    assert results._row(json.loads(json.dumps(dataclasses.asdict(made)))) == made


@pytest.mark.parametrize("columns", [48, 256])
def test_the_formats_with_limits_run(load: Any, columns: int) -> None:
    formats, harness = load("_formats"), load("_harness")
    x = np.linspace(-3, 3, 4 * columns, dtype=np.float32).reshape(4, columns)
    for name, fmt in formats.lines(columns).items():
        side = quantize(x, fmt).row
        assert side is not None and fmt.block_shape is not None and fmt.block_shape[0] == 1, name
    cast = formats.bare_cast(x, "e4m3")["ml_dtypes astype"]()
    assert cast().dtype == harness.ml_dtypes.float8_e4m3fn


def test_a_peer_that_fails_leaves_a_gap(load: Any, capsys: pytest.CaptureFixture[str]) -> None:
    harness = load("_harness")
    bench = harness.Bench(harness.Device("cpu"), quick=True)
    bench.torch, bench.roofs = object(), {"copy": 1.0}

    def peer(torch: object) -> None:
        raise RuntimeError("refused")

    bench.row("nothing", lambda: None, moved=1, peer=peer)
    assert bench.rows[0].torch is None
    assert "torch cannot do 'nothing': refused" in capsys.readouterr().err


def test_the_fit_of_the_crossover_finds_what_made_the_times(load: Any) -> None:
    crossover = load("crossover")
    made = {"saved": 4e-15, "cost": 1.5e-12, "fixed": 2e-5}
    rows = []
    for m, k, n in crossover.SHAPES:
        bf16 = 5e-5 + 8e-15 * m * k * n
        gain = made["saved"] * m * k * n - made["cost"] * (m * k + n * k + m * n) - made["fixed"]
        for recipe, seconds in (("bf16", bf16), ("delayed", bf16 - gain)):
            rows.append({"recipe": recipe, "m": m, "k": k, "n": n, "graph_ms": seconds * 1e3})
    assert crossover.fit(rows, "delayed") == pytest.approx(made, rel=1e-3)
