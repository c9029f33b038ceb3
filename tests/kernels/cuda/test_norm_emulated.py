"""The CUDA twins of `layer_norm` and `rms_norm`, run on the CPU (see `emulator`), and how they deal rows to threads."""

from __future__ import annotations

import numpy as np
import pytest

from nvfp.kernels.cuda import _norm, layer_norm, rms_norm
from nvfp.kernels.cuda._launch import count_launches
from tests.kernels.cuda import emulator
from tests.kernels.cuda.test_dense_emulated import off_vectors
from tests.kernels.dense import BF16, F32, normal
from tests.kernels.norms import call, compare, draw

TWINS = (layer_norm, rms_norm)
STEMS = pytest.mark.parametrize("stem", ["layer_norm", "rms_norm"])


@STEMS
@pytest.mark.parametrize(
    ("shape", "dtype", "parameter", "off"),
    [
        ((150, 72), BF16, F32, False),  # a part of a warp a row, several rows a block, several turns
        ((70, 72), BF16, F32, True),  # single elements
        ((5, 2100), F32, BF16, False),  # several warps, a vector count that fills none of them
        ((3, 6001), F32, F32, False),  # backward too long for registers, single elements
        ((0, 72), BF16, F32, False),
    ],
    ids=str,
)
def test_values(
    monkeypatch: pytest.MonkeyPatch, stem: str, shape: tuple[int, int], dtype: np.dtype, parameter: np.dtype, off: bool
) -> None:
    emulator.install(monkeypatch)
    x, dy, weight, bias = draw(shape, dtype, parameter)
    given = (off_vectors(x) if off else x, dy, weight, bias)
    with count_launches() as count:
        found = call(stem, TWINS, given, zero=True)
    assert count.n == (1 if not shape[0] else 4 if shape[1] > 6000 else 3)
    compare(stem, found, given, zero=True)


def test_residual_and_add(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are read ahead, the sum written over x."""
    emulator.install(monkeypatch)
    x, dy, weight, bias = draw((150, 72), F32, F32)
    r = normal(x.shape, F32, 4)
    both, total = x + r, x.copy()
    wanted = layer_norm.layer_norm(both, weight, bias)
    found = layer_norm.layer_norm(total, weight, bias, residual=r, total=total)
    assert np.array_equal(total, both)
    assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
    plain, added = (layer_norm.layer_norm_vjp(dy, both, weight, *wanted[1:], add=add)[0] for add in (None, r))
    assert plain is not None
    assert np.array_equal(added, plain + r)


@STEMS
def test_rows_too_long_for_registers(monkeypatch: pytest.MonkeyPatch, stem: str) -> None:
    emulator.install(monkeypatch)
    given = draw((2, 16_400), F32, F32)
    compare(stem, call(stem, TWINS, given), given)
    x = given[0].copy()
    run = TWINS[0].layer_norm if stem == "layer_norm" else lambda x, w, b, out=None: TWINS[1].rms_norm(x, w, out=out)
    y = run(x, given[2], None)[0]
    assert np.array_equal(run(x, given[2], None, out=x)[0], y)  # in place


def test_a_large_mean_costs_no_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.install(monkeypatch)
    given = draw((3, 72), F32, F32, offset=1e6)
    compare("layer_norm", call("layer_norm", TWINS, given), given)


def test_every_length_fits_its_plan() -> None:
    """All vectors have a thread, blocks stay in their limits, and short rows are read once."""
    for backward, centered in ((False, True), (False, False), (True, True)):
        for itemsize in (2, 4):
            for width in (1, 2, 4, 8)[: 4 if itemsize == 2 else 3]:
                for vectors in (0, 1, 31, 32, 33, 95, 96, 97, 128, 500, 512, 1024, 1025, 2048, 4096, 16_384):
                    p = _norm.plan(backward, vectors * width, itemsize, width, centered)
                    threads = p.lanes * p.rows
                    assert (p.lanes % 32 == 0 or p.lanes in (8, 16)) and threads % 32 == 0
                    assert threads <= 1024 and p.blocks * threads <= 1536
                    if p.chunks:
                        assert vectors <= p.lanes * p.chunks
                    else:
                        assert vectors * width > (16_384 if width * itemsize == 16 and not backward else 4096)
    assert _norm.plan(False, 8192, 2, 8, False) == _norm.Plan(8, 512, 2, 1, 3)
    for itemsize in (2, 4):
        assert all(_norm.plan(back, 8192, itemsize, 16 // itemsize).chunks for back in (False, True))


def test_constants_of_launcher_and_source_agree() -> None:
    text = (emulator.INCLUDE / "norm.cuh").read_text()
    assert f"constexpr int SPREAD = {_norm._SPREAD};" in text
    for stem in ("layer_norm", "rms_norm"):
        source = (emulator.SOURCES / f"{stem}.cu").read_text()
        assert "PASS (1 forward, 2 backward, 3 columns, 4 finish, 5 statistics alone)" in source
    assert (_norm._FORWARD, _norm._BACKWARD, _norm._COLUMNS, _norm._FINISH, _norm.STATISTICS) == (1, 2, 3, 4, 5)
