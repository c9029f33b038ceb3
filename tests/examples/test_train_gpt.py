"""The main job as a user runs it: files written, exit codes, resume, Ctrl-C. Small sizes."""

from __future__ import annotations

import importlib
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.device import cuda_problem

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = [
    "--steps",
    "4",
    "--batch",
    "32",
    "--hidden",
    "64",
    "--embedding",
    "8",
    "--val-windows",
    "256",
    "--log-every",
    "1",
]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module("train_gpt")
    for name in ("train_gpt", "corpus"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(f"file {i}: " + "the quick brown fox jumps over the lazy dog. " * 8)
    return folder


def run(job: Any, texts: Path, out: Path, *extra: str) -> int:
    return int(job.main(["--data", str(texts), "--out", str(out), "--device", "cpu", *SMALL, *extra]))


def test_all_recipes_write_their_files_and_a_table(
    job: Any, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(job, texts, tmp_path, "--recipe", "all") == 0
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    names = ["bf16", "fp8", "fp8-current", "mxfp8", "nvfp4"]
    assert list(metrics["recipes"]) == names and len(metrics["corpus_sha256"]) == 64
    for name in names:
        row = metrics["recipes"][name]
        assert set(row) == {"val_loss", "tokens_per_s", "weight_bytes"} and 0 < row["val_loss"] < 6
        assert (tmp_path / f"{name}.safetensors").stat().st_size > 0
    sizes = [metrics["recipes"][n]["weight_bytes"] for n in ("bf16", "mxfp8", "fp8", "nvfp4")]
    assert sizes == sorted(sizes, reverse=True)
    assert (tmp_path / "loss.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    assert "vs bf16" in printed and "+0.00 %" in printed and "sample:" in printed


@pytest.mark.parametrize("recipe", ["bf16", "fp8", "fp8-current", "mxfp8", "nvfp4"])
def test_resume_has_the_bits_of_an_uninterrupted_run(job: Any, texts: Path, tmp_path: Path, recipe: str) -> None:
    assert run(job, texts, tmp_path / "whole", "--recipe", recipe) == 0
    # The schedule depends on --steps, so the first half is a run of four steps that stops after two.
    original = job.train

    def stop_early(run_: Any, corpus: Any, args: Any, device: Any, stop: Any) -> None:
        steps, args.steps = args.steps, 2
        schedule, job.schedule = job.schedule, lambda step, a: schedule(step, _with_steps(a, steps))
        try:
            original(run_, corpus, args, device, stop)
        finally:
            args.steps, job.schedule = steps, schedule

    job.train = stop_early
    assert run(job, texts, tmp_path / "half", "--recipe", recipe) == 0
    job.train = original
    half = tmp_path / "half" / f"{recipe}.safetensors"
    assert run(job, texts, tmp_path / "rest", "--recipe", recipe, "--resume", str(half)) == 0
    whole, rest = (nf.load(tmp_path / d / f"{recipe}.safetensors", device="cpu") for d in ("whole", "rest"))
    assert whole.keys() == rest.keys()
    for key in whole:
        assert np.asarray(whole[key]).tobytes() == np.asarray(rest[key]).tobytes(), key
    losses = [
        json.loads((tmp_path / d / "metrics.json").read_text())["recipes"][recipe]["val_loss"]
        for d in ("whole", "rest")
    ]
    assert losses[0] == losses[1]


def _with_steps(args: Any, steps: int) -> Any:
    return type(args)(**{**vars(args), "steps": steps})


def test_ctrl_c_saves_checkpoint_metrics_and_plot(
    job: Any, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = job.train_step

    def interrupt(run_: Any, x: Any, y: Any) -> Any:
        if run_.step == 1:
            signal.raise_signal(signal.SIGINT)  # in the middle of a step: it is finished first
        return original(run_, x, y)

    monkeypatch.setattr(job, "train_step", interrupt)
    assert run(job, texts, tmp_path, "--recipe", "all") == 130
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bf16.safetensors", "loss.png", "metrics.json"]
    _, metadata = nf.files.load_with_metadata(tmp_path / "bf16.safetensors", device="cpu")
    assert json.loads(metadata["nvfp.checkpoint"])["extra"]["step"] == 2
    monkeypatch.undo()
    half = str(tmp_path / "bf16.safetensors")
    assert run(job, texts, tmp_path / "rest", "--recipe", "bf16", "--resume", half) == 0
    assert run(job, texts, tmp_path / "whole", "--recipe", "bf16") == 0
    rest, whole = (nf.load(tmp_path / d / "bf16.safetensors", device="cpu") for d in ("rest", "whole"))
    assert all(np.asarray(rest[key]).tobytes() == np.asarray(whole[key]).tobytes() for key in whole)


def test_a_second_ctrl_c_stops_at_once(job: Any) -> None:
    before = signal.getsignal(signal.SIGINT)
    with job.first_interrupt_held() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_wrong_recipe_for_a_checkpoint(
    job: Any, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(job, texts, tmp_path, "--recipe", "bf16") == 0
    before = (tmp_path / "bf16.safetensors").read_bytes()
    assert run(job, texts, tmp_path, "--recipe", "mxfp8", "--resume", str(tmp_path / "bf16.safetensors")) == 2
    assert "holds recipe bf16" in capsys.readouterr().err
    assert (tmp_path / "bf16.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--data", "no/such/folder"], "not a readable folder"),
        (["--recipe", "fp7"], "invalid choice: 'fp7'"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--resume", "x", "--recipe", "all"], "--resume goes on with one recipe"),
        (["--resume", "no-such-file", "--steps", "1"], "no-such-file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    try:
        code = job.main(["--device", "cpu", "--out", str(tmp_path), *arguments])
    except SystemExit as stop:
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2 and text in error
    assert "Traceback" not in error and len(error.strip().splitlines()[-1]) < 400


def test_cuda_without_a_gpu(job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if cuda_problem() is None:
        assert job.choose_device("cuda").type == "cuda"
        return
    assert job.main(["--device", "cuda", "--out", str(tmp_path)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and "--device cuda" in lines[0]


def test_an_empty_folder(job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert job.main(["--data", str(tmp_path), "--device", "cpu", "--out", str(tmp_path)]) == 2
    assert "are needed" in capsys.readouterr().err
