"""`kernels.attention` with biases, ALiBi, windows, sinks, softcap, lengths and packed arrays: float64 and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.errors import ArgumentError, DTypeError, ShapeError
from nvfp.kernels.attention import Gradients, Lengths, alibi_slopes, attention, attention_vjp
from nvfp.kernels.dropout import dropout
from tests.devices import need_oracle, to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F32, normal
from tests.kernels.test_attention import mask_for, problem
from tests.oracles import attention as oracle
from tests.tolerances import check

SHAPE = (2, 4, 19, 23)  # B, H, Lq, Lk


def sample(dtype: np.dtype = F32, shape: tuple[int, ...] = SHAPE, groups: int = 2) -> list[np.ndarray]:
    batch, heads, queries, keys = shape
    return problem(batch, queries, keys, heads, groups, 16, 8, dtype)


def place(x: Any, device: Device) -> Any:
    """Arrays, pairs of them and lengths on a device."""
    if isinstance(x, Lengths):
        return Lengths(*(None if n is None else to_device(n, device) for n in x[:4]), x.most)
    if isinstance(x, tuple) and len(x) and isinstance(x[0], np.ndarray):
        return tuple(to_device(part, device) for part in x)
    return to_device(x, device) if isinstance(x, np.ndarray) else x


def run(arrays: list[np.ndarray], device: Device, **options: Any) -> tuple[dict[str, np.ndarray], Any]:
    """Result and gradients by name, and the largest scores."""
    q, k, v, dout = (to_device(x, device) for x in arrays)
    placed = {name: place(x, device) for name, x in ({"backend": "composed"} | options).items()}
    out, saved = attention(q, k, v, **placed)
    gradients = attention_vjp(dout, q, k, v, out, saved)
    found = {"out": out} | {name: g for name, g in zip(Gradients._fields, gradients) if g is not None}
    top = None if saved.max_logit is None else to_numpy(saved.max_logit)
    return {name: to_numpy(x) for name, x in found.items()}, top


def compare(got: dict[str, np.ndarray], wanted: oracle.Whole, bias: np.ndarray | None = None, at: str = "post") -> None:
    """Hold result and gradients against the oracle; a bias's is summed over the axes that it repeats."""
    for name, result in got.items():
        right, size = (x[at if name == "bias" else name] for x in (wanted.arrays, wanted.sizes))
        if name == "bias":
            assert bias is not None and result.dtype == bias.dtype
            axes = tuple(axis for axis in (0, 1) if bias.shape[axis] == 1)
            right, size = right.sum(axes, keepdims=True), size.sum(axes, keepdims=True)
        assert result.flags.c_contiguous
        check(result.astype(got["out"].dtype), right, "attention", scale=1e-3 + size)


def ahead_of(mask_type: str, bottom_right: bool | None, gap: Any) -> Any:
    bottom = "bottom_right" in mask_type or (
        mask_type in ("no_mask", "padding", "arbitrary") and bottom_right is not False
    )
    return gap if bottom else 0


@pytest.mark.sanitizer
@pytest.mark.parametrize("mask_type", ["no_mask", "causal", "causal_bottom_right", "arbitrary"])
@pytest.mark.parametrize("window", [(4, 0), (0, 0), (3, 5), (-1, 2), (500, -1)], ids=str)
def test_windows(device: Device, window: tuple[int, int], mask_type: str) -> None:
    for corner, (queries, keys) in ((None, (19, 23)), (False, (33, 9))):
        shape = (2, 4, queries, keys)
        arrays, mask = sample(shape=shape), mask_for(mask_type, *shape[:2], queries, keys)
        off = oracle.hidden(shape, mask_type, mask)
        off |= oracle.band(shape, window, ahead_of(mask_type, corner, keys - queries))
        got, _ = run(arrays, device, mask_type=mask_type, mask=mask, window=window, bottom_right=corner)
        compare(got, oracle.whole(arrays, off, 16**-0.5))


