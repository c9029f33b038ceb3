"""cuDNN's attention with biases, sinks and entries of their own lengths, through the stem's CUDA twin."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.errors import ArgumentError
from nvfp.kernels import attention as kernel
from nvfp.kernels.attention import Lengths
from nvfp.kernels.cuda import attention as twin
from nvfp.kernels.cudnn import run as cudnn
from tests.kernels import test_attention_terms as terms
from tests.kernels.cudnn.test_attention import BF16, F16
from tests.kernels.dense import F32, normal
from tests.kernels.test_attention import problem
from tests.kernels.test_attention_packed import pack as packed_rows
from tests.oracles import attention as oracle

SHAPE = (4, 4, 40, 48)
ENDS = np.array([[40, 0, 13, 7], [48, 9, 13, 0]], np.int32)  # one without queries, one without keys


@pytest.fixture(autouse=True)
def _here(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA twin, over NumPy where cuDNN is emulated."""
    if device.type == "cpu":
        monkeypatch.setattr(kernel, "twin_of", lambda *_: twin)
        for module in ("attention", "_attention_scores"):
            monkeypatch.setattr(f"nvfp.kernels.cuda.{module}.cp", cudnn.cp)


def operands(dtype: np.dtype = BF16, shape: tuple[int, ...] = SHAPE) -> list[np.ndarray]:
    batch, heads, queries, keys = shape
    return problem(batch, queries, keys, heads, 2, 64, 64, dtype)


def run(arrays: list[np.ndarray], device: Device, **options: Any) -> dict[str, np.ndarray]:
    return terms.run(arrays, device, backend="cudnn", **options)[0]


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("lead", [(1, 1), (1, 4), (4, 1), (4, 4)], ids=str)
@pytest.mark.parametrize("mask_type", ["no_mask", "causal", "arbitrary"])
def test_biases(device: Device, mask_type: str, lead: tuple[int, int], dtype: np.dtype) -> None:
    """Alone and together with a mask; the gradient is summed over what the bias repeats, in one order."""
    for keys in (45, 48):
        shape = (*SHAPE[:3], keys)
        arrays, bias = operands(dtype, shape), normal((*lead, *shape[2:]), dtype, 11)
        mask = normal((4, 1, 40, keys), seed=7) > 0.4 if mask_type == "arbitrary" else None
        if mask is not None:
            mask[1, :, 3] = True
        options: dict[str, Any] = {"mask_type": mask_type, "mask": mask, "bias_type": "post_scale_bias", "bias": bias}
        if device.type == "cuda" and keys == 45:  # cuDNN 9.19 has no engine for rows that end inside 16 bytes
            with suppress(ArgumentError):
                run(arrays, device, **options)
            continue
        got, again = (run(arrays, device, **options) for _ in range(2))
        off = oracle.hidden(shape, mask_type, mask)
        terms.compare(got, oracle.whole(arrays, off, 0.125, post=bias.astype(np.float64)), bias)
        assert all(got[name].tobytes() == x.tobytes() for name, x in again.items())
    q, k, v, dout = (terms.to_device(x, device) for x in arrays)
    placed = {name: terms.place(x, device) for name, x in options.items()}
    out, saved = kernel.attention(q, k, v, backend="cudnn", **placed)
    found = kernel.attention_vjp(dout, q, k, v, out, saved, bias_gradient=False)
    assert saved.backend == "cudnn" and found.bias is None
    assert terms.to_numpy(found.q).tobytes() == got["q"].tobytes()


@pytest.mark.parametrize("kind", ["off-by-one", "learnable"])
@pytest.mark.parametrize("mask_type", ["causal", "no_mask", "arbitrary"])
def test_sinks(device: Device, mask_type: str, kind: str) -> None:
    sink = normal((4,), F32, 13) if kind == "learnable" else None
    mask = normal((4, 1, 40, 48), seed=7) > 0.4 if mask_type == "arbitrary" else None
    if mask is not None:
        mask[1, :, 3] = True
    for window in (None, (9, 0)) if mask_type == "causal" else (None,):
        arrays = operands()
        got = run(arrays, device, mask_type=mask_type, mask=mask, softmax_type=kind, sink=sink, window=window)
        off = oracle.hidden(SHAPE, mask_type, mask)
        if window is not None:
            off |= oracle.band(SHAPE, window)
        terms.compare(got, oracle.whole(arrays, off, 0.125, sink=np.zeros(4) if sink is None else sink))
        assert ("sink" in got) == (kind == "learnable")


