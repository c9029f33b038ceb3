"""The study of examples/convergence.py and the page that docs/make_convergence.py writes. Small sizes."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from docs import make_convergence
from tests.examples.job import job as job, texts as texts

SMALL = ["--device", "cpu", "--steps", "2", "--batch", "2", "--context", "16", "--hidden", "32", "--layers", "1"]


@pytest.fixture
def study(job: Any) -> Any:
    """The script, as a module (its folder is on the path while the job's fixture holds)."""
    return import_module("convergence")


def argv(texts: Path, out: Path, *more: str) -> list[str]:
    return [*SMALL, "--val-windows", "4", "--log-every", "1", "--data", str(texts), "--out", str(out), *more]


def test_a_study_is_made_once_and_told(
    study: Any, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("--recipes", "bf16,mxfp8", "--seeds", "0", "--bf16-seeds", "0,1")
    out = tmp_path / "cpu"
    assert study.main(argv(texts, out, *more)) == 0
    assert sorted(p.name for p in out.iterdir()) == ["bf16-0.json", "bf16-1.json", "mxfp8-0.json"]
    run = json.loads((out / "mxfp8-0.json").read_text())
    assert 0 < run["val_loss"] < 6 and len(run["losses"]) == 2 and run["seed"] == 0
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    assert study.main(argv(texts, out, *more)) == 0  # all there
    assert before == {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    assert study.main(argv(texts, out, *more, "--lr", "0.5")) == 2
    assert "pass another --out" in capsys.readouterr().err
    monkeypatch.setattr(make_convergence, "HERE", tmp_path)
    make_convergence.main([str(out)])
    page = (tmp_path / "convergence.md").read_text()
    assert "| bf16 | bfloat16 | 2 |" in page and "| mxfp8 | " in page and "## On a CPU" in page
    assert (tmp_path / "convergence_cpu.png").stat().st_size > 5_000


def test_a_difference_above_both_limits_fails() -> None:
    def run(name: str, seed: int, loss: float) -> dict[str, Any]:
        return {"recipe": name, "precision": name, "seed": seed, "val_loss": loss, "seconds": 1.0}

    study = {"bf16": [run("bf16", s, 2.0 + 0.001 * s) for s in range(3)], "fp8": [run("fp8", 0, 2.02)]}
    assert "**fails**" in make_convergence.table(study)[-1] and "+1.00 %" in make_convergence.table(study)[-1]
    study["fp8"][0]["val_loss"] = 2.008
    assert "passes" in make_convergence.table(study)[-1]


@pytest.mark.parametrize("more", [["--recipes", "fp7"], ["--seed", "3"], ["--recipe=all"]])
def test_options_that_make_no_study(study: Any, texts: Path, tmp_path: Path, more: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        study.main(argv(texts, tmp_path, *more))
    assert ended.value.code == 2 and not list(tmp_path.glob("*.json"))
