"""`kernels.attention` with lengths in place of masks, and with packed arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.kernels.attention import Lengths, attention, attention_vjp
from tests.devices import to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F32, normal
from tests.kernels.test_attention_terms import ahead_of, compare, run, sample
from tests.oracles import attention as oracle
from tests.tolerances import check

ENDS = np.array([[3, 0, 7, 2], [5, 4, 9, 2]])  # queries and keys of four entries
PADDED = ["padding", "padding_causal", "padding_causal_bottom_right"]


@pytest.mark.parametrize("mask_type", PADDED)
def test_lengths_in_place_of_masks(device: Device, mask_type: str) -> None:
    """Lengths hide what a pair of masks hides, also over windows and with a bias; a batch of single queries too."""
    for queries, keys in ((7, 9), (1, 9)):
        shape = (4, 2, queries, keys)
        ends = np.minimum(ENDS, [[queries], [keys]]).astype(np.int32)
        arrays, bias, pair = (
            sample(shape=shape, groups=1),
            normal((4, 2, queries, keys), F32, 3),
            oracle.padding(shape, ends),
        )
        for window in (None, (2, 1)):
            options: dict[str, Any] = {"mask_type": mask_type, "window": window}
            options |= {"bias_type": "post_scale_bias", "bias": bias}
            got, _ = run(arrays, device, lengths=Lengths(*ends), **options)
            again, _ = run(arrays, device, mask=pair, **options)
            off = oracle.hidden(shape, mask_type, pair)
            if window is not None:
                left, right = window if mask_type == "padding" else (window[0], 0)
                off |= oracle.band(shape, (left, right), ahead_of(mask_type, None, ends[1] - ends[0]))
            wanted = oracle.whole(arrays, off, 16**-0.5, post=bias)
            for found in (got, again):
                compare(found, wanted, bias)


def pack(x: np.ndarray, lengths: np.ndarray, starts: np.ndarray, total: int, fill: float = 0.0) -> np.ndarray:
    """[B, L, ...] as packed rows; what belongs to no entry is ``fill``."""
    found = np.full((total, *x.shape[2:]), fill, x.dtype)
    for b, (n, start) in enumerate(zip(lengths, starts)):
        found[start : start + n] = x[b, :n]
    return found


@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
@pytest.mark.parametrize("mask_type", [*PADDED, "causal"])
@pytest.mark.parametrize("gap", [0, 2])
def test_packed(device: Device, dtype: np.dtype, mask_type: str, gap: int) -> None:
    """Entries one behind the other, with and without room between them, one without queries; the room holds NaN."""
    shape = (4, 4, 7, 9)
    arrays, pair = sample(dtype, shape), oracle.padding(shape, ENDS)
    starts = [np.cumsum([0, *ends[:-1] + gap]).astype(np.int32) for ends in ENDS]
    totals = [int(first[-1] + ends[-1]) + 2 * gap for first, ends in zip(starts, ENDS)]
    sides = (0, 1, 1, 0)
    rows = [
        pack(x, ENDS[s], starts[s], totals[s], np.nan if i < 3 else 0.0) for i, (x, s) in enumerate(zip(arrays, sides))
    ]
    lengths = Lengths(*ENDS.astype(np.int32), *starts, most=(7, 9))
    sink, bias = normal((4,), F32, 13), normal((1, 4, 7, 9), F32, 14)
    options: dict[str, Any] = {"softmax_type": "learnable", "sink": sink, "window": (4, 1)}
    options |= {"bias_type": "pre_scale_bias", "bias": bias, "max_logit": True}
    got, top = run(rows, device, mask_type=mask_type, lengths=lengths, **options)
    padded = mask_type if mask_type.startswith("padding") else f"padding_{mask_type}"
    off = oracle.hidden(shape, padded, pair)
    band = (4, 1) if mask_type == "padding" else (4, 0)
    off |= oracle.band(shape, band, ahead_of(padded, None, ENDS[1] - ENDS[0]))
    wanted = oracle.whole(arrays, off, 16**-0.5, pre=bias, sink=sink)
    for of in (wanted.arrays, wanted.sizes):
        for name, s in (("out", 0), ("q", 0), ("k", 1), ("v", 1)):
            of[name] = pack(of[name], ENDS[s], starts[s], totals[s])
    compare(got, wanted, bias, "pre")
    np.testing.assert_allclose(top, wanted.top, rtol=1e-4, atol=1e-5)


def test_the_example_of_the_docs(device: Device) -> None:
    """[a a a 0 0; b b 0 0 0; c c c c 0]: padded, by a mask (True hides), by lengths, and packed: one result."""
    lengths = np.array([3, 2, 4], np.int32)
    x = normal((3, 5, 2, 8), F32)
    mask = (np.arange(5) >= lengths[:, None])[:, None, None, :]
    assert mask[:, 0, 0].astype(int).tolist() == [[0, 0, 0, 1, 1], [0, 0, 1, 1, 1], [0, 0, 0, 0, 1]]
    masked, _ = run([x] * 4, device, mask_type="padding", mask=(mask, mask))
    by_length, _ = run([x] * 4, device, mask_type="padding", lengths=Lengths(lengths, lengths))
    starts = np.array([0, 3, 5], np.int32)
    rows = pack(x, lengths, starts, 9)
    packed, _ = run([rows] * 4, device, mask_type="padding", lengths=Lengths(lengths, lengths, starts, starts, (5, 5)))
    for b, n in enumerate(lengths):
        alone, _ = run([x[b : b + 1, :n]] * 4, device, mask_type="no_mask")
        for name in ("out", "q", "k", "v"):
            for found in (masked[name][b, :n], by_length[name][b, :n], packed[name][starts[b] : starts[b] + n]):
                check(found, alone[name][0], "attention", scale=8)
            assert not masked[name][b, n:].any() and not by_length[name][b, n:].any()


def test_packed_dropout_has_the_bits_of_padded(device: Device) -> None:
    ends, shape = np.array([3, 2, 4], np.int32), (3, 2, 5, 5)
    arrays, starts = sample(shape=shape), np.array([0, 3, 5], np.int32)
    options: dict[str, Any] = {"mask_type": "padding_causal", "dropout": 0.5, "key": 3, "step": np.asarray(1, np.int64)}
    padded, _ = run(arrays, device, lengths=Lengths(ends, ends), **options)
    rows = [pack(x, ends, starts, 9) for x in arrays]
    packed, _ = run(rows, device, lengths=Lengths(ends, ends, starts, starts, (5, 5)), **options)
    for name, found in packed.items():
        check(found, pack(padded[name], ends, starts, 9), "attention", scale=4)


@pytest.mark.parametrize("totals", [(0, 0), (3, 0), (0, 3)], ids=str)
def test_packed_and_empty(device: Device, totals: tuple[int, int]) -> None:
    q, kv = np.zeros((totals[0], 2, 8), F32), np.zeros((totals[1], 2, 8), F32)
    zero = np.zeros(2, np.int32)
    got, top = run(
        [q, kv, kv, q], device, mask_type="padding", lengths=Lengths(zero, zero, zero, zero, (1, 1)), max_logit=True
    )
    assert not any(x.any() for x in got.values()) and np.isneginf(top).all()
    assert [got[n].shape for n in ("out", "q", "k", "v")] == [q.shape, q.shape, kv.shape, kv.shape]


@pytest.mark.gpu
def test_captured_packed_attention_has_the_bits_of_an_eager_one() -> None:
    """No kernel of CuPy and no synchronisation; lengths are read on the device at each replay."""
    import cupy

    device = Device("cuda")
    q, k, v, dout = (to_device(normal((16, 4, 8), BF16, n), device) for n in range(4))
    cumulative = [np.array([0, 3, 9, 16], np.int32), np.array([0, 8, 12, 16], np.int32)]
    words = [to_device(n, device) for n in (cumulative[0][:-1], np.diff(cumulative[0]))]
    lengths = Lengths(words[1], words[1], words[0], words[0], (10, 10))
    bias, sink = to_device(normal((1, 4, 10, 10), BF16, 5), device), to_device(normal((4,), F32, 6), device)

    def step() -> list[Any]:
        out, saved = attention(
            q, k, v, mask_type="padding_causal_bottom_right", lengths=lengths, window=(3, 0), bias=bias, sink=sink,
            bias_type="post_scale_bias", softmax_type="learnable", max_logit=True, backend="composed",
        )  # fmt: skip
        return [out, saved.max_logit, *attention_vjp(dout, q, k, v, out, saved)]

    def fill(which: int) -> None:
        words[0].set(cumulative[which][:-1])
        words[1].set(np.diff(cumulative[which]))

    eager = []
    for which in range(2):
        fill(which)
        eager.append([to_numpy(x) for x in step()])
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        step()
        stream.begin_capture()
        results = step()
        graph = stream.end_capture()
    for which in range(2):
        fill(which)
        cupy.cuda.runtime.deviceSynchronize()
        graph.launch(stream)
        stream.synchronize()
        assert all(to_numpy(a).tobytes() == b.tobytes() for a, b in zip(results, eager[which]))
    assert "cupy_" not in graph.debug_dot_str(1)
