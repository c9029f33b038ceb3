"""Cross-attention, decoders and what attention takes through the layers, against float64; packed against padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from tests.nn import reference
from tests.nn.test_layernorm_layers import compare, randomize, rng
from tests.recipes.every import RECIPES
from tests.tolerances import check

E, F, H, L, M = 24, 40, 4, 5, 7  # hidden, ffn, heads of 6; queries, keys
OFF = {"hidden_dropout": 0.0, "attention_dropout": 0.0}


def draw(shape: tuple[int, ...], seed: int = 1, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


class OverBoth(nf.nn.Module):
    """A layer over [x, memory], one behind the other, so that both get a gradient."""

    def __init__(self, inner: nf.nn.Module, **options: Any) -> None:
        super().__init__()
        self.l, self.options = inner, options

    def forward(self, z: nf.Array) -> nf.Array:
        return self.l(z[:, :L], encoder_output=z[:, L:], **self.options)


def against_float64(module: nf.nn.Module, function: Any, **options: Any) -> None:
    def whole(z: Any, p: reference.Params) -> Any:
        return function(z[:, :L], z[:, L:], reference.part(p, "l."))

    compare(OverBoth(module, **options), whole, draw((2, L + M, E)), draw((2, L, E), 2, np.float64))


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_cross_attention(device: Any, normed: bool, fused: bool, groups: int) -> None:
    module = nf.nn.MultiheadAttention(
        E, H, attention_dropout=0.0, attention_type="cross", attn_mask_type="no_mask", input_layernorm=normed,
        fuse_qkv_params=fused, num_gqa_groups=groups,
    )  # fmt: skip
    names = {name.rpartition(".")[0] for name in module.parameters()}
    assert names == {"layernorm_query" if normed else "query_layer", "key_value", "proj"}

    def function(x: Any, memory: Any, p: reference.Params) -> Any:
        return reference.cross_attention(x, memory, p, heads=H, groups=groups)[0]

    against_float64(randomize(module), function)


@pytest.mark.parametrize("post", [False, True])
def test_decoder(device: Any, post: bool) -> None:
    padded = np.zeros((2, 1, 1, M), bool)
    padded[1, ..., 4:] = True
    module = nf.nn.TransformerLayer(
        E, F, H, layer_type="decoder", enc_dec_attn_mask_type="padding",
        apply_residual_connection_post_layernorm=post, **OFF,
    )  # fmt: skip

    def function(x: Any, memory: Any, p: reference.Params) -> Any:
        return reference.decoder(x, memory, p, heads=H, groups=H, mask=padded, post_norm_residual=post)

    against_float64(randomize(module), function, enc_dec_attn_mask=nf.asarray(padded))


@pytest.mark.parametrize("name", RECIPES)
def test_a_decoder_under_every_recipe(device: Any, name: str) -> None:
    module = nf.nn.TransformerLayer(E, F, H, layer_type="decoder", dtype=nf.bfloat16, rng=rng(), **OFF)
    x, memory = (nf.asarray(draw((2, n, E), n)).astype(nf.bfloat16) for n in (L, M))
    memory.requires_grad = True
    recipe = RECIPES[name]
    with nf.autocast(enabled=recipe is not None, recipe=recipe):
        y = module(x, encoder_output=memory)
    y.sum().backward()
    plain = module(x, encoder_output=memory.detach())
    row = "layer_nvfp4" if name.startswith("nvfp4") else "layer_fp8"
    error = np.linalg.norm(np.asarray((y - plain).astype(nf.float32))) / np.linalg.norm(np.asarray(plain, np.float32))
    check(np.asarray(error), 0.0, "layer_bf16" if recipe is None else row, np.float64)
    assert all(p.grad is not None for p in module.parameters().values())
    assert np.isfinite(np.asarray(memory.grad.astype(nf.float32))).all()


def test_a_relative_bias_reaches_the_scores_and_gets_its_gradient(device: Any) -> None:
    module = randomize(nf.nn.TransformerLayer(E, F, H, self_attn_mask_type="no_mask", **OFF))
    bias, dy = draw((1, H, L, L), 4), draw((2, L, E), 5)
    x = draw((2, L, E))
    b = nf.asarray(bias, requires_grad=True)
    y = module(nf.asarray(x), core_attention_bias_type="post_scale_bias", core_attention_bias=b)
    y.backward(nf.asarray(dy))
    p = {k: np.asarray(v, np.float64) for k, v in module.parameters().items()}
    seen = np.zeros((L, L), bool)

    def function(z: Any, whole: reference.Params) -> Any:
        own = {k: v for k, v in whole.items() if k != "bias"}
        return reference.layer(z, own, heads=H, groups=H, mask=seen, bias=whole["bias"])

    want, _, gradients = reference.values_and_gradients(function, x, {**p, "bias": bias}, dy)
    check(np.asarray(y), want, "layer", scale=np.abs(want).max())
    check(np.asarray(b.grad), gradients["bias"], "layer_grad", scale=np.abs(gradients["bias"]).max())


def test_alibi_and_softmax_types_reach_the_attention(device: Any) -> None:
    x = nf.asarray(draw((2, L, E)))
    plain = randomize(nf.nn.TransformerLayer(E, F, H, **OFF))
    assert not np.array_equal(np.asarray(plain(x)), np.asarray(plain(x, core_attention_bias_type="alibi")))
    for kind in ("off-by-one", "learnable"):
        other = nf.nn.TransformerLayer(E, F, H, softmax_type=kind, **OFF)
        extra = [name for name in other.parameters() if "softmax_offset" in name]
        assert extra == (["self_attention.core_attention.softmax_offset"] if kind == "learnable" else [])
        other.load_state_dict(plain.state_dict() | {name: np.zeros((1, H, 1, 1), np.float32) for name in extra})
        assert not np.array_equal(np.asarray(plain(x)), np.asarray(other(x)))


@pytest.mark.parametrize("decoder", [False, True])
def test_packed_sequences_give_what_padded_ones_give(device: Any, decoder: bool) -> None:
    kind = {"layer_type": "decoder"} if decoder else {}
    lengths, others = (3, 5), (4, 2)
    both = {form: nf.nn.TransformerLayer(E, F, H, attn_input_format=form, **kind, **OFF) for form in ("bshd", "thd")}
    both["thd"].load_state_dict(randomize(both["bshd"]).state_dict())
    tokens, memory = draw((sum(lengths), E)), draw((sum(others), E), 2)
    starts, ends = (nf.asarray(np.cumsum([0, *n]).astype(np.int32)) for n in (lengths, others))
    options: dict[str, Any] = {"cu_seqlens_q": starts, "max_seqlen_q": max(lengths)}
    if decoder:
        options |= {"cu_seqlens_kv": ends, "max_seqlen_kv": max(others), "encoder_output": nf.asarray(memory)}
        options |= {"enc_dec_attn_mask_type": "padding"}
    packed = both["thd"](nf.asarray(tokens), self_attn_mask_type="padding_causal", **options)
    for i, (a, b) in enumerate(zip(np.cumsum([0, *lengths[:-1]]), lengths, strict=True)):
        m = int(np.cumsum([0, *others])[i])
        more = {"encoder_output": nf.asarray(memory[None, m : m + others[i]])} if decoder else {}
        alone = both["bshd"](nf.asarray(tokens[None, a : a + b]), **more)
        want = np.asarray(alone[0], np.float64)
        check(np.asarray(packed[int(a) : int(a + b)]), want, "layer", scale=np.abs(want).max())


@pytest.mark.parametrize("form", ["bshd", "sbhd"])
def test_drop_path_leaves_whole_samples_out(device: Any, form: str) -> None:
    """With a rate near 1 most samples keep their input, bit for bit; in evaluation mode nothing is dropped."""
    batch = 16
    module = randomize(nf.nn.TransformerLayer(E, F, H, drop_path_rate=0.75, attn_input_format=form, rng=rng(), **OFF))
    plain = nf.nn.TransformerLayer(E, F, H, attn_input_format=form, **OFF)
    plain.load_state_dict(module.state_dict())
    x = nf.asarray(draw((batch, L, E) if form == "bshd" else (L, batch, E)))
    values, given = (np.asarray(a).swapaxes(0, int(form == "sbhd")) for a in (module(x), x))
    kept = (values == given).all(axis=(1, 2))
    assert 2 <= kept.sum() < batch  # 0.75 squared is 0.56 of 16
    assert np.array_equal(np.asarray(module.eval()(x)), np.asarray(plain.eval()(x)))


@pytest.mark.parametrize("corner", [None, True, False])
def test_corner_of_the_constructor(device: Any, corner: bool | None) -> None:
    """`bottom_right_diagonal` of a layer is that of its calls; None means the bottom right corner."""
    options: dict[str, Any] = {"attn_mask_type": "no_mask", "window_size": (1, 0)}
    q, k = nf.asarray(draw((2, 3, H, 6))), nf.asarray(draw((2, M, H, 6), 2))
    of_layer = nf.nn.DotProductAttention(H, 6, **options, bottom_right_diagonal=corner)
    of_call = nf.nn.DotProductAttention(H, 6, **options)
    want = of_call(q, k, k, bottom_right_diagonal=corner is not False)
    assert nf.array_equal(of_layer(q, k, k), want)
    assert not nf.array_equal(of_layer(q, k, k, bottom_right_diagonal=corner is False), want)
    made = nf.nn.TransformerLayer(
        E, F, H, layer_type="decoder", bottom_right_diagonal=corner, enc_dec_bottom_right_diagonal=corner,
        enc_dec_window_size=(1, 0), rng=rng(), **OFF,
    )  # fmt: skip
    plain = nf.nn.TransformerLayer(E, F, H, layer_type="decoder", enc_dec_window_size=(1, 0), rng=rng(), **OFF)
    x, memory = nf.asarray(draw((2, L, E))), nf.asarray(draw((2, M, E), 2))
    want = plain(x, encoder_output=memory, enc_dec_bottom_right_diagonal=corner is not False)
    assert nf.array_equal(made(x, encoder_output=memory), want)
    assert made.self_attention.core_attention.bottom_right_diagonal is corner
    with pytest.raises(nf.errors.ArgumentError, match="bottom_right_diagonal"):
        nf.nn.DotProductAttention(H, 6, bottom_right_diagonal="left")  # type: ignore[arg-type]
