"""CUDA twins of softmax and attention on the CPU: kernels in the emulator, the composition over the CPU's stems."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.kernels.attention import Settings
from nvfp.kernels.cuda import attention, cross_entropy, softmax
from nvfp.kernels.dropout import dropout
from tests.kernels import test_attention_packed as packed, test_attention_terms as terms
from tests.kernels.cuda import emulator
from tests.kernels.dense import BF16, F32, normal
from tests.kernels.test_attention import compare, mask_for, problem
from tests.oracles import softmax as oracle
from tests.tolerances import check


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.install(monkeypatch)


@pytest.mark.parametrize("shape", [(2, 3, 7, 9), (2, 5, 64), (1, 3, 4100), (2, 4096)], ids=str)
def test_softmax(shape: tuple[int, ...]) -> None:
    """A row per warp and per block, with and without vectors, masked and causal."""
    x, columns = normal(shape, F32, scale=3.0), shape[-1]
    mask = normal((shape[0],) + (1,) * (len(shape) - 2) + (columns,), seed=4) > 0.3
    for hidden in (None, mask, mask[..., ::-1]):
        for causal in (None, "top_left", "bottom_right"):
            y, lse = softmax.softmax(x, scale=0.5, mask=hidden, causal=causal, dtype=BF16, out=None)
            wanted, logs = oracle.softmax(x, 0.5, hidden, causal)
            check(y, wanted, "softmax")
            check(lse.reshape(logs.shape), logs, "softmax", scale=4)
    rows, dy = y.reshape(-1, columns), normal((x.size // columns, columns))
    dx = softmax.softmax_vjp(rows, dy, scale=0.3, dtype=BF16, out=None)
    check(dx, oracle.softmax_vjp(rows, dy, 0.3), "softmax", scale=4)


def test_softmax_of_rows_too_long_for_registers() -> None:
    x, dy = normal((1, 16_392), BF16, scale=3.0), normal((1, 16_392))
    y, lse = softmax.softmax(x, scale=0.5, mask=None, causal=None, dtype=F32, out=None)
    wanted, logs = oracle.softmax(x, 0.5)
    check(y, wanted, "softmax")
    check(lse, logs, "softmax", scale=4)
    dx = softmax.softmax_vjp(y, dy, scale=0.3, dtype=F32, out=dy)
    check(dx, oracle.softmax_vjp(y, normal((1, 16_392)), 0.3), "softmax", scale=4)


def test_every_row_fits_its_plan() -> None:
    for per in (1, 8):
        for columns in (0, 1, 7, 8, 255, 256, 257, 1024, 1025, 2048, 4096, 4097, 16_384, 16_385):
            p = softmax.plan(columns, per)
            assert p.threads * p.rows <= 512
            assert p.chunks * per <= softmax._HELD
            assert columns <= p.threads * p.chunks * per or (not p.chunks and columns > 4096)


def test_constants_of_launcher_and_source_agree() -> None:
    text = (emulator.INCLUDE / "online.cuh").read_text()
    for launcher in (softmax, cross_entropy):
        assert f"constexpr int MOST_THREADS = {launcher._MOST_THREADS};" in text


@pytest.mark.parametrize(("dtype", "mask_type"), [(F32, "causal"), (F32, "padding"), (BF16, "arbitrary")], ids=str)
@pytest.mark.parametrize("scores", [attention._SCORES, 1], ids=["whole", "entry by entry"])
def test_composition(dtype: np.dtype, mask_type: str, scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathered heads and views, shared groups, and the batch in parts give what the oracle gives."""
    monkeypatch.setattr(attention, "_SCORES", scores)
    draw: dict[str, Any] = {"key": 9, "ordinal": 1}
    step = np.asarray(4, np.int64)
    for batch, heads, groups in ((3, 4, 4), (3, 6, 2), (2, 2, 2), (1, 3, 1)):
        arrays, mask = problem(batch, 6, 9, heads, groups, 8, 5, dtype), mask_for(mask_type, batch, heads, 6, 9)
        for p in (0.0, 0.4):
            factors: Any = 1.0
            if p:
                factors, _ = dropout(np.ones((batch, heads, 6, 9), F32), p, step=step, **draw)
            settings = Settings(mask_type, 0.5, None, p, 9, 1, "composed")
            q, k, v, dout = arrays
            out, saved = attention.attention(q, k, v, mask, step if p else None, settings)
            got = [out, *attention.attention_vjp(dout, q, k, v, out, saved)[:3]]
            compare(got, arrays, mask_type, mask, 0.5, factors)


