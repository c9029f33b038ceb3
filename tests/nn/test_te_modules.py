"""Transformer Engine's own modules: state dicts load by name, outputs and gradients agree (fp32, dropout 0)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from tests.data.load import load
from tests.nn import reference
from tests.tolerances import check

Function = Callable[[Any, reference.Params], Any]


def layer(**options: Any) -> nf.nn.TransformerLayer:
    return nf.nn.TransformerLayer(64, 128, 4, hidden_dropout=0.0, attention_dropout=0.0, **options)


def mlp(**options: Any) -> nf.nn.LayerNormMLP:
    return nf.nn.LayerNormMLP(64, 96, **options)


def layer64(**options: Any) -> Function:
    return lambda x, p: reference.layer(x, p, heads=4, **{"groups": 4, **options})


def mlp64(**options: Any) -> Function:
    return lambda x, p: reference.mlp(x, p, **options)[0]


def mask_of(name: str) -> np.ndarray:
    return load("te_modules")[f"{name}/arg.attention_mask"]


def linear64(x: Any, p: reference.Params) -> Any:
    return reference.linear(reference.norm(x, p["layer_norm_weight"], p["layer_norm_bias"]), p)


# Name of the case -> how to build the module, and the same function in float64.
CASES: dict[str, tuple[Callable[[], nf.nn.Module], Function]] = {
    "layernorm_linear.fp32": (lambda: nf.nn.LayerNormLinear(64, 80), linear64),
    "layernorm_mlp.gelu.fp32": (mlp, mlp64()),
    "layernorm_mlp.qgelu.fp32": (lambda: mlp(activation="qgelu"), mlp64(kind="qgelu")),
    "layernorm_mlp.srelu.fp32": (lambda: mlp(activation="srelu"), mlp64(kind="srelu")),
    "layernorm_mlp.swiglu.fp32": (lambda: mlp(activation="swiglu"), mlp64(kind="swiglu")),
    "layernorm_mlp.rms_zero_centered.fp32": (
        lambda: mlp(activation="swiglu", normalization="RMSNorm", zero_centered_gamma=True),
        mlp64(kind="swiglu", rms=True, zero_centered=True),
    ),
    "layer.causal_gelu.fp32": (layer, layer64()),
    "layer.causal_gqa_swiglu_rms.fp32": (
        lambda: layer(num_gqa_groups=2, activation="swiglu", normalization="RMSNorm", bias=False),
        layer64(groups=2, kind="swiglu", rms=True),
    ),
    "layer.fused_qkv.fp32": (lambda: layer(fuse_qkv_params=True), layer64()),
    "layer.rope.fp32": (layer, layer64(rope=True)),
    "layer.arbitrary.fp32": (
        lambda: layer(self_attn_mask_type="arbitrary"),
        lambda x, p: layer64(mask=mask_of("layer.arbitrary.fp32"))(x, p),
    ),
    "layer.padding.fp32": (
        lambda: layer(self_attn_mask_type="padding"),
        lambda x, p: layer64(mask=mask_of("layer.padding.fp32"))(x, p),
    ),
}


def tensors(name: str) -> dict[str, np.ndarray]:
    """The tensors of a case; the module of `layer.rope` was called ``l``."""
    start = f"{name}/"
    found = {k.removeprefix(start): v for k, v in load("te_modules").items() if k.startswith(start)}
    return {k.replace("state.l.", "state.").replace("grad.l.", "grad."): v for k, v in found.items()}


def state(case: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {k.removeprefix("state."): v for k, v in case.items() if k.startswith("state.")}


def row(name: str) -> str:
    """Only attention makes values so large that float32 shows."""
    return "te_module" if name.startswith("layer.") else "layer"


def test_every_case_of_the_file_is_built() -> None:
    assert set(CASES) == {key.split("/")[0] for key in load("te_modules")}


def run(name: str, x: np.ndarray, dy: np.ndarray | None) -> tuple[nf.nn.Module, nf.Array, nf.Array]:
    case = tensors(name)
    module = CASES[name][0]()
    module.load_state_dict(state(case))
    options: dict[str, Any] = {}
    if "arg.attention_mask" in case:
        options["attention_mask"] = nf.asarray(case["arg.attention_mask"])
    if "rope" in name:
        options["rotary_pos_emb"] = nf.nn.RotaryPositionEmbedding(16)(x.shape[1])
    xa = nf.asarray(x, requires_grad=True)
    y = module(xa, **options)
    if dy is not None:
        y.backward(nf.asarray(dy))
    return module, xa, y


@pytest.mark.parametrize("name", CASES)
def test_names_and_shapes_are_transformer_engines(device: Any, name: str) -> None:
    module = CASES[name][0]()
    wanted = {k: v.shape for k, v in state(tensors(name)).items()}
    assert {k: v.shape for k, v in module.state_dict().items()} == wanted


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(device: Any, name: str) -> None:
    case = tensors(name)
    padded = "padding" in name  # TE leaves open what padded rows hold; gradients of this case are not comparable
    module, x, y = run(name, case["in.0"], None if padded else case["grad_out"])
    rows = ~case["arg.attention_mask"][:, 0, 0] if padded else np.ones(y.shape[:1], bool)
    want = case["out"][rows]
    check(np.asarray(y)[rows], want, row(name), scale=np.abs(want).max())
    if padded:
        return
    check(np.asarray(x.grad), case["grad_in.0"], f"{row(name)}_grad", scale=np.abs(case["grad_in.0"]).max())
    gradients = {k.removeprefix("grad."): v for k, v in case.items() if k.startswith("grad.")}
    assert set(gradients) == set(module.parameters())
    for key, p in module.parameters().items():
        check(np.asarray(p.grad), gradients[key], f"{row(name)}_grad", scale=reference.gradient_scale(key, gradients))


@pytest.mark.parametrize("name", CASES)
def test_against_a_float64_model(device: Any, name: str) -> None:
    case = tensors(name)
    dy = case.get("grad_out", np.ones_like(case["out"]))
    module, x, y = run(name, case["in.0"], dy)
    want, dx, gradients = reference.values_and_gradients(CASES[name][1], case["in.0"], state(case), dy)
    check(np.asarray(y), want, row(name), scale=np.abs(want).max())
    check(np.asarray(x.grad), dx, f"{row(name)}_grad", scale=np.abs(dx).max())
    for key, p in module.parameters().items():
        check(np.asarray(p.grad), gradients[key], f"{row(name)}_grad", scale=reference.gradient_scale(key, gradients))