def test_windows_over_several_tiles(device: Device) -> None:
    shape = (1, 2, 300, 340)
    arrays = sample(BF16, shape)
    off = oracle.hidden(shape, "causal_bottom_right") | oracle.band(shape, (37, 0), 40)
    got, _ = run(arrays, device, mask_type="causal_bottom_right", window=(37, 0))
    compare(got, oracle.whole(arrays, off, 16**-0.5))


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
@pytest.mark.parametrize("kind", ["pre_scale_bias", "post_scale_bias"])
@pytest.mark.parametrize("lead", [(1, 1), (2, 1), (1, 4), (2, 4)], ids=str)
def test_biases(device: Device, dtype: np.dtype, kind: str, lead: tuple[int, int]) -> None:
    """Values and the gradient of the bias, summed over what it repeats."""
    for cap, mask_type in ((0.0, "causal"), (1.5, "arbitrary")):
        arrays, bias = sample(dtype), normal((*lead, *SHAPE[2:]), dtype, 11)
        mask = mask_for(mask_type, *SHAPE)
        got, top = run(
            arrays, device, mask_type=mask_type, mask=mask, bias_type=kind, bias=bias, softcap=cap, max_logit=True
        )
        at, value = kind.split("_")[0], bias.astype(np.float64)
        off = oracle.hidden(SHAPE, mask_type, mask)
        wanted = oracle.whole(arrays, off, 16**-0.5, cap=cap, **{at: value})
        compare(got, wanted, bias, at)
        assert "bias" in got
        np.testing.assert_allclose(top, wanted.top, rtol=1e-5, atol=1e-5)


def test_a_bias_of_another_dtype_and_none_wanted(device: Device) -> None:
    arrays, bias = sample(BF16), normal((1, 4, *SHAPE[2:]), F32, 11)
    got, _ = run(arrays, device, mask_type="no_mask", bias_type="post_scale_bias", bias=bias)
    off = np.zeros(SHAPE, bool)
    compare(got, oracle.whole(arrays, off, 16**-0.5, post=bias), bias)
    q, k, v, dout = (to_device(x, device) for x in arrays)
    out, saved = attention(
        q, k, v, mask_type="no_mask", bias_type="post_scale_bias", bias=to_device(bias, device), backend="composed"
    )
    found = attention_vjp(dout, q, k, v, out, saved, bias_gradient=False)
    assert found.bias is None and to_numpy(found.q).tobytes() == got["q"].tobytes()


def test_slopes_of_alibi() -> None:
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    wanted = [2.0**-i for i in range(1, 9)] + [2.0 ** (-i / 2) for i in (1, 3, 5, 7)]
    np.testing.assert_allclose(alibi_slopes(12), wanted, rtol=1e-7)


@pytest.mark.parametrize("mask_type", ["no_mask", "causal", "causal_bottom_right", "padding_causal_bottom_right"])
@pytest.mark.parametrize("form", ["usual", "heads", "batch"])
def test_alibi(device: Device, form: str, mask_type: str) -> None:
    """Distances to the diagonal of either corner; of entries with padding, that of what is no padding."""
    arrays = sample(BF16 if form == "usual" else F32)
    slopes = {"usual": None, "heads": normal((4,), F32, 12), "batch": normal((2, 4), F32, 12)}[form]
    ends = np.array([[19, 12], [20, 23]])
    mask = oracle.padding(SHAPE, ends) if mask_type.startswith("padding") else None
    for corner in (None, False):
        gap = ends[1] - ends[0] if mask else SHAPE[3] - SHAPE[2]
        far = abs(oracle.distances(SHAPE, ahead_of(mask_type, corner, gap)))
        steep = (alibi_slopes(4) if slopes is None else slopes).astype(np.float64)
        steep = steep.reshape(-1, 4, 1, 1)
        got, _ = run(
            arrays, device, mask_type=mask_type, mask=mask, bias_type="alibi", slopes=slopes, bottom_right=corner
        )
        off = oracle.hidden(SHAPE, mask_type, mask)
        compare(got, oracle.whole(arrays, off, 16**-0.5, post=-steep * far))