def rows_of(arrays: list[np.ndarray], ends: np.ndarray, gap: int) -> tuple[list[np.ndarray], Any, list[np.ndarray]]:
    """Packed operands, and how to pack others like them."""
    starts = [np.cumsum([0, *n[:-1] + gap]).astype(np.int32) for n in ends]
    totals = [int(first[-1] + n[-1]) + gap for first, n in zip(starts, ends)]

    def pack(x: np.ndarray, side: int, fill: float = 0.0) -> np.ndarray:
        return packed_rows(x, ends[side], starts[side], totals[side], fill)

    fills = (np.nan, np.nan, np.nan, 0.0)
    return [pack(x, s, f) for x, s, f in zip(arrays, (0, 1, 1, 0), fills)], pack, starts


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", ["vanilla", "learnable"])
@pytest.mark.parametrize("mask_type", ["padding", "padding_causal"])
def test_lengths(device: Device, mask_type: str, kind: str, packed: bool) -> None:
    """Entries at their places, one without queries; rows of none are 0."""
    arrays, pair = operands(), oracle.padding(SHAPE, ENDS)
    sink = normal((4,), F32, 13) if kind == "learnable" else None
    wanted = oracle.whole(arrays, oracle.hidden(SHAPE, mask_type, pair), 0.125, sink=sink)
    lengths = Lengths(*ENDS)
    if packed:
        arrays, pack, starts = rows_of(arrays, ENDS, 3)
        lengths = Lengths(*ENDS, *starts, most=(40, 48))
        for of in (wanted.arrays, wanted.sizes):
            for name, side in (("out", 0), ("q", 0), ("k", 1), ("v", 1)):
                of[name] = pack(of[name], side)
    got = run(arrays, device, mask_type=mask_type, lengths=lengths, softmax_type=kind, sink=sink)
    terms.compare(got, wanted)


@pytest.mark.parametrize("mask_type", ["padding_causal", "padding_causal_bottom_right", "padding"])
def test_packed_self_attention_with_windows(device: Device, mask_type: str) -> None:
    """As many keys as queries in each entry: one diagonal, from whichever corner; out of one fused buffer."""
    shape, ends = (4, 4, 40, 40), np.stack([ENDS[0], ENDS[0]])
    heads = problem(4, 40, 40, 4, 4, 64, 64, BF16)
    pair = oracle.padding(shape, ends)
    for window in ((9, 0), (9, 4)) if "causal" in mask_type else (None,):
        off = oracle.hidden(shape, "padding_causal" if "causal" in mask_type else "padding", pair)
        if window is not None:
            off |= oracle.band(shape, (9, 0))
        wanted = oracle.whole(heads, off, 0.125)
        arrays, pack, starts = rows_of(heads, ends, 0)
        fused = np.stack(arrays[:3], 1)  # [T, 3, H, D]
        lengths = Lengths(ends[0], ends[0], starts[0], starts[0], (40, 40))
        q, k, v = (terms.to_device(fused, device)[:, i] for i in range(3))
        words = [terms.to_device(x, device) for x in (ends[0], starts[0])]
        out, saved = kernel.attention(
            q, k, v, mask_type=mask_type, window=window, backend="cudnn",
            lengths=lengths._replace(queries=words[0], keys=words[0], q_starts=words[1], k_starts=words[1]),
        )  # fmt: skip
        found = kernel.attention_vjp(terms.to_device(arrays[3], device), q, k, v, out, saved)
        for of in (wanted.arrays, wanted.sizes):
            for name in ("out", "q", "k", "v"):
                of[name] = pack(of[name], 0)
        got = {"out": out, "q": found.q, "k": found.k, "v": found.v}
        terms.compare({name: terms.to_numpy(x) for name, x in got.items()}, wanted)


def test_what_is_composed_has_a_reason(device: Device) -> None:
    q, k, v, _ = (terms.to_device(x, device) for x in operands(shape=(2, 4, 8, 16)))
    bias, words = terms.to_device(np.zeros((1, 1, 8, 16), F32), device), terms.to_device(np.zeros(2, np.int32), device)
    other = words.copy()
    post: dict[str, Any] = {"bias_type": "post_scale_bias", "bias": bias}
    for options, text in (
        ({"bias_type": "alibi"}, "copies them from the host"),
        ({"bias_type": "pre_scale_bias", "bias": bias}, "behind the scale"),
        (post, "in the dtype of q, bfloat16, not in float32"),
        ({"softcap": 2.0}, "no softcap"), ({"max_logit": True}, "largest score"),
        ({"mask_type": "padding_causal_bottom_right", "lengths": Lengths(words, other)}, "NaN to queries without keys"),
        ({"mask_type": "padding", "lengths": Lengths(words, other), "window": (2, 2)}, "NaN to queries without keys"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            kernel.attention(q, k, v, backend="cudnn", **options)
        assert kernel.attention(q, k, v, **options)[1].backend == "composed"
