"""Norms, activations and their gradients that a GEMM quantizes as it computes them: the bits of two steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.arrays.deferred import Deferred
from nvfp.autograd import walk
from nvfp.nn.functional.activation import activation
from nvfp.nn.functional.layer_norm import layer_norm
from nvfp.recipes import operands
from tests.recipes.every import RECIPES

QUANTIZED = [name for name, recipe in RECIPES.items() if recipe is not None]


@contextmanager
def apart() -> Iterator[None]:
    """Everything in steps of its own: functions before quantizing, sums of gradients after their parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operands, "at_once", lambda plan, **_: False)
        patch.setattr(walk, "ADDING", set())
        yield


def bits(x: Any) -> bytes:
    return np.asarray(x).tobytes()


def trained(make: Any, name: str, steps: int = 2, dtype: Any = nf.bfloat16, **call: Any) -> dict[str, bytes]:
    """Outputs, gradients and scaling state of some steps as bytes."""
    model = make(rng=nf.random.default_rng(0), dtype=dtype)
    found = {}
    for i in range(steps):
        x = nf.random.default_rng(i + 1).normal(size=(2, 24, 32), dtype=dtype)
        x.requires_grad = True
        with nf.autocast(enabled=RECIPES[name] is not None, recipe=RECIPES[name]):
            y = model(x, **call)
        y = y if isinstance(y, tuple) else (y,)
        loss = nf.astype(y[0], nf.float32).sum()
        for part in y[1:]:
            loss = loss + 2.0 * nf.astype(part, nf.float32).sum()
        loss.backward()
        found |= {f"{i} y{j}": bits(part) for j, part in enumerate(y)} | {f"{i} dx": bits(x.grad)}
        found |= {f"{i} d{key}": bits(p.grad) for key, p in model.parameters().items() if p.grad is not None}
        model.zero_grad()
    return found | {key: bits(value) for key, value in model.state_dict().items()}


def layer(**options: Any) -> Any:
    return lambda **more: nf.nn.TransformerLayer(
        32, 48, 4, attention_dropout=0.0, **{"hidden_dropout": 0.0, **options}, **more
    )


MODULES = {
    "linear": lambda **o: nf.nn.LayerNormLinear(32, 16, **o),
    "linear rms, zero-centered": lambda **o: nf.nn.LayerNormLinear(
        32, 16, normalization="RMSNorm", zero_centered_gamma=True, bias=False, **o
    ),
    "linear, norm shown": lambda **o: nf.nn.LayerNormLinear(32, 16, return_layernorm_output=True, **o),
    "mlp": lambda **o: nf.nn.LayerNormMLP(32, 48, **o),
    "mlp swiglu": lambda **o: nf.nn.LayerNormMLP(32, 48, activation="swiglu", normalization="RMSNorm", **o),
    "mlp clamped": lambda **o: nf.nn.LayerNormMLP(
        32, 48, activation="clamped_swiglu", activation_params={"limit": 0.5}, **o
    ),
    "mlp relu, run again": lambda **o: nf.nn.LayerNormMLP(32, 48, activation="relu", checkpoint=True, **o),
    "mlp, main_grad": lambda **o: nf.nn.LayerNormMLP(32, 48, fuse_wgrad_accumulation=True, **o),
    "layer": layer(),
    "layer, dropout": layer(hidden_dropout=0.1, normalization="RMSNorm", activation="swiglu"),
    "layer, parallel": layer(parallel_attention_mlp=True),
    "layer, residual after the norm": layer(apply_residual_connection_post_layernorm=True),
}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("module", MODULES)
def test_fused_equals_apart(device: Any, module: str, name: str) -> None:
    fused = trained(MODULES[module], name)
    with apart():
        assert trained(MODULES[module], name) == fused


@pytest.mark.parametrize("dtype", [nf.float32, nf.float16])
@pytest.mark.parametrize("name", ["fp8", "fp8-block", "nvfp4"])
def test_other_dtypes(device: Any, name: str, dtype: Any) -> None:
    fused = trained(MODULES["layer"], name, dtype=dtype)
    with apart():
        assert trained(MODULES["layer"], name, dtype=dtype) == fused


@pytest.mark.parametrize("name", ["fp8", "mxfp8"])
@pytest.mark.parametrize("first", [True, False])
def test_kept_weights(device: Any, name: str, first: bool) -> None:
    fused = trained(MODULES["mlp"], name, is_first_microbatch=first)
    with apart():
        assert trained(MODULES["mlp"], name, is_first_microbatch=first) == fused


@pytest.mark.parametrize("name", ["fp8-current", "mxfp8"])
def test_quantized_weights(device: Any, name: str) -> None:
    def make(**options: Any) -> Any:
        with nf.quantized_model_init(enabled=True, recipe=RECIPES[name]):
            return nf.nn.LayerNormMLP(32, 48, **options)

    fused = trained(make, name)
    with apart():
        assert trained(make, name) == fused


@pytest.mark.parametrize("name", QUANTIZED)
def test_a_record_sees_what_is_quantized(device: Any, name: str) -> None:
    """Looked at, every tensor is there in high precision; the numbers of the run stay the same."""
    plain = trained(MODULES["mlp"], name)
    model = MODULES["mlp"](rng=nf.random.default_rng(0), dtype=nf.bfloat16)
    x = nf.random.default_rng(1).normal(size=(2, 24, 32), dtype=nf.bfloat16)
    with nf.inspect.record(model) as seen, nf.autocast(enabled=True, recipe=RECIPES[name]):
        y = model(x)
    assert bits(y) == plain["0 y0"]
    assert {row.tensor for row in seen.result} >= {"x", "w"}


def test_backward_twice_and_gradients_that_meet(device: Any) -> None:
    """The gradient of fc1's result from two sides: the activation's is computed, then both are added."""
    fc1 = nf.nn.Linear(32, 48, rng=nf.random.default_rng(0), dtype=nf.bfloat16)
    fc2 = nf.nn.Linear(48, 32, rng=nf.random.default_rng(1), dtype=nf.bfloat16)

    def run(defer: bool) -> list[bytes]:
        x = nf.random.default_rng(2).normal(size=(24, 32), dtype=nf.bfloat16)
        with nf.autocast(enabled=True, recipe=RECIPES["mxfp8"]):
            h = fc1(x)
            loss = fc2(activation(h, "gelu", defer=defer)).sum() + (h * h).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        found = [bits(p.grad) for m in (fc1, fc2) for p in m.parameters().values()]
        fc1.zero_grad()
        fc2.zero_grad()
        return found

    assert run(True) == run(False)


def test_it_stays_inside_the_module(device: Any) -> None:
    model = nf.nn.LayerNormMLP(32, 48, return_layernorm_output=True, dtype=nf.bfloat16)
    with nf.autocast(enabled=True, recipe=RECIPES["fp8"]):
        y, normed = model(nf.ones((4, 32), dtype=nf.bfloat16))
    assert type(y) is type(normed) is nf.Array


def test_another_function_computes_it(device: Any) -> None:
    x, one = nf.random.default_rng(0).normal(size=(4, 32), dtype=nf.float32), nf.ones((32,))
    later = layer_norm(x, one, defer=True)
    assert type(later) is Deferred and later.shape == (4, 32) and later.dtype == nf.float32
    assert later.device == x.device
    assert bits(later + 0.0) == bits(layer_norm(x, one) + 0.0)
    assert bits(nf.sin(later)) == bits(nf.sin(layer_norm(x, one)))