@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
@pytest.mark.parametrize("kind", ["off-by-one", "learnable"])
def test_softmax_types(device: Device, dtype: np.dtype, kind: str) -> None:
    """Values and the gradient of the sink; rows without keys give 0."""
    arrays = sample(dtype)
    sink = normal((4,), F32, 13) if kind == "learnable" else None
    for mask_type in ("causal", "arbitrary", "causal_bottom_right"):
        mask = mask_for(mask_type, *SHAPE)
        if mask is not None:
            mask[0, :, 3] = True
        got, _ = run(arrays, device, mask_type=mask_type, mask=mask, softmax_type=kind, sink=sink)
        off = oracle.hidden(SHAPE, mask_type, mask)
        compare(got, oracle.whole(arrays, off, 16**-0.5, sink=np.zeros(4) if sink is None else sink))
        assert mask is None or not got["out"][0, 3].any()
        assert ("sink" in got) == (kind == "learnable")


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_softcap(device: Device, dtype: np.dtype) -> None:
    arrays = sample(dtype)
    arrays[0] = (arrays[0].astype(F32) * 4).astype(dtype)
    for cap in (0.7, 30.0):
        got, top = run(arrays, device, softcap=cap, max_logit=True)
        wanted = oracle.whole(arrays, oracle.hidden(SHAPE, "causal"), 16**-0.5, cap=cap)
        compare(got, wanted)
        np.testing.assert_allclose(top, wanted.top, rtol=1e-5)


@pytest.mark.parametrize("kind", ["vanilla", "learnable"])
def test_everything_at_once_with_dropout(device: Device, kind: str) -> None:
    draw: dict[str, Any] = {"key": 7, "ordinal": 2}
    factors, _ = dropout(np.ones(SHAPE, F32), 0.4, step=np.asarray(3, np.int64), **draw)
    bias, sink = normal((2, 1, *SHAPE[2:]), F32, 11), normal((4,), F32, 13) if kind == "learnable" else None
    for dtype in (F32, BF16):
        arrays = sample(dtype)
        got, top = run(
            arrays, device, mask_type="causal_bottom_right", window=(6, 0), bias_type="post_scale_bias", bias=bias,
            softmax_type=kind, sink=sink, softcap=2.0, max_logit=True, dropout=0.4, step=np.asarray(3, np.int64),
            **draw,
        )  # fmt: skip
        off = oracle.hidden(SHAPE, "causal_bottom_right") | oracle.band(SHAPE, (6, 0), 4)
        wanted = oracle.whole(arrays, off, 16**-0.5, factors, post=bias, cap=2.0, sink=sink)
        compare(got, wanted, bias)
        np.testing.assert_allclose(top, wanted.top, rtol=1e-4)


