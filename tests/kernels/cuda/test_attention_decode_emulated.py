"""The CUDA twin of attention_decode on the CPU: lanes, teams, tiles of rows, splits and their merge, pages."""

from __future__ import annotations

import numpy as np
import pytest

from nvfp.kernels.cuda import attention_decode
from tests.kernels.cuda import emulator
from tests.kernels.dense import BF16, F32, normal
from tests.kernels.test_attention_decode import caches, words
from tests.oracles import attention_decode as oracle
from tests.tolerances import check


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.install(monkeypatch)


@pytest.mark.parametrize(
    ("dtype", "heads", "groups", "depth", "values", "queries"),
    [(BF16, 4, 4, 16, 8, 1), (BF16, 8, 2, 64, 64, 1), (F32, 6, 2, 20, 36, 2), (F32, 1, 1, 300, 5, 1)],
    ids=str,
)
@pytest.mark.parametrize("page", [None, 48])
def test_values(
    dtype: np.dtype, heads: int, groups: int, depth: int, values: int, queries: int, page: int | None
) -> None:
    """Lengths below, at and above what a turn and a split take."""
    at, pages, size = words([0, 5, 128, 383, 600], [queries] * 4 + [0], 640, page)
    k, v = caches(pages, size, groups, depth, values, dtype)
    q = normal((5, queries, heads, depth), dtype)
    for causal, left in ((True, -1), (False, 40)):
        got = attention_decode.attention_decode(q, k, v, *at, causal=causal, left=left, scale=0.2)
        wanted, magnitude = oracle.attention_decode(q, k, v, *at, causal, left, 0.2)
        check(got, wanted, "attention", scale=1e-3 + magnitude)
        assert not got[4].any()


@pytest.mark.parametrize(("depth", "values"), [(16, 8), (5, 7)])
def test_append(depth: int, values: int) -> None:
    at, pages, size = words([0, 5, 8], [6, 1, 0], 12, 4)
    k, v = caches(pages, size, 2, depth, values, BF16)
    new = normal((3, 6, 2, depth), BF16), normal((3, 6, 2, values), BF16)
    held = k.copy(), v.copy()
    attention_decode.attention_append(*new, *held, *at)
    for c, n, h in zip((k, v), new, held, strict=True):
        assert h.tobytes() == oracle.append(n, c, *at).tobytes()


def test_splits_follow_from_shapes() -> None:
    """Room for nine blocks: none waits where that can be helped, none gets too few keys."""
    splits = attention_decode._splits
    assert splits(1, 64, 9) == splits(0, 0, 9) == 1
    assert splits(1, 300, 9) == 4
    assert splits(1, 8192, 9) == 9
    assert splits(9, 8192, 9) == 1
    assert splits(10, 8192, 9) > 1  # the tenth would come alone behind nine
    assert [attention_decode._lanes(d) for d in (0, 1, 16, 17, 64, 80, 128, 512)] == [1, 1, 1, 2, 4, 8, 8, 32]


def test_constants_of_launcher_and_source_agree() -> None:
    text = (emulator._loader.SOURCES / "attention_decode.cu").read_text()
    assert f"MOST_SPLITS = {attention_decode._MOST_SPLITS};" in text
    assert f"PER = {attention_decode._PER}," in text and "WARPS = 4" in text and attention_decode._THREADS == 128
