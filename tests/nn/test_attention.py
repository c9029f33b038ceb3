"""Softmax and attention as the tape sees them, `DotProductAttention`, and `nf.explain_attention`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, GradientError, NotBuiltError, ShapeError
from nvfp.kernels.dropout import dropout as drop
from nvfp.nn._dropout import DropoutState
from nvfp.nn.functional.attention import attention
from nvfp.nn.functional.softmax import softmax
from tests.kernels.dense import F32, normal
from tests.oracles import attention as oracle, softmax as softmax_oracle
from tests.tolerances import check


def variables(*shapes: tuple[int, ...]) -> list[nf.Array]:
    return [nf.asarray(normal(shape, F32, seed), requires_grad=True) for seed, shape in enumerate(shapes)]


def check_gradients(q: nf.Array, k: nf.Array, v: nf.Array, y: nf.Array, off: np.ndarray, factors: Any = 1.0) -> None:
    """Run backward from y [B, L, H, Dv] and hold y and the gradients against the oracle."""
    arrays, scale = [np.asarray(x) for x in (q, k, v)], q.shape[-1] ** -0.5
    dout = normal(y.shape, F32, 9)
    check(np.asarray(y), oracle.attention(*arrays, off, scale, factors), "attention", scale=4)
    y.backward(nf.asarray(dout))
    for x, wanted in zip((q, k, v), oracle.attention_vjp(dout, *arrays, off, scale, factors)):
        check(np.asarray(x.grad), wanted, "attention", scale=8)


def test_softmax(device: Any) -> None:
    (x,) = variables((2, 3, 5))
    mask = normal((3, 5), seed=3) > 0
    y = softmax(x, scale=0.5, mask=nf.asarray(mask), causal="bottom_right")
    wanted, _ = softmax_oracle.softmax(np.asarray(x), 0.5, mask, "bottom_right")
    check(np.asarray(y), wanted, "softmax")
    dy = normal((2, 3, 5), seed=1)
    y.backward(nf.asarray(dy))
    check(np.asarray(x.grad), softmax_oracle.softmax_vjp(wanted, dy, 0.5), "softmax", scale=4)
    assert softmax(nf.asarray([1.0, 1.0])).tolist() == [0.5, 0.5]


def test_attention_of_a_fused_projection(device: Any) -> None:
    """Gradients reach slices of one array."""
    fused = nf.asarray(normal((2, 6, 3, 2, 8)), requires_grad=True)
    parts = [fused[:, :, i] for i in range(3)]
    off = oracle.hidden((2, 2, 6, 6), "causal")
    y = attention(*parts)
    dout = normal(y.shape, F32, 9)
    y.backward(nf.asarray(dout))
    wanted = oracle.attention_vjp(dout, *(np.asarray(x) for x in parts), off, 8**-0.5)
    check(np.asarray(fused.grad), np.stack(wanted, axis=2), "attention", scale=8)


def test_only_wanted_gradients(device: Any) -> None:
    q, k, v = variables((1, 4, 2, 8), (1, 5, 1, 8), (1, 5, 1, 3))
    for x in (q, v):
        x.requires_grad = False
    attention(q, k, v, attn_mask_type="no_mask").sum().backward()
    assert q.grad is None and v.grad is None and k.grad.shape == k.shape


def test_masks(device: Any) -> None:
    q, k, v = variables((2, 4, 4, 8), (2, 6, 2, 8), (2, 6, 2, 8))
    keys = np.arange(6) >= np.array([4, 6])[:, None]
    queries = np.arange(4) >= np.array([4, 2])[:, None]
    pair = queries[:, None, None, :], keys[:, None, None, :]
    y = attention(q, k, v, attn_mask_type="padding", attention_mask=(nf.asarray(pair[0]), nf.asarray(pair[1])))
    check_gradients(q, k, v, y, oracle.hidden((2, 4, 4, 6), "padding", pair))


def test_a_mask_written_in_between_is_noticed(device: Any) -> None:
    q, k, v = variables((1, 2, 1, 4), (1, 2, 1, 4), (1, 2, 1, 4))
    mask = nf.zeros((2, 2), dtype=nf.bool)
    y = attention(q, k, v, attn_mask_type="arbitrary", attention_mask=mask)
    mask.storage.touch()
    with pytest.raises(GradientError, match="attention"):
        y.sum().backward()


def test_dropout_draws_and_steps(device: Any) -> None:
    q, k, v = variables((2, 5, 2, 8), (2, 5, 2, 8), (2, 5, 2, 8))
    state = DropoutState(nf.random.default_rng(3))
    draw = state.draw(q.raw)
    options: dict[str, Any] = {"key": draw.key, "ordinal": draw.ordinal, "step": np.zeros((), np.int64)}
    factors, _ = drop(np.ones((2, 2, 5, 5), F32), 0.4, **options)
    y = attention(q, k, v, dropout=0.4, draw=draw, backend="composed")
    check_gradients(q, k, v, y, oracle.hidden((2, 2, 5, 5), "causal"), factors)
    assert int(state.state_dict()["dropout.step"]) == 1
    assert state.calls == 0
    with pytest.raises(ArgumentError, match="draw= with dropout"):
        attention(q, k, v, dropout=0.4)


def test_second_order_is_refused_by_name(device: Any) -> None:
    def f(x: nf.Array) -> nf.Array:
        return attention(x, x, x).sum()

    with pytest.raises(GradientError, match="attention"):
        nf.grad(lambda x: nf.grad(f)(x).sum())(nf.ones((1, 2, 1, 2)))


@pytest.mark.parametrize("form", ["bshd", "sbhd"])
def test_layer(device: Any, form: str) -> None:
    layer = nf.nn.DotProductAttention(4, (8, 6), num_gqa_groups=2, qkv_format=form, softmax_scale=0.3)
    q, k, v = (normal(s, F32, i) for i, s in enumerate(((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6))))
    given = [nf.asarray(x if form == "bshd" else np.ascontiguousarray(x.swapaxes(0, 1))) for x in (q, k, v)]
    y = np.asarray(layer(*given, attn_mask_type="causal_bottom_right"))
    wanted = oracle.attention(q, k, v, oracle.hidden((2, 4, 5, 7), "causal_bottom_right"), 0.3).reshape(2, 5, 24)
    check(y if form == "bshd" else y.swapaxes(0, 1), wanted, "attention", scale=4)
    assert not layer.parameters() and not layer.state_dict()
    assert repr(layer) == "DotProductAttention(4, (8, 6), num_gqa_groups=2, attn_mask_type='causal')"


def test_gradients_of_bias_and_offset(device: Any) -> None:
    """Both are variables of the tape; the largest scores come beside the result."""
    q, k, v, bias = variables((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 6), (1, 4, 5, 7))
    layer = nf.nn.DotProductAttention(
        4, (8, 6), num_gqa_groups=2, softmax_type="learnable", return_max_logit=True, softcap=2.0, window_size=(3, 0)
    )
    assert layer.softmax_offset.shape == (1, 4, 1, 1) and list(layer.state_dict()) == ["softmax_offset"]
    sink = normal((4,), F32, 12)
    layer.load_state_dict({"softmax_offset": sink.reshape(1, 4, 1, 1)})
    y, top = layer(
        q,
        k,
        v,
        attn_mask_type="causal_bottom_right",
        core_attention_bias_type="post_scale_bias",
        core_attention_bias=bias,
    )
    off = oracle.hidden((2, 4, 5, 7), "causal_bottom_right") | oracle.band((2, 4, 5, 7), (3, 0), 2)
    dout = normal((2, 5, 4, 6), F32, 9)
    wanted = oracle.whole(
        [*map(np.asarray, (q, k, v)), dout], off, 8**-0.5, post=np.asarray(bias), cap=2.0, sink=sink
    )  # fmt: skip
    check(np.asarray(y).reshape(dout.shape), wanted.arrays["out"], "attention", scale=4)
    np.testing.assert_allclose(np.asarray(top), wanted.top, rtol=1e-5)
    y.backward(nf.asarray(dout.reshape(y.shape)))
    right = wanted.arrays | {"bias": wanted.arrays["post"].sum(0, keepdims=True)}
    for name, x in (("q", q), ("k", k), ("v", v), ("bias", bias), ("sink", layer.softmax_offset)):
        check(np.asarray(x.grad), right[name].reshape(x.shape), "attention", scale=8)


@pytest.mark.parametrize("recomputed", [False, True])
def test_packed_layer(device: Any, recomputed: bool) -> None:
    """thd: the entries one behind the other; the rows of each are those of a batch of its own."""
    layer = nf.nn.DotProductAttention(2, 8, qkv_format="thd", attn_mask_type="padding_causal")
    (x,) = variables((9, 2, 8))
    ends = nf.asarray(np.array([0, 3, 5, 9], np.int64))
    options: dict[str, Any] = {"core_attention_bias_type": "alibi", "checkpoint_core_attention": recomputed}
    y = layer(x, x, x, cu_seqlens_q=ends, max_seqlen_q=4, **options)
    assert y.shape == (9, 16)
    y.backward(nf.asarray(normal((9, 16), F32, 5)))
    for a, b in ((0, 3), (3, 5), (5, 9)):
        alone = nf.asarray(np.asarray(x)[None, a:b], requires_grad=True)
        part = layer(alone, alone, alone, qkv_format="bshd", attn_mask_type="causal", **options)
        part.backward(nf.asarray(normal((9, 16), F32, 5)[None, a:b]))
        check(np.asarray(y)[a:b], np.asarray(part)[0], "attention", scale=4)
        check(np.asarray(x.grad)[a:b], np.asarray(alone.grad)[0], "attention", scale=8)
    gaps = nf.asarray(np.array([0, 4, 7, 11], np.int32))
    spread = nf.asarray(np.insert(np.asarray(x), [3, 5], 0, axis=0))
    wide = layer(
        spread, spread, spread, cu_seqlens_q=ends, cu_seqlens_q_padded=gaps, cu_seqlens_kv_padded=gaps, max_seqlen_q=4,
        pad_between_seqs=True, core_attention_bias_type="alibi",
    )  # fmt: skip
    check(np.delete(np.asarray(wide), [3, 6], axis=0), np.asarray(y), "attention", scale=4)
    assert not np.asarray(wide)[[3, 6]].any()
    for given, text in (
        ({}, "cu_seqlens_q with packed arrays"), ({"cu_seqlens_q": ends}, "max_seqlen_q"),
        ({"cu_seqlens_q": ends, "pad_between_seqs": True, "max_seqlen_q": 4}, "with pad_between_seqs"),
        ({"cu_seqlens_q": ends, "cu_seqlens_kv": ends[:3], "max_seqlen_q": 4}, r"cu_seqlens_kv \[3 \+ 1\]"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            layer(x, x, x, **given)


@pytest.mark.parametrize("form", ["bshd", "sbhd"])
def test_lengths_in_place_of_a_mask(device: Any, form: str) -> None:
    layer = nf.nn.DotProductAttention(2, 8, qkv_format=form, attn_mask_type="padding", softmax_type="off-by-one")
    assert not layer.state_dict()
    x = normal((3, 5, 2, 8))
    ends = nf.asarray(np.array([0, 3, 5, 9], np.int32))
    hidden = nf.asarray((np.arange(5) >= np.array([[3], [2], [4]]))[:, None, None, :])
    given = nf.asarray(x if form == "bshd" else np.ascontiguousarray(x.swapaxes(0, 1)))
    found = np.asarray(layer(given, given, given, cu_seqlens_q=ends))
    wanted = np.asarray(layer(given, given, given, (hidden, hidden)))
    check(found, wanted, "attention", scale=4)


def test_layer_drops_in_training_only_and_resumes(device: Any) -> None:
    def make() -> nf.nn.DotProductAttention:
        return nf.nn.DotProductAttention(2, 8, attention_dropout=0.5, rng=nf.random.default_rng(0))

    x = nf.asarray(normal((2, 6, 2, 8)))
    layer = make()
    plain = np.asarray(layer.eval()(x, x, x))
    assert np.asarray(make().eval()(x, x, x)).tobytes() == plain.tobytes() and not layer.state_dict()
    layer.train()
    first = np.asarray(layer(x, x, x))
    assert first.tobytes() != plain.tobytes() and first.tobytes() == np.asarray(make()(x, x, x)).tobytes()
    state = {name: np.array(np.asarray(value)) for name, value in layer.state_dict().items()}
    again = make()
    again.load_state_dict(state)
    assert np.asarray(again(x, x, x)).tobytes() == np.asarray(layer(x, x, x)).tobytes() != first.tobytes()


def test_what_the_layer_refuses(device: Any) -> None:
    layer = nf.nn.DotProductAttention(4, 8)
    x = nf.ones((1, 2, 4, 8))
    with pytest.raises(ShapeError, match=r"key_layer \[.., .., 4, 8\], got \(1, 2, 2, 8\)"):
        layer(x, x[:, :, :2], x)
    with pytest.raises(ArgumentError, match="a mask that 'causal' goes with"):
        layer(x, x, x, nf.zeros((1, 1, 1, 2), dtype=nf.bool))
    for options, error, text in (
        ({"qkv_format": "hbsd"}, ArgumentError, "bshd, sbhd, thd"),
        ({"softmax_type": "sparse"}, ArgumentError, "softmax_type"),
        ({"num_gqa_groups": 3}, ArgumentError, "divides"), ({"attention_dropout": 2}, ArgumentError, "probability"),
        ({"attn_mask_type": "left"}, ArgumentError, "attn_mask_type"), ({"colour": 1}, TypeError, "colour"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            nf.nn.DotProductAttention(4, 8, **options)
    with pytest.raises(NotBuiltError, match="fp8_output"):
        layer(x, x, x, fp8_output=True)
    assert nf.nn.DotProductAttention(4, 8, attn_mask_type="causal,padding").attn_mask_type == "padding_causal"


def test_explain(device: Any) -> None:
    q, k = nf.ones((2, 6, 4, 8)), nf.ones((2, 9, 2, 8))
    choice = nf.explain_attention(q, k, k)
    assert choice.backend == "composed" and choice.reasons["composed"] is None
    why = "the arrays are on the CPU" if device.type == "cpu" else "bfloat16 and float16, not in float32"
    assert why in (choice.reasons["cudnn"] or "") and f"not cudnn: {choice.reasons['cudnn']}" in repr(choice)
    keys = nf.zeros((2, 1, 1, 9), dtype=nf.bool)
    pair = nf.zeros((2, 1, 1, 6), dtype=nf.bool), keys
    kind = "padding_causal_bottom_right"
    for mask in (keys, pair):
        assert nf.explain_attention(q, k, k, attn_mask_type=kind, attention_mask=mask).backend == "composed"
    shapes = q.shape, k.shape, k.shape
    assert nf.explain_attention(*shapes, attn_mask_type=kind, dtype=nf.float32).backend == "composed"
    packed = (12, 4, 8), (20, 2, 8), (20, 2, 8)
    for options in (
        {"softmax_type": "learnable"}, {"core_attention_bias_type": "alibi"}, {"softcap": 3.0},
        {"core_attention_bias_type": "post_scale_bias", "core_attention_bias": (1, 4, 6, 9)},
        {"return_max_logit": True},
        {"attn_mask_type": "padding", "cu_seqlens_q": (3,), "cu_seqlens_kv": (3,)},
    ):  # fmt: skip
        assert nf.explain_attention(*shapes, dtype=nf.float32, **options).backend == "composed"
    found = nf.explain_attention(*packed, dtype=nf.float32, cu_seqlens_q=(3,), max_seqlen_q=6, max_seqlen_kv=9)
    assert found.backend == "composed" and found.reasons["flash-attn"] == "not used, needs torch"
    with pytest.raises(ArgumentError, match="cu_seqlens_q with packed arrays"):
        nf.explain_attention(*packed)
    forced = nf.explain_attention(*shapes, backend="composed")
    assert forced.backend == "composed" and forced.reasons["cudnn"]
    assert nf.explain_attention(*shapes, dtype=nf.float32, window_size=(3, 0)).backend == "composed"
    with pytest.raises(ShapeError, match=r"q \[B, Lq, H, D\]"):
        nf.explain_attention((2, 6), k, k, dtype=nf.float32)
    with pytest.raises(DTypeError, match="Arrays or their shapes"):
        nf.explain_attention(3, k, k)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="lengths in whole numbers, got 'a'"):
        nf.explain_attention((2, 6, 4, "a"), k, k)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="lengths of at least 0"):
        nf.explain_attention((2, -6, 4, 8), k, k)
    with pytest.raises(ArgumentError, match="mask_type out of"):
        nf.explain_attention(q, k, k, attn_mask_type=3)  # type: ignore[arg-type]


def test_explain_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvfp.nn.functional.attention.cuda_problem", lambda: "no driver")
    shape = (2, 8, 4, 64)
    choice = nf.explain_attention(shape, shape, shape, device="cuda")
    assert choice.backend is None and repr(choice).startswith("attention runs on: nothing here")
    assert set(choice.reasons.values()) == {"no CUDA device here: no driver", "not used, needs torch"}


def test_any_order_on_request(device: Any) -> None:
    """Off cuDNN there is one order; with it gradients agree within attention's tolerance."""
    drawn = np.random.default_rng(0).normal(size=(3, 2, 64, 2, 64)).astype(np.float16)
    q, k, v = (nf.asarray(x) for x in drawn)
    found = []
    for deterministic in (True, False):
        parts = [nf.asarray(x, copy=True, requires_grad=True) for x in (q, k, v)]
        layer = nf.nn.DotProductAttention(2, 64, deterministic=deterministic)
        layer(*parts).sum().backward()
        found.append([np.asarray(x.grad.astype(nf.float32)) for x in parts])
    for a, b in zip(*found, strict=True):
        if device.type == "cpu":
            assert np.array_equal(a, b)
        check(a.astype(np.float16), b.astype(np.float64), "attention", scale=64.0, factor=2)