@pytest.mark.parametrize("columns", [9, 64, 4100, 16_392])
def test_softmax_with_a_sink_and_the_largest_values(columns: int) -> None:
    """The sink of each head, in registers and in two passes; rows that see nothing, and a sink above all values."""
    x = normal((2, 3, 4, columns) if columns < 4000 else (1, 2, 1, columns), F32, scale=3.0)
    mask = normal((x.shape[0], 1, 1, columns), seed=4) > 0.3
    mask[-1] = True
    sinks = np.array([-1.0, 20.0, 0.5], F32)[: x.shape[1]]
    for sink in (sinks, 0.0):
        tops = np.empty(x.shape[:-1], F32)
        y, lse = softmax.softmax(x, scale=0.5, mask=mask, causal=None, dtype=F32, out=None, sink=sink, tops=tops)
        rest = np.broadcast_to(np.reshape(sink, (-1, 1, 1)), (*x.shape[:-1], 1)) * 2
        off = np.concatenate([np.broadcast_to(mask, x.shape), np.zeros((*x.shape[:-1], 1), bool)], -1)
        wanted, logs = oracle.softmax(np.concatenate([x, rest], -1), 0.5, off)
        check(y, wanted[..., :-1], "softmax")
        check(lse.reshape(logs.shape), logs, "softmax", scale=4)
        check(tops, np.where(mask, -np.inf, 0.5 * x).max(-1), "softmax")


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("scores", [attention._SCORES, 1], ids=["whole", "entry by entry"])
def test_composition_of_terms(dtype: np.dtype, scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test of biases, sinks, windows and packed arrays, with this twin in place of the CPU's."""
    monkeypatch.setattr(attention, "_SCORES", scores)
    monkeypatch.setattr("nvfp.kernels.attention.twin_of", lambda *_: attention)
    device = Device("cpu")
    for lead in ((1, 1), (2, 1), (1, 4), (2, 4)):
        terms.test_biases(device, dtype, "pre_scale_bias", lead)
        terms.test_biases(device, dtype, "post_scale_bias", lead)
    for mask_type in ("no_mask", "causal", "causal_bottom_right"):
        terms.test_windows(device, (3, 5), mask_type)
        for form in ("usual", "heads", "batch"):
            terms.test_alibi(device, form, mask_type)
    terms.test_alibi(device, "batch", "padding_causal_bottom_right")
    terms.test_softmax_types(device, dtype, "learnable")
    terms.test_softmax_types(device, dtype, "off-by-one")
    terms.test_everything_at_once_with_dropout(device, "learnable")
    terms.test_softcap(device, dtype)
    terms.test_the_largest_score_of_heads_that_see_nothing(device)


@pytest.mark.parametrize("mask_type", [*packed.PADDED, "causal"])
def test_composition_of_packed_arrays(mask_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvfp.kernels.attention.twin_of", lambda *_: attention)
    device = Device("cpu")
    for dtype in (F32, BF16):
        for gap in (0, 2):
            packed.test_packed(device, dtype, mask_type, gap)
    if mask_type.startswith("padding"):
        packed.test_lengths_in_place_of_masks(device, mask_type)
    packed.test_the_example_of_the_docs(device)
    packed.test_packed_and_empty(device, (0, 3))
