"""MultiheadAttention and TransformerLayer: every variant against float64, every recipe, dropout, state, masks."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, NotBuiltError, ShapeError
from tests.nn import reference
from tests.nn.test_layernorm_layers import compare, randomize, rng
from tests.recipes.every import RECIPES
from tests.tolerances import check

E, F, H = 36, 40, 6  # hidden, ffn, heads of 6
OFF = {"hidden_dropout": 0.0, "attention_dropout": 0.0}


def layer(**options: Any) -> nf.nn.TransformerLayer:
    return nf.nn.TransformerLayer(E, F, H, **{**OFF, **options})


# constructor arguments -> arguments of the float64 model
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "no_bias": ({"bias": False}, {}),
    "rms_gqa": (
        {"normalization": "RMSNorm", "zero_centered_gamma": True, "num_gqa_groups": 2, "activation": "geglu"},
        {"rms": True, "zero_centered": True, "groups": 2, "kind": "geglu"},
    ),
    "fused_gqa": ({"fuse_qkv_params": True, "num_gqa_groups": 3}, {"groups": 3}),
    "multi_query": ({"fuse_qkv_params": True, "num_gqa_groups": 1}, {"groups": 1}),
    "kv_channels": ({"kv_channels": 10}, {}),
    "post_norm_residual": ({"apply_residual_connection_post_layernorm": True}, {"post_norm_residual": True}),
    "output_layernorm": ({"output_layernorm": True}, {}),
    "output_and_post": (
        {"output_layernorm": True, "apply_residual_connection_post_layernorm": True},
        {"post_norm_residual": True},
    ),
    "parallel": ({"parallel_attention_mlp": True, "normalization": "RMSNorm"}, {"parallel": True, "rms": True}),
    "epsilon": ({"layernorm_epsilon": 0.5, "output_layernorm": True}, {"eps": 0.5}),
    "epsilon_of_the_first": ({"layernorm_epsilon": 0.5}, {"eps": 0.5}),
    "qk_rms_norm": ({"qk_norm_type": "RMSNorm", "qk_norm_eps": 0.3}, {"qk_norm": "RMSNorm", "qk_eps": 0.3}),
    "qk_layer_norm": ({"qk_norm_type": "LayerNorm"}, {"qk_norm": "LayerNorm"}),
    "qk_l2": (
        {"qk_norm_type": "L2Normalization", "qk_norm_eps": 0.1},
        {"qk_norm": "L2Normalization", "qk_eps": 0.1},
    ),
    "no_mask": ({"self_attn_mask_type": "no_mask"}, {"mask": np.zeros((7, 7), bool)}),
}


def draw(shape: tuple[int, ...], seed: int = 1, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("name", VARIANTS)
def test_variants(device: Any, name: str) -> None:
    arguments, options = VARIANTS[name]
    module = randomize(layer(**arguments))

    def function(x: Any, p: reference.Params) -> Any:
        return reference.layer(x, p, heads=H, **{"groups": H, **options})

    compare(module, function, draw((2, 7, E)), draw((2, 7, E), 2, np.float64))


@pytest.mark.parametrize("normed", ["", "first", "last"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary(device: Any, interleaved: bool, normed: str) -> None:
    heads = {"qk_norm_type": "RMSNorm", "qk_norm_before_rope": normed == "first"} if normed else {}
    module = randomize(layer(rotary_pos_interleaved=interleaved, **heads))
    wanted = {"qk_norm": "RMSNorm" if normed else None, "qk_norm_first": normed == "first"}
    freqs = nf.nn.RotaryPositionEmbedding(E // H, interleaved=interleaved)(9)

    def function(x: Any, p: reference.Params) -> Any:
        return reference.layer(x, p, heads=H, groups=H, rope=True, interleaved_rope=interleaved, **wanted)

    class Rotated(nf.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = module

        def forward(self, x: nf.Array) -> nf.Array:
            return self.l(x, rotary_pos_emb=(freqs, freqs))

    compare(
        Rotated(),
        lambda x, p: function(x, reference.part(p, "l.")),
        draw((2, 7, E)),
        draw((2, 7, E), 2, np.float64),
    )


@pytest.mark.parametrize("interleaved", [False, True])
def test_fused_rows_in_both_orders(device: Any, interleaved: bool) -> None:
    """A fused weight in either order gives what its parts give as three parameters."""
    heads, groups, channels = 4, 2, 3
    fused = randomize(
        nf.nn.MultiheadAttention(
            12, heads, num_gqa_groups=groups, fuse_qkv_params=True, qkv_weight_interleaved=interleaved, **dropless()
        )
    )
    state = {k: np.asarray(v) for k, v in fused.state_dict().items()}
    parts = nf.nn.MultiheadAttention(12, heads, num_gqa_groups=groups, **dropless())
    for kind in ("weight", "bias"):
        whole = state.pop(f"qkv.{kind}")
        if interleaved:
            rows = whole.reshape(groups, heads // groups + 2, channels, *whole.shape[1:])
            split = (rows[:, :-2], rows[:, -2], rows[:, -1])
        else:
            cut = heads * channels
            split = (whole[:cut], whole[cut : cut + groups * channels], whole[cut + groups * channels :])
        for name, value in zip(("query", "key", "value"), split, strict=True):
            state[f"qkv.{name}_{kind}"] = value.reshape(-1, *whole.shape[1:])
    parts.load_state_dict(state)
    x = nf.asarray(draw((2, 5, 12)))
    check(np.asarray(fused(x)), np.asarray(parts(x), np.float64), "layer", scale=np.abs(np.asarray(parts(x))).max())


def dropless() -> dict[str, Any]:
    return {"attention_dropout": 0.0}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_with_odd_shapes(device: Any, name: str) -> None:
    recipe = RECIPES[name]
    module = randomize(layer(num_gqa_groups=3, activation="swiglu")).to(dtype=nf.bfloat16)
    wide = layer(num_gqa_groups=3, activation="swiglu")
    wide.load_state_dict({k: np.asarray(v, np.float32) for k, v in module.state_dict().items()})
    x, dy = draw((3, 5, E)), draw((3, 5, E), 2)
    found = []
    for m, dtype, r in ((wide, nf.float32, None), (module, nf.bfloat16, recipe)):
        xa = nf.asarray(x.astype(dtype), requires_grad=True)
        with nf.autocast(enabled=r is not None, recipe=r):
            y = m(xa)
        y.backward(nf.asarray(dy.astype(dtype)))
        assert y.dtype == xa.grad.dtype == dtype
        grads = {k: np.asarray(p.grad, np.float64) for k, p in m.parameters().items()}
        found.append({"y": np.asarray(y, np.float64), "x": np.asarray(xa.grad, np.float64), **grads})
    row = "layer_" + {"bf16": "bf16", "nvfp4": "nvfp4"}.get(name.removesuffix("-default"), "fp8")
    for key, want in found[0].items():
        if not key.endswith("key_bias"):  # 0 but for rounding
            error = np.linalg.norm(found[1][key] - want) / np.linalg.norm(want)
            check(np.asarray(error), 0.0, row, np.float64)


@pytest.mark.parametrize("where", ["hidden_dropout", "attention_dropout"])
def test_dropout_in_training_only(device: Any, where: str) -> None:
    module = layer(rng=rng(), **{where: 0.5})
    without = layer()
    without.load_state_dict(module.state_dict())
    x = nf.asarray(draw((2, 7, E)))
    first, second = np.asarray(module(x)), np.asarray(module(x))
    assert not np.array_equal(first, second)
    module.eval()
    assert np.array_equal(np.asarray(module(x)), np.asarray(without(x)))
    same = [np.asarray(layer(rng=rng(4), **{where: 0.5})(x)) for _ in range(2)]
    assert np.array_equal(*same)


@pytest.mark.parametrize("parallel", [False, True])
def test_hidden_dropout_of_everything_leaves_the_residual(device: Any, parallel: bool) -> None:
    module = layer(hidden_dropout=1.0, parallel_attention_mlp=parallel)
    x = nf.asarray(draw((2, 7, E)), requires_grad=True)
    y = module(x)
    assert np.array_equal(np.asarray(y), np.asarray(x))
    y.sum().backward()
    assert (np.asarray(x.grad) == 1).all()
    assert all(not np.asarray(p.grad).any() for p in module.parameters().values() if p.grad is not None)


@pytest.mark.parametrize("name", RECIPES)
def test_resume_gives_the_bits_of_an_uninterrupted_run(device: Any, name: str) -> None:
    recipe = RECIPES[name]

    def train(module: nf.nn.Module, optimizer: nf.optim.AdamW, steps: range) -> None:
        for step in steps:
            x = nf.asarray(draw((2, 5, E), step), dtype=nf.bfloat16)
            with nf.autocast(enabled=recipe is not None, recipe=recipe):
                y = module(x)
            y.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    def make() -> tuple[nf.nn.Module, nf.optim.AdamW]:
        module = nf.nn.TransformerLayer(
            E, F, H, dtype=nf.bfloat16, hidden_dropout=0.3, attention_dropout=0.2, rng=rng()
        )
        return module, nf.optim.AdamW(module.parameters(), lr=1e-2)

    whole, optimizer = make()
    train(whole, optimizer, range(2))
    saved = [{k: np.array(v) for k, v in s.state_dict().items()} for s in (whole, optimizer)]
    train(whole, optimizer, range(2, 4))
    resumed, other = make()
    resumed.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    train(resumed, other, range(2, 4))
    for key, value in whole.state_dict().items():
        assert np.array_equal(np.asarray(value), np.asarray(resumed.state_dict()[key])), key


def test_functional_call_and_value_and_grad(device: Any) -> None:
    module = randomize(layer())
    x = nf.asarray(draw((2, 5, E)))
    params = {k: p.detach() for k, p in module.parameters().items()}
    value, (grads, dx) = nf.value_and_grad(lambda p, x: nf.nn.functional_call(module, p, x).sum(), argnums=(0, 1))(
        params, x
    )
    xa = nf.asarray(x, copy=True, requires_grad=True)
    total = module(xa).sum()
    total.backward()
    assert np.array_equal(np.asarray(value), np.asarray(total))
    assert np.array_equal(np.asarray(dx), np.asarray(xa.grad))
    for key, p in module.parameters().items():
        assert np.array_equal(np.asarray(grads[key]), np.asarray(p.grad)), key
    zeros = {k: nf.zeros_like(p) for k, p in params.items()}
    assert np.array_equal(np.asarray(nf.nn.functional_call(module, zeros, x)), np.asarray(x))


# not fp8: there a kept weight keeps the scale of the step that quantized it
@pytest.mark.parametrize("name", [n for n in RECIPES if n not in ("bf16", "fp8")])
def test_weights_kept_over_microbatches(device: Any, name: str) -> None:
    kept, fresh = layer(rng=rng(), num_gqa_groups=2), layer(rng=rng(), num_gqa_groups=2)
    x = nf.asarray(draw((2, 5, E)))
    for step, first in enumerate((True, False, False, True)):
        with nf.autocast(enabled=True, recipe=RECIPES[name]):
            a, b = kept(x, is_first_microbatch=first), fresh(x)
        assert np.array_equal(np.asarray(a), np.asarray(b))
        for module, keeps in ((kept, True), (fresh, False)):
            sites = [site for _, m in module.named_modules() for site in getattr(m, "_sites", ())]
            assert [site._kept is not None for site in sites] == [keeps] * 4
        if step == 2:  # the optimizer's step
            for module in (kept, fresh):
                for p in module.parameters().values():
                    p.storage.write_((p.detach() * 0.5).raw)


@pytest.mark.parametrize("through", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_go_on_with_the_same_bits(device: Any, through: Any) -> None:
    module = nf.nn.TransformerLayer(E, F, H, rng=rng())
    x = nf.asarray(draw((2, 5, E)))

    def train(module: nf.nn.Module) -> list[bytes]:
        module.zero_grad()
        with nf.autocast(enabled=True, recipe=RECIPES["fp8"]):
            y = module(x)
        y.sum().backward()
        return [np.asarray(v).tobytes() for v in (y, *(p.grad for p in module.parameters().values()))]

    train(module)
    module.zero_grad()
    other = through(module)
    for _ in range(2):
        assert train(module) == train(other)


def test_to_casts_and_moves(device: Any) -> None:
    module = nf.nn.Sequential(layer(rng=rng()), layer(rng=rng(1)))
    assert module.to(dtype=nf.bfloat16) is module
    assert module(nf.ones((1, 3, E), dtype=nf.bfloat16)).dtype == nf.bfloat16
    module.to("cpu")
    assert module(nf.ones((1, 3, E), dtype=nf.bfloat16, device="cpu")).device == "cpu"


def identity(mask_type: str) -> nf.nn.MultiheadAttention:
    """Attention of one head that sees zero queries and keys, and the input as its values."""
    module = nf.nn.MultiheadAttention(2, 1, bias=False, attn_mask_type=mask_type, **dropless())
    eye, zero = np.eye(2, dtype=np.float32), np.zeros((2, 2), np.float32)
    values = {"qkv.query_weight": zero, "qkv.key_weight": zero, "qkv.value_weight": eye, "proj.weight": eye}
    module.load_state_dict(values)
    return module


def test_h15_true_is_masked_out_and_a_row_without_keys_gives_zero(device: Any) -> None:
    module = identity("arbitrary")
    x = nf.asarray(np.asarray([[[2, 4], [6, 8]]], np.float32), requires_grad=True)
    mask = nf.asarray(np.asarray([[[[False, True], [True, True]]]]))
    y = module(x, attention_mask=mask)
    assert np.asarray(y).tolist() == [[[2, 4], [0, 0]]]
    y.backward(nf.ones((1, 2, 2)))
    assert np.asarray(x.grad).tolist() == [[[1, 1], [0, 0]]]
    grads = [np.asarray(p.grad) for p in module.parameters().values()]
    assert all(np.isfinite(g).all() for g in grads) and not grads[0].any() and not grads[1].any()


@pytest.mark.parametrize(
    ("lengths", "mask_type", "want"),
    [
        ((2, 5), "causal", [1, 1.5]),
        ((2, 5), "causal_bottom_right", [3.75, 6.2]),
        ((5, 2), "causal", [1, 1.5, 1.5, 1.5, 1.5]),
        ((5, 2), "causal_bottom_right", [0, 0, 0, 1, 1.5]),
    ],
)
def test_h16_alignment_of_the_causal_mask(device: Any, lengths: Any, mask_type: str, want: list[float]) -> None:
    queries, keys = lengths
    v = nf.asarray(np.asarray([1, 2, 4, 8, 16], np.float32)[:keys].reshape(1, keys, 1, 1))
    attention = nf.nn.DotProductAttention(1, 1, attn_mask_type=mask_type, **dropless())
    y = attention(nf.zeros((1, queries, 1, 1)), nf.zeros((1, keys, 1, 1)), v)
    np.testing.assert_allclose(np.asarray(y).ravel(), want, rtol=1e-6)


def test_causal_output_does_not_see_the_future(device: Any) -> None:
    module = layer(rng=rng())
    x = draw((1, 7, E))
    other = x.copy()
    other[:, 4:] += 1
    a, b = (np.asarray(module(nf.asarray(z))) for z in (x, other))
    assert np.array_equal(a[:, :4], b[:, :4]) and not np.array_equal(a[:, 4:], b[:, 4:])


def test_sequence_first(device: Any) -> None:
    """TE's own layout gives the same values."""
    first, second = layer(rng=rng()), layer(attn_input_format="sbhd", rng=rng())
    freqs = nf.nn.RotaryPositionEmbedding(E // H)(7)
    x, dy = nf.asarray(draw((2, 7, E)), requires_grad=True), nf.asarray(draw((2, 7, E), 2))
    turned = nf.asarray(nf.swapaxes(x.detach(), 0, 1), copy=True, requires_grad=True)
    y, z = first(x, rotary_pos_emb=freqs), second(turned, rotary_pos_emb=freqs)
    y.backward(dy)
    z.backward(nf.swapaxes(dy, 0, 1))
    for a, b in ((y, z), (x.grad, turned.grad)):
        check(np.asarray(b).swapaxes(0, 1), np.asarray(a, np.float64), "layer", scale=np.abs(np.asarray(a)).max())


def test_mask_type_of_a_call(device: Any) -> None:
    module, unmasked = layer(rng=rng()), layer(self_attn_mask_type="no_mask", rng=rng())
    x = nf.asarray(draw((2, 7, E)))
    assert np.array_equal(np.asarray(module(x, self_attn_mask_type="no_mask")), np.asarray(unmasked(x)))


def test_window_of_a_call(device: Any) -> None:
    module, windowed = layer(rng=rng()), layer(window_size=(2, 0), rng=rng())
    x = nf.asarray(np.random.default_rng(3).standard_normal((1, 5, E)).astype(np.float32))
    back = np.arange(5)[:, None] - np.arange(5)
    hidden = nf.asarray((back < 0) | (back > 2))[None, None]
    want = module(x, attention_mask=hidden, self_attn_mask_type="arbitrary")
    for y in (module(x, window_size=(2, 0)), windowed(x)):
        check(np.asarray(y), np.asarray(want, np.float64), "layer", scale=np.abs(np.asarray(want)).max())
    y = windowed(x, window_size=(-1, 0))  # hides nothing more than the causal mask
    assert np.array_equal(np.asarray(y), np.asarray(module(x)))


def test_each_weight_has_its_own_initializer(device: Any) -> None:
    def filled(value: float) -> Any:
        return lambda shape, rng, dtype, device: nf.full(shape, value, dtype=dtype, device=device)

    module = layer(init_method=filled(2.0), output_layer_init_method=filled(3.0), fuse_qkv_params=True)
    weights = {k: set(np.asarray(p).ravel().tolist()) for k, p in module.parameters().items() if p.ndim == 2}
    names = "self_attention.layernorm_qkv.weight", "self_attention.proj.weight"
    mlp = "layernorm_mlp.fc1_weight", "layernorm_mlp.fc2_weight"
    assert weights == dict(zip((*names, *mlp), ({2.0}, {3.0}) * 2, strict=True))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: layer(layer_type="both"), ArgumentError),
        (lambda: layer(layer_type="decoder", parallel_attention_mlp=True), ArgumentError),
        (lambda: layer(layer_type="decoder")(nf.ones((1, 2, E))), ArgumentError),
        (lambda: layer()(nf.ones((1, 2, E)), encoder_output=nf.ones((1, 3, E))), ArgumentError),
        (lambda: layer(layer_type="decoder")(nf.ones((1, 2, E)), encoder_output=nf.ones((3, E))), ShapeError),
        (lambda: layer(drop_path_rate=1.5), ArgumentError),
        (lambda: layer(drop_path_rate=0.1, attn_input_format="thd"), ArgumentError),
        (lambda: layer(attn_input_format="hbsd"), ArgumentError),
        (lambda: layer(set_parallel_mode=True), NotBuiltError),
        (lambda: layer(softmax_type="sparse"), ArgumentError),
        (lambda: layer(qk_norm_type="L1"), ArgumentError),
        (lambda: layer(activation="swiglu", activation_params={"limit": 7.0}), ArgumentError),
        (lambda: layer(parallel_attention_mlp=True, output_layernorm=True), ArgumentError),
        (lambda: layer(hidden_dropout=1.5), ArgumentError),
        (lambda: layer(attention_dropout=-0.1), ArgumentError),
        (lambda: layer(normalization="none"), ArgumentError),
        (lambda: layer(num_gqa_groups=4), ArgumentError),
        (lambda: layer(self_attn_mask_type="upwards"), ArgumentError),
        (lambda: layer(nonsense=1), TypeError),
        (lambda: nf.nn.TransformerLayer(35, F, H), ArgumentError),
        (lambda: nf.nn.MultiheadAttention(E, H, attention_type="both"), ArgumentError),
        (lambda: nf.nn.MultiheadAttention(E, H, attention_type="cross")(nf.ones((1, 2, E))), ArgumentError),
        (lambda: layer()(nf.ones((1, 2, E)), inference_params=object()), ArgumentError),
        (lambda: layer()(nf.ones((1, 2, E)), core_attention_bias_type="sloped"), ArgumentError),
        (lambda: layer()(nf.ones((1, 2, E)), nonsense=1), TypeError),
        (lambda: layer()(nf.ones((2, E))), ShapeError),
        (lambda: layer()(nf.ones((1, 2, E + 1))), ShapeError),
        (lambda: layer()(nf.ones((1, 2, E), dtype=nf.bfloat16)), DTypeError),
        (lambda: layer()(None), DTypeError),
        (lambda: layer()(nf.ones((1, 2, E)), rotary_pos_emb=(nf.ones((2, 6)),)), ArgumentError),
    ],
)
def test_refused_by_name(device: Any, make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()
