"""`InferenceParams`: cached decode against the whole forward pass, ragged batches, pages, what does not fit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, CacheFullError, DTypeError, GradientError, NotBuiltError, ShapeError, StateError
from nvfp.nn._cached import Pages
from tests.tolerances import check

PAGED: dict[str, Any] = {"is_paged": True, "page_size": 4}
kinds = pytest.mark.parametrize("kind", [{}, PAGED], ids=["contiguous", "paged"])
dtypes = pytest.mark.parametrize("dtype", [nf.float32, nf.bfloat16, nf.float16], ids=str)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with nf.no_grad():
        yield


def values(array: Any) -> np.ndarray:
    return np.asarray(array.astype(nf.float32))


def normal(*shape: int, seed: int = 0, dtype: Any = nf.float32) -> Any:
    return nf.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).astype(dtype)


def near(got: Any, wanted: Any, dtype: Any, row: str = "layer") -> None:
    a, e = values(got), values(wanted)
    check(a, e, row, dtype=dtype, scale=max(1e-3, float(np.abs(e).max())))


def generate(layer: Any, x: Any, cache: Any, steps: list[int], **options: Any) -> Any:
    """The outputs of a layer that gets x [B, L, E] in pieces."""
    found, at = [], 0
    for n in steps:
        cache.pre_step(dict.fromkeys(range(x.shape[0]), n))
        found.append(layer(x[:, at : at + n], inference_params=cache, **options))
        at += n
    return nf.concat(found, axis=1)


@kinds
@dtypes
def test_attention_layer(device: Any, dtype: Any, kind: dict[str, Any]) -> None:
    """A beginning, single tokens, several at once: what the whole sequence gives; the beginning bit for bit."""
    layer = nf.nn.MultiheadAttention(32, 4, num_gqa_groups=2, dtype=dtype, rng=nf.random.default_rng(0)).eval()
    freqs = nf.nn.RotaryPositionEmbedding(8)(24)
    x = normal(2, 13, 32, dtype=dtype)
    whole = layer(x, rotary_pos_emb=freqs)
    cache = nf.nn.InferenceParams(2, 24, 2, 8, dtype=dtype, **kind)
    got = generate(layer, x, cache, [6, 1, 1, 3, 1, 1], rotary_pos_emb=freqs)
    near(got, whole, dtype)
    if device.type == "cpu":  # cuDNN's plan of another length need not give its bits
        assert values(got[:, :6]).tobytes() == values(layer(x[:, :6], rotary_pos_emb=freqs)).tobytes()
    assert cache.sequences == {0: 13, 1: 13} and cache.batch_size == 2


@kinds
@pytest.mark.parametrize(
    "options", [{"qk_norm_type": "RMSNorm"}, {"window_size": (3, 0)}, {"qkv_format": "sbhd"}], ids=str
)
def test_variants(device: Any, options: dict[str, Any], kind: dict[str, Any]) -> None:
    """Norms of heads behind the rotation, a sliding window, sequences first; interleaved pairs."""
    options = dict(options)
    window = options.pop("window_size", None)
    layer = nf.nn.MultiheadAttention(16, 2, rng=nf.random.default_rng(0), rotary_pos_interleaved=True, **options).eval()
    freqs = nf.nn.RotaryPositionEmbedding(8, interleaved=True)(12)
    x = normal(2, 9, 16)
    sbhd = options.get("qkv_format") == "sbhd"
    turned = (lambda a: nf.swapaxes(a, 0, 1)) if sbhd else (lambda a: a)
    if window is None:
        whole = turned(layer(turned(x), rotary_pos_emb=freqs))
    else:
        i, j = np.ogrid[:9, :9]
        mask = nf.asarray(((j > i) | (j < i - 3)).reshape(1, 1, 9, 9))
        whole = layer(x, mask, attn_mask_type="arbitrary", rotary_pos_emb=freqs)
    cache = nf.nn.InferenceParams(2, 12, 2, 8, dtype=nf.float32, **kind)

    def piece(part: Any, **more: Any) -> Any:
        return turned(layer(turned(part), rotary_pos_emb=freqs, **more))

    got = generate(piece, x, cache, [4, 1, 2, 1, 1], **({} if window is None else {"window_size": window}))
    near(got, whole, nf.float32)


@kinds
def test_a_transformer_of_two_layers(device: Any, kind: dict[str, Any]) -> None:
    """Each layer keeps its own; hidden sizes of the two caches are one."""
    rng = nf.random.default_rng(3)
    layers = [nf.nn.TransformerLayer(32, 64, 4, num_gqa_groups=2, rng=rng).eval() for _ in range(2)]
    freqs = nf.nn.RotaryPositionEmbedding(8)(16)

    def model(x: Any, **options: Any) -> Any:
        for layer in layers:
            x = layer(x, rotary_pos_emb=freqs, **options)
        return x

    x = normal(3, 10, 32)
    cache = nf.nn.InferenceParams(4, 16, 2, 8, dtype=nf.float32, **kind)
    near(generate(model, x, cache, [5] + [1] * 5), model(x), nf.float32)


@kinds
@dtypes
def test_sequences_come_grow_and_go(device: Any, dtype: Any, kind: dict[str, Any]) -> None:
    """Continuous batching: ragged steps, a sequence ends, another takes its memory, rows change their order."""
    layer = nf.nn.MultiheadAttention(16, 2, dtype=dtype, rng=nf.random.default_rng(0)).eval()
    freqs = nf.nn.RotaryPositionEmbedding(8)(12)
    texts = {name: normal(1, 12, 16, seed=n, dtype=dtype) for n, name in enumerate("abcd")}
    wholes = {name: layer(x, rotary_pos_emb=freqs) for name, x in texts.items()}
    pages = {"total_num_pages": 7} if kind else {}
    cache = nf.nn.InferenceParams(3, 12, 2, 8, dtype=dtype, **kind, **pages)
    done = dict.fromkeys(texts, 0)
    steps: list[dict[str, int]] = [
        {"a": 4, "b": 2}, {"a": 1, "b": 1, "c": 5}, {"b": 1, "c": 1}, {"c": 1, "d": 7, "b": 3}, {"d": 1, "b": 1}
    ]  # fmt: skip
    for step in steps:
        cache.pre_step(step)
        longest = max(step.values())
        rows = [texts[n][:, done[n] : done[n] + longest] for n in step]
        rows = [nf.concat([r, nf.zeros((1, longest - r.shape[1], 16), dtype=dtype)], axis=1) for r in rows]
        y = layer(nf.concat(rows, axis=0), rotary_pos_emb=freqs, inference_params=cache)
        for b, (name, new) in enumerate(step.items()):
            near(y[b, :new], wholes[name][0, done[name] : done[name] + new], dtype)
            done[name] += new
    assert cache.sequences == {"d": 8, "b": 8}
    assert np.asarray(cache.get_seqlens_pre_step()).tolist() == [7, 7, 0]


def test_an_empty_row_may_follow(device: Any) -> None:
    """A batch of a fixed size whose last rows no sequence uses."""
    layer = nf.nn.DotProductAttention(2, 8).eval()
    cache = nf.nn.InferenceParams(4, 8, 2, 8, dtype=nf.float32)
    q, k, v = (normal(4, 1, 2, 8, seed=n) for n in range(3))
    cache.pre_step({"a": 1})
    y = layer(q, k, v, inference_params=cache)
    np.testing.assert_allclose(values(y)[0], values(v)[0].reshape(1, 16), rtol=1e-6)
    assert not values(y)[1:].any()


@kinds
def test_not_causal(device: Any, kind: dict[str, Any]) -> None:
    """Under no_mask a step sees all its tokens, earlier and new."""
    layer = nf.nn.DotProductAttention(4, 8, num_gqa_groups=2, attn_mask_type="no_mask").eval()
    q, k, v = (normal(1, 7, h, 8, seed=h) for h in (4, 2, 2))
    cache = nf.nn.InferenceParams(1, 8, 2, 8, dtype=nf.float32, **kind)
    cache.pre_step({0: 5})
    first = layer(q[:, :5], k[:, :5], v[:, :5], inference_params=cache)
    near(first, layer(q[:, :5], k[:, :5], v[:, :5]), nf.float32)
    cache.pre_step({0: 2})
    near(layer(q[:, 5:], k[:, 5:], v[:, 5:], inference_params=cache), layer(q[:, 5:], k, v), nf.float32)


@kinds
def test_step_by_hand(device: Any, kind: dict[str, Any]) -> None:
    """`step` keeps what it is given at its address; the pages put in order give it back."""
    cache = nf.nn.InferenceParams(2, 8, 2, 4, dtype=nf.bfloat16, head_dim_v=6, **kind)
    k, v = normal(2, 5, 2, 4, dtype=nf.bfloat16), normal(2, 5, 2, 6, seed=1, dtype=nf.bfloat16)
    cache.pre_step({"a": 5, "b": 3})
    keys, kept = cache.step("layer", k, v)
    version = keys.storage.version
    cache.pre_step({"a": 1, "b": 2})
    later = normal(2, 2, 2, 4, seed=2, dtype=nf.bfloat16), normal(2, 2, 2, 6, seed=3, dtype=nf.bfloat16)
    again, _ = cache.step("layer", *(nf.swapaxes(x, 0, 1) for x in later), qkv_format="sbhd")
    assert again is keys and keys.storage.version == version + 1 and kept.shape[-1] == 6
    whole, _ = cache.convert_paged_to_nonpaged("layer")
    assert whole.shape == (2, 8, 2, 4)
    assert values(whole[0, :6]).tolist() == [*values(k[0]).tolist(), *values(later[0][0, :1]).tolist()]
    assert values(whole[1, :5]).tolist() == [*values(k[1, :3]).tolist(), *values(later[0][1]).tolist()]
    cache.reset()
    assert cache.sequences == {} and not np.asarray(cache.page_table).any()
    with pytest.raises(StateError, match="pre_step first"):
        cache.step("layer", k, v)


def test_pages_are_given_out_and_taken_back() -> None:
    pages = Pages(5, 4)
    pages.hold({"a": 5, "b": 4})
    assert {n: len(p) for n, p in pages.of.items()} == {"a": 2, "b": 1}
    before = {n: list(p) for n, p in pages.of.items()}
    with pytest.raises(CacheFullError, match=r"\[InferenceParams\] expected 3 free pages, got 2"):
        pages.hold({"a": 5, "b": 4, "c": 12})
    assert pages.of == before and len(pages.free) == 2
    pages.hold({"c": 12, "b": 5})  # a's pages count as free
    assert len(pages.free) == 0 and sorted(page for held in pages.of.values() for page in held) == [0, 1, 2, 3, 4]


@kinds
def test_a_full_cache_changes_nothing(device: Any, kind: dict[str, Any]) -> None:
    cache = nf.nn.InferenceParams(2, 8, 1, 4, dtype=nf.float32, **kind)
    cache.pre_step({"a": 7, "b": 1})
    held, words = dict(cache.sequences), np.asarray(cache.page_table).tolist()
    for step, match in (
        ({"a": 2, "b": 1}, "at most 8 tokens of 'a', got 9"), ({"a": 1, "b": 1, "c": 1}, "at most 2 sequences, got 3"),
        ({"c": 9}, "at most 8 tokens of 'c'"),
    ):  # fmt: skip
        with pytest.raises(CacheFullError, match=match):
            cache.pre_step(step)
        assert cache.sequences == held and np.asarray(cache.page_table).tolist() == words
    for wrong in (0, -1, 1.5, True):
        with pytest.raises((ArgumentError, DTypeError)):
            cache.pre_step({"a": wrong})  # type: ignore[dict-item]
    if kind:
        small = nf.nn.InferenceParams(2, 8, 1, 4, dtype=nf.float32, total_num_pages=3, **kind)
        small.pre_step({"a": 7})
        with pytest.raises(CacheFullError, match="free pages"):
            small.pre_step({"a": 1, "b": 5})
        assert small.sequences == {"a": 7}
        small.pre_step({"b": 5})
        assert small.sequences == {"b": 5}


def test_what_does_not_fit(device: Any) -> None:
    layer = nf.nn.DotProductAttention(2, 8, layer_number=1, attention_dropout=0.1)
    q = normal(1, 2, 2, 8)
    cache = nf.nn.InferenceParams(2, 8, 2, 8, dtype=nf.float32)
    cache.pre_step({"a": 2})
    with pytest.raises(ArgumentError, match="no dropout"):
        layer(q, q, q, inference_params=cache)
    layer.eval()
    layer(q, q, q, inference_params=cache)
    with pytest.raises(ArgumentError, match="two with layer_number=1"):
        nf.nn.DotProductAttention(2, 8, layer_number=1).eval()(q, q, q, inference_params=cache)
    with pytest.raises(ArgumentError, match="'arbitrary'"):
        layer(q, q, q, attn_mask_type="arbitrary", inference_params=cache)
    with pytest.raises(NotBuiltError, match=r"inference_params\] expected attention_mask=None"):
        layer(q, q, q, nf.zeros((1, 1, 1, 2), dtype=nf.bool), attn_mask_type="padding", inference_params=cache)
    capped = nf.nn.DotProductAttention(2, 8, softcap=5.0).eval()
    with pytest.raises(NotBuiltError, match=r"inference_params\] expected softcap=0\.0"):
        capped(q, q, q, inference_params=cache)
    with pytest.raises(NotBuiltError, match="window to the left"):
        layer(q, q, q, attn_mask_type="no_mask", window_size=(2, 2), inference_params=cache)
    with pytest.raises(ShapeError, match="L >= 2"):
        layer(q[:, :1], q[:, :1], q[:, :1], inference_params=cache)
    with pytest.raises(DTypeError, match="float32, as the cache"):
        layer(*[q.astype(nf.bfloat16)] * 3, inference_params=cache)
    with pytest.raises(ShapeError, match="angles of 8 positions"):
        cache.rotate(q, q, *[nf.nn.RotaryPositionEmbedding(8)(4)] * 2)
    with nf.enable_grad():
        wanted = nf.asarray(np.asarray(q), requires_grad=True)
        with pytest.raises(GradientError, match="no_grad"):
            layer(wanted, q, q, inference_params=cache)
        with pytest.raises(GradientError, match="no_grad"):
            cache.step(9, q, wanted)
    with pytest.raises(StateError, match="a layer out of"):
        cache.convert_paged_to_nonpaged("nothing")
    assert "max_batch_size=2" in repr(cache)


def test_constructor_errors() -> None:
    make = nf.nn.InferenceParams
    with pytest.raises(ArgumentError, match="page_size with is_paged"):
        make(1, 8, 1, 4, is_paged=True, device="cpu")
    with pytest.raises(ArgumentError, match="is_paged=True with pages"):
        make(1, 8, 1, 4, page_size=4, device="cpu")
    with pytest.raises(DTypeError, match="float32, bfloat16 or float16"):
        make(1, 8, 1, 4, dtype=nf.fp8_e4m3, device="cpu")
    with pytest.raises(ArgumentError):
        make(0, 8, 1, 4, device="cpu")


@kinds
def test_a_captured_decode_step(device: Any, kind: dict[str, Any]) -> None:
    """One capture serves every position: lengths and pages are device words, memory stays where it is."""
    rng = nf.random.default_rng(3)
    layer = nf.nn.TransformerLayer(64, 128, 4, num_gqa_groups=2, dtype=nf.bfloat16, rng=rng).eval()
    freqs = nf.nn.RotaryPositionEmbedding(16)(32)
    x = normal(2, 20, 64, dtype=nf.bfloat16)
    eager, captured = (nf.nn.InferenceParams(2, 32, 2, 16, dtype=nf.bfloat16, **kind) for _ in range(2))
    wanted = generate(layer, x, eager, [8] + [1] * 12, rotary_pos_emb=freqs)
    step = nf.cuda_graph(lambda piece: layer(piece, rotary_pos_emb=freqs, inference_params=captured))
    captured.pre_step({0: 8, 1: 8})
    found = [values(layer(x[:, :8], rotary_pos_emb=freqs, inference_params=captured))]
    for at in range(8, 20):
        captured.pre_step({0: 1, 1: 1})
        found.append(values(step(x[:, at : at + 1].copy())))
    assert np.concatenate(found, 1).tobytes() == values(wanted).tobytes()


def test_the_page_runs(device: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The first example of docs/inference.md prints what it says."""
    page = (Path(__file__).parents[2] / "docs" / "inference.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    exec(code, {})
    assert capsys.readouterr().out.strip() == code.strip().rpartition("# ")[2]


@kinds
def test_a_copy_goes_its_own_way(device: Any, kind: dict[str, Any]) -> None:
    layer, x = nf.nn.MultiheadAttention(8, 2).eval(), normal(2, 6, 8)
    cache = nf.nn.InferenceParams(2, 16, 2, 4, dtype=nf.float32, **kind)
    generate(layer, x[:, :3], cache, [3])
    fork = copy.deepcopy(cache)
    generate(layer, -x[:, 3:5], cache, [1, 1])
    near(generate(layer, x[:, 3:], fork, [1, 2]), layer(x)[:, 3:], nf.float32)
    cache.reset()
    assert cache.convert_paged_to_nonpaged(next(iter(cache._layers)))[0].shape == (0, 16, 2, 4)
