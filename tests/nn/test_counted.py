"""Launches and memory of a head with its loss and of a step with a cache, at their real sizes, without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

TOKENS, WIDTH, CLASSES = 16384, 768, 50304
LOGITS = 2 * TOKENS * CLASSES
# float32 sums that wait for backward: of W and of x.
SUMS = 4 * WIDTH * (CLASSES + TOKENS)
MIB = 1 << 20
STEP = [
    "gemm", "embedding", "rope", "rope", "attention_append", "attention_decode", "attention_decode_merge", "gemm"
]  # fmt: skip


@cache
def found() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.nn.counted"]
    run = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    result: dict[str, Any] = json.loads(run.stdout)
    return result


@pytest.mark.parametrize(
    ("way", "chunks", "products", "kept"), [("plain", 4, 3, SUMS), ("small", 32, 3, SUMS), ("recompute", 4, 4, 0)]
)
def test_head(way: str, chunks: int, products: int, kept: int) -> None:
    """Three products per chunk, four with recomputation; per chunk two kernels; nothing comes from the host."""
    got = found()["head"][way]
    assert got["gemms"] == chunks * products and got["others"] == []
    assert got["kernels"] == 2 * chunks + 6  # the word 1, the reduction; factor and two results
    assert got["flops"] == 2 * products * TOKENS * WIDTH * CLASSES
    assert kept <= got["kept"] < kept + MIB
    assert got["peak"] < LOGITS / 2  # the pair takes two copies of them


@pytest.mark.parametrize("kind", ["decode", "paged"])
def test_decode_step(kind: str) -> None:
    """Lengths and pages go over in one copy; the layer launches nothing but what it is made of."""
    got = found()[kind]
    assert got["pre_step"] == ["copy", "cast_flat"]
    assert got["layer"] == STEP
