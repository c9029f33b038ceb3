"""The main job as a user runs it: files written, exit codes, options, --resume, Ctrl-C. Small sizes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nvfp as nf
from nvfp.device import cuda_problem
from tests.examples.job import NAMES, job as job, run, same_checkpoints, texts as texts


def test_all_recipes_write_their_files_and_a_table(
    job: Any, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(job, texts, tmp_path, "--recipe", "all") == 0
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert list(metrics["recipes"]) == NAMES and len(metrics["corpus_sha256"]) == 64
    assert metrics["options"]["model"] == "gpt" and metrics["options"]["hidden"] == 32
    keys = {"val_loss", "tokens_per_s", "weight_bytes", "peak_memory_bytes", "peak_memory_source"}
    for name in NAMES:
        row = metrics["recipes"][name]
        assert set(row) == keys and 0 < row["val_loss"] < 6 and row["peak_memory_bytes"] > 1 << 20
        assert (tmp_path / f"{name}.safetensors").stat().st_size > 0
    sizes = [metrics["recipes"][n]["weight_bytes"] for n in ("bf16", "mxfp8", "fp8", "nvfp4")]
    assert sizes == sorted(sizes, reverse=True)
    assert (tmp_path / "loss.png").stat().st_size > 10_000
    printed = capsys.readouterr().out
    for text in ("vs bf16", "+0.00 %", "sample:", "peak memory", " MiB", "tokens are predicted bytes"):
        assert text in printed


def test_the_mlp_is_still_there(job: Any, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(job, texts, tmp_path, "--recipe", "mxfp8", model="mlp") == 0
    assert "mlp with" in capsys.readouterr().out
    assert json.loads((tmp_path / "metrics.json").read_text())["options"]["context"] == 16


@pytest.mark.parametrize("recipe", NAMES)
def test_resume_has_the_bits_of_an_uninterrupted_run(
    job: Any, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    options = ("--recipe", recipe, "--dropout", "0.2")
    assert run(job, texts, tmp_path / "whole", *options) == 0
    original = job.train_step

    def interrupt(run_: Any, x: Any, y: Any) -> Any:
        if run_.step == 1:
            signal.raise_signal(signal.SIGINT)  # in the middle of a step: it is finished first
        return original(run_, x, y)

    monkeypatch.setattr(job, "train_step", interrupt)
    assert run(job, texts, tmp_path / "half", *options) == 130
    monkeypatch.setattr(job, "train_step", original)
    half = tmp_path / "half" / f"{recipe}.safetensors"
    _, metadata = nf.files.load_with_metadata(half, device="cpu")
    assert json.loads(metadata["nvfp.checkpoint"])["extra"]["step"] == 2
    assert any("dropout.key" in key for key in nf.load(half, device="cpu"))
    assert run(job, texts, tmp_path / "rest", *options, "--resume", str(half)) == 0
    same_checkpoints(tmp_path / "whole" / half.name, tmp_path / "rest" / half.name)
    losses = [
        json.loads((tmp_path / folder / "metrics.json").read_text())["recipes"][recipe]["val_loss"]
        for folder in ("whole", "rest")
    ]
    assert losses[0] == losses[1]


def test_ctrl_c_saves_checkpoint_metrics_and_plot(
    job: Any, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = job.train_step

    def interrupt(run_: Any, x: Any, y: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return original(run_, x, y)

    monkeypatch.setattr(job, "train_step", interrupt)
    assert run(job, texts, tmp_path, "--recipe", "all", model="mlp") == 130
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bf16.safetensors", "loss.png", "metrics.json"]


@pytest.fixture
def default_interrupt() -> Iterator[None]:
    """Python's own handler of Ctrl-C: a shell starts what runs in the background with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("default_interrupt")
def test_a_second_ctrl_c_stops_at_once(job: Any) -> None:
    before = signal.getsignal(signal.SIGINT)
    with job.first_interrupt_held() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_tokens_count_every_predicted_byte(job: Any, texts: Path, tmp_path: Path) -> None:
    for model, per_step in (("gpt", 2 * 16), ("mlp", 32)):
        assert run(job, texts, tmp_path, "--recipe", "bf16", model=model) == 0
        _, metadata = nf.files.load_with_metadata(tmp_path / "bf16.safetensors", device="cpu")
        assert json.loads(metadata["nvfp.checkpoint"])["extra"]["tokens"] == 3 * per_step  # the first step compiles


