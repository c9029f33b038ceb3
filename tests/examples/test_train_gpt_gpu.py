"""The whole training step of the GPT on CUDA: captured in a graph it equals eager, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from tests.examples.job import NAMES, job as job, run, same_checkpoints, texts as texts

SHAPE = "--layers 2 --hidden 64 --heads 4 --context 48 --batch 3 --dropout 0.1"


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_captured_step_equals_eager_steps(job: Any, name: str) -> None:
    """Dropout on, learning rate changed between steps; losses, parameters, optimizer and scaling state."""
    args = job.parse(["--recipe", name, "--device", "cuda", *SHAPE.split()], None)
    data = np.random.default_rng(1).integers(0, 256, (7, args.batch, args.context + 1)).astype(np.uint8)
    results = []
    for captured in (False, True):
        trained = job.make_run(name, args, "cuda")

        def step(x: nf.Array, y: nf.Array, trained: Any = trained) -> nf.Array:
            return job.train_step(trained, x, y)

        once = nf.cuda_graph(step) if captured else step
        losses = []
        for i, windows in enumerate(data):
            trained.optimizer.lr = 0.003 / (i + 1)  # a device word: the captured graph reads the new value
            losses.append(np.asarray(once(*job.to_device(trained, windows, "cuda"))).tobytes())
        state = {**trained.model.state_dict(), **{f"o.{k}": v for k, v in trained.optimizer.state_dict().items()}}
        assert any("dropout" in key for key in state)
        results.append((losses, {k: np.asarray(v).tobytes() for k, v in state.items()}))
    eager, graph = results
    assert len(set(eager[0])) == len(data)
    assert eager[0] == graph[0]
    assert eager[1].keys() == graph[1].keys()
    different = [key for key in eager[1] if eager[1][key] != graph[1][key]]
    assert not different, different


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["bf16", "fp8"])
def test_the_job_with_graph_leaves_the_same_checkpoint(job: Any, texts: Path, tmp_path: Path, name: str) -> None:
    options = ("--recipe", name, "--dropout", "0.1", "--steps", "6")
    assert run(job, texts, tmp_path / "eager", *options, device="cuda") == 0
    assert run(job, texts, tmp_path / "graph", *options, "--graph", device="cuda") == 0
    same_checkpoints(*(tmp_path / folder / f"{name}.safetensors" for folder in ("eager", "graph")))
    metrics = json.loads((tmp_path / "graph" / "metrics.json").read_text())
    assert metrics["recipes"][name]["peak_memory_source"].startswith("CuPy memory pools")


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_resume_on_cuda_has_the_same_bits(
    job: Any, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options = ("--recipe", name, "--dropout", "0.2")
    assert run(job, texts, tmp_path / "whole", *options, device="cuda") == 0
    original = job.train

    def two_steps(run_: Any, corpus: Any, args: Any, device: Any, stop: Any) -> None:
        step = job.train_step

        def stopping(run__: Any, x: Any, y: Any) -> Any:
            if run__.step == 1:
                stop.set()
            return step(run__, x, y)

        job.train_step = stopping
        try:
            original(run_, corpus, args, device, stop)
        finally:
            job.train_step = step

    monkeypatch.setattr(job, "train", two_steps)
    assert run(job, texts, tmp_path / "half", *options, device="cuda") == 130
    monkeypatch.setattr(job, "train", original)
    half = tmp_path / "half" / f"{name}.safetensors"
    assert run(job, texts, tmp_path / "rest", *options, "--resume", str(half), device="cuda") == 0
    same_checkpoints(tmp_path / "whole" / half.name, tmp_path / "rest" / half.name)