def test_the_largest_score_of_heads_that_see_nothing(device: Device) -> None:
    arrays = sample(shape=(1, 4, 3, 5))
    mask = np.zeros((1, 4, 1, 1), bool)
    mask[0, 2] = True
    _, top = run(arrays, device, mask_type="arbitrary", mask=mask, max_logit=True)
    assert top.dtype == F32 and np.isneginf(top[2]) and np.isfinite(top[[0, 1, 3]]).all()
    _, top = run(sample(shape=(0, 4, 3, 5)), device, mask_type="no_mask", max_logit=True)
    assert np.isneginf(top).all()


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["pre_scale_bias", "post_scale_bias"])
def test_torch(device: Device, kind: str) -> None:
    """The formula in torch's float64 with its own gradients for q, k, v, bias and sink."""
    torch = need_oracle("torch")
    arrays = sample()
    bias, sink, mask = normal((1, 4, *SHAPE[2:]), F32, 1), normal((4,), F32, 2), mask_for("arbitrary", *SHAPE)
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (*arrays[:3], bias, sink)]
    q, k, v, b, s = leaves
    heads_first = (x.transpose(1, 2).repeat_interleave(4 // x.shape[2], 1) for x in (q, k, v))
    q4, k4, v4 = heads_first
    scores = q4 @ k4.mT
    scores = 1.5 * torch.tanh(0.25 * (scores + b) / 1.5) if kind[1] == "r" else 1.5 * torch.tanh(scores / 6) + b
    scores = scores.masked_fill(torch.tensor(mask), -torch.inf)
    joined = torch.cat([scores, s.reshape(1, 4, 1, 1).expand(*SHAPE[:3], 1)], -1)
    wanted = (torch.softmax(joined, -1)[..., :-1] @ v4).transpose(1, 2)
    wanted.backward(torch.tensor(arrays[3], dtype=torch.float64))
    got, _ = run(
        arrays, device, mask_type="arbitrary", mask=mask, bias_type=kind, bias=bias, softmax_type="learnable",
        sink=sink, softcap=1.5,
    )  # fmt: skip
    for name, right in zip(("out", "q", "k", "v", "bias", "sink"), (wanted.detach(), *(x.grad for x in leaves))):
        check(got[name], right.numpy(), "attention", scale=8)


def test_repeats_its_bits(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over the axes that a bias repeats have one order, whatever the number of threads."""
    arrays, bias = problem(3, 60, 70, 4, 2, 16, 16), normal((1, 1, 60, 70), F32, 1)
    options: dict[str, Any] = {"bias_type": "post_scale_bias", "bias": bias, "softmax_type": "learnable"}
    options |= {"sink": normal((4,), F32, 2), "softcap": 5.0}
    first, _ = run(arrays, device, **options)
    for threads in ("1", "3"):
        monkeypatch.setenv("NVFP_NUM_THREADS", threads)
        again, _ = run(arrays, device, **options)
        assert all(first[name].tobytes() == x.tobytes() for name, x in again.items())


def test_what_does_not_fit(device: Device) -> None:
    q, k, v, _ = (to_device(x, device) for x in sample(shape=(2, 4, 4, 6)))
    bias, words = (to_device(x, device) for x in (np.zeros((1, 4, 4, 6), F32), np.zeros(2, np.int32)))
    sink = to_device(np.zeros(4, F32), device)
    kinds: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
        ({"bias_type": "relative"}, ArgumentError, "bias_type out of"),
        ({"softmax_type": "sparse"}, ArgumentError, "softmax_type out of"),
        ({"bias": bias}, ArgumentError, "a bias with 'no_bias'"),
        ({"bias_type": "post_scale_bias"}, ArgumentError, "no bias with 'post_scale_bias'"),
        ({"bias_type": "post_scale_bias", "bias": bias[:, :3]}, ShapeError, r"a bias \[1 or 2, 1 or 4, 4, 6\]"),
        ({"bias_type": "post_scale_bias", "bias": words.reshape(1, 1, 1, 2)}, DTypeError, "bias"),
        ({"sink": sink}, ArgumentError, "a sink with 'vanilla'"),
        ({"softmax_type": "learnable"}, ArgumentError, "no sink with 'learnable'"),
        ({"softmax_type": "learnable", "sink": sink[:3]}, ShapeError, "sink of shape"),
        ({"softmax_type": "learnable", "sink": words}, DTypeError, "sink of float32"),
        ({"slopes": sink}, ArgumentError, "a slopes with 'no_bias'"),
        ({"bias_type": "alibi", "slopes": sink[:2]}, ShapeError, "slopes of shape"),
        ({"softcap": -1.0}, ArgumentError, "a softcap of at least 0"),
        ({"lengths": Lengths(words, words)}, ArgumentError, "a padding type without a mask"),
        ({"lengths": Lengths(words[:1], words), "mask_type": "padding"}, ShapeError, "queries of shape"),
        ({"lengths": Lengths(sink[:2], words), "mask_type": "padding"}, DTypeError, "queries of int32"),
        ({"lengths": Lengths(words, words, words, words, (4, 6))}, ShapeError, r"q \[T, H, D\]"),
    )
    for options, error, text in kinds:
        with pytest.raises(error, match=text):
            attention(q, k, v, **options)
    with pytest.raises(DTypeError, match="float16"):
        attention(q, k, v, bias_type="post_scale_bias", bias=to_device(np.zeros((1, 4, 4, 6)), device))