def test_resume_refuses_what_belongs_to_another_run(
    job: Any, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(job, texts, tmp_path, "--recipe", "bf16", model="mlp") == 0
    saved = tmp_path / "bf16.safetensors"
    before = saved.read_bytes()
    other = tmp_path / "other.txt"
    other.write_text("another text. " * 1000)
    (tmp_path / "plain").mkdir()
    nf.save(tmp_path / "plain" / "x.safetensors", nf.ones((2,), device="cpu"))
    cases = [
        (["--recipe", "mxfp8"], "holds recipe bf16, not mxfp8; pass --recipe bf16"),
        (["--recipe", "bf16", "--seed", "1"], "was made with --seed 0; pass the same"),
        (["--recipe", "bf16", "--hidden", "32", "--batch", "8"], "was made with --batch 32 --hidden 64; pass the same"),
        (["--recipe", "bf16", "--data", str(other)], "was made from another corpus (sha256"),
        (["--recipe", "bf16", "--resume", str(tmp_path / "plain" / "x.safetensors")], "no checkpoint of this script"),
    ]
    for arguments, text in cases:
        capsys.readouterr()
        assert run(job, texts, tmp_path, "--resume", str(saved), *arguments, model="mlp") == 2, arguments
        error = capsys.readouterr().err
        assert text in error and len(error.splitlines()) == 1, error
    assert saved.read_bytes() == before


def test_one_file_is_a_corpus(job: Any, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = tmp_path / "book"  # any name will do
    book.write_bytes(b"".join(path.read_bytes() for path in sorted(texts.iterdir())))
    assert run(job, book, tmp_path / "out", "--recipe", "bf16", model="mlp") == 0
    size = book.stat().st_size
    assert f"1 files, {size - size // 20:,} training and {size // 20:,} validation bytes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--data", "no/such/folder"], "not a readable file or folder"),
        (["--recipe", "fp7"], "invalid choice: 'fp7'"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--log-every", "0"], "--log-every must be at least 1"),
        (["--dropout", "1"], "--dropout must be from 0 to below 1"),
        (["--lr", "nan"], "--lr must be positive"),
        (["--hidden", "130", "--heads", "4"], "--hidden must be an even multiple of --heads, got 130 and 4"),
        (["--embedding", "8"], "--embedding is no option of --model gpt"),
        (["--model", "mlp", "--layers", "2"], "--layers is no option of --model mlp"),
        (["--model", "mlp", "--dropout", "0.1"], "--dropout is no option of --model mlp"),
        (["--graph"], "--graph captures a CUDA graph and the device is cpu"),
        (["--context", "100000000"], "is longer than the train part of the corpus"),
        (["--resume", "x", "--recipe", "all"], "--resume goes on with one recipe"),
        (["--resume", "no-such-file", "--steps", "1"], "no-such-file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    job: Any, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    try:
        code = job.main(["--device", "cpu", "--data", str(texts), "--out", str(tmp_path), *arguments])
    except SystemExit as stop:
        code = stop.code
    error = capsys.readouterr().err
    assert code == 2 and text in error
    assert "Traceback" not in error and len(error.strip().splitlines()[-1]) < 400


def test_cuda_without_a_gpu(job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if cuda_problem() is None:
        assert job.choose_device(job.parse(["--device", "cuda"], None)).type == "cuda"
        return
    assert job.main(["--device", "cuda", "--out", str(tmp_path)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and "--device cuda" in lines[0]


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_too_little_text(job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    source = tmp_path
    if kind == "file":
        source = tmp_path / "short.txt"
        source.write_text("short")
    assert job.main(["--data", str(source), "--device", "cpu", "--out", str(tmp_path)]) == 2
    assert "are needed" in capsys.readouterr().err


def test_defaults_follow_the_model_and_its_width(job: Any) -> None:
    shapes = {
        "": (16, 64, 2, 128, 4, 0.001),
        "--layers 12 --hidden 768 --context 1024": (16, 1024, 12, 768, 12, 0.000408),
        "--model mlp": (512, 16, None, 512, None, 0.003),
    }
    for line, expected in shapes.items():
        args = job.parse(line.split(), None)
        found = (args.batch, args.context, args.layers, args.hidden, args.heads, args.lr)
        assert found == expected, line
