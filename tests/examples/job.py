"""What the tests of the training job share: the script as a module, a small corpus, short runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ["bf16", "fp8", "fp8-current", "fp8-block", "mxfp8", "nvfp4"]
MODULES = ("train_gpt", "corpus", "model", "options", "report", "convergence")
SMALL = {
    "gpt": "--steps 4 --batch 2 --context 16 --layers 1 --hidden 32 --heads 2 --val-windows 8 --log-every 1",
    "mlp": "--model mlp --steps 4 --batch 32 --hidden 64 --embedding 8 --val-windows 256 --log-every 1",
}


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """train_gpt.py as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module("train_gpt")
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of forty small text files."""
    folder = tmp_path_factory.mktemp("texts")
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(f"file {i}: " + "the quick brown fox jumps over the lazy dog. " * 8)
    return folder


def run(job: Any, texts: Path, out: Path, *extra: str, model: str = "gpt", device: Any = "cpu") -> int:
    """Run the job with a small model; returns its exit code."""
    where = ["--data", str(texts), "--out", str(out), "--device", str(device).partition(":")[0]]
    return int(job.main([*where, *SMALL[model].split(), *extra]))


def same_checkpoints(one: Path, other: Path) -> None:
    """Fail unless two checkpoints hold the same arrays, bit for bit."""
    a, b = (nf.load(path, device="cpu") for path in (one, other))
    assert a.keys() == b.keys()
    different = [key for key in a if np.asarray(a[key]).tobytes() != np.asarray(b[key]).tobytes()]
    assert not different, different
