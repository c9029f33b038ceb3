"""The BERT- and T5-shaped examples: 50 steps under every recipe; values and gradients against torch."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from tests.devices import need_oracle
from tests.structure.tree import ROOT
from tests.tolerances import check

WORDS = 24


@pytest.fixture
def encoders(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "examples")
    return importlib.import_module("encoders")


@pytest.mark.parametrize("name", ["bert", "t5"])
@pytest.mark.parametrize("recipe", ["bf16", "fp8", "fp8-current", "fp8-block", "mxfp8", "nvfp4"])
def test_50_steps_under_every_recipe(device: Any, encoders: Any, recipe: str, name: str) -> None:
    model, make = encoders.make_models(WORDS, device)[name]
    losses = encoders.train(model, make, encoders.RECIPES[recipe], 50, words=WORDS, device=device)
    assert np.isfinite(losses).all()
    assert np.mean(losses[-5:]) < (0.8 if name == "t5" else 0.95) * losses[0]


class Torch:
    """The same layers in torch, over parameters by nvfp's names."""

    def __init__(self, torch: Any, parameters: dict[str, Any], heads: int, *, rms: bool, gated: bool) -> None:
        self.torch, self.p, self.heads, self.rms, self.gated = torch, parameters, heads, rms, gated

    def norm(self, x: Any, name: str) -> Any:
        f, w = self.torch.nn.functional, self.p[f"{name}weight"]
        if self.rms:
            return f.rms_norm(x, w.shape, w, 1e-5)
        return f.layer_norm(x, w.shape, w, self.p[f"{name}bias"], 1e-5)

    def linear(self, x: Any, name: str) -> Any:
        return self.torch.nn.functional.linear(x, self.p[f"{name}weight"], self.p.get(f"{name}bias"))

    def attention(self, x: Any, name: str, hidden: Any, bias: Any = None, memory: Any = None) -> Any:
        first = "layernorm_qkv" if memory is None else "layernorm_query"
        normed = self.norm(x, f"{name}{first}.layer_norm_")
        q = self.linear(normed, f"{name}{first}.query_")
        source, other = (normed, first) if memory is None else (memory, "key_value")
        k, v = (self.linear(source, f"{name}{other}.{z}_") for z in ("key", "value"))
        q, k, v = (z.unflatten(-1, (self.heads, -1)).transpose(1, 2) for z in (q, k, v))
        add = self.torch.zeros(hidden.shape).masked_fill(hidden, -np.inf)
        y = self.torch.nn.functional.scaled_dot_product_attention(q, k, v, add if bias is None else add + bias)
        return x + self.linear(y.transpose(1, 2).flatten(2), f"{name}proj.")

    def mlp(self, x: Any, name: str) -> Any:
        y = self.linear(self.norm(x, f"{name}layer_norm_"), f"{name}fc1_")
        gelu = self.torch.nn.functional.gelu
        if self.gated:
            a, b = y.chunk(2, -1)
            y = gelu(a, approximate="tanh") * b
        else:
            y = gelu(y, approximate="tanh")
        return x + self.linear(y, f"{name}fc2_")


def bert(t: Torch, ids: Any, padding: Any) -> Any:
    x = t.p["words.weight"][ids] + t.p["places.weight"][None, : ids.shape[1]]
    x = t.attention(x, "layers.0.self_attention.", padding[:, None, None])
    return t.linear(t.norm(t.mlp(x, "layers.0.layernorm_mlp."), "norm."), "head.")


def t5(t: Torch, ids: Any, padding: Any, said: Any, biases: list[Any]) -> Any:
    torch, hidden = t.torch, padding[:, None, None]
    x = t.attention(t.p["words.weight"][ids], "encoder.0.self_attention.", hidden, biases[0])
    memory = t.norm(t.mlp(x, "encoder.0.layernorm_mlp."), "encoder_norm.")
    later = torch.ones(said.shape[1], said.shape[1], dtype=torch.bool).triu(1)[None, None]
    y = t.attention(t.p["words.weight"][said], "decoder.0.self_attention.", later, biases[1])
    y = t.attention(y, "decoder.0.inter_attention.", hidden, memory=memory)
    return t.linear(t.norm(t.mlp(y, "decoder.0.layernorm_mlp."), "norm."), "head.")


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["bert", "t5"])
def test_gradients_as_torch(encoders: Any, name: str) -> None:
    torch = need_oracle("torch")
    with nf.use_device("cpu"):
        model, make = encoders.make_models(WORDS, "cpu", nf.float32)[name]
        inputs, target = make(np.random.default_rng(1), WORDS, 4, 12)
        logits = model(*(nf.asarray(a) for a in inputs))
        nf.nn.cross_entropy(logits, nf.asarray(target)).backward()
    leaves = {k: torch.tensor(np.asarray(v), requires_grad=True) for k, v in model.parameters().items()}
    twin = Torch(torch, leaves, 2, rms=name == "t5", gated=name == "t5")
    given = [torch.tensor(a.astype(np.int64) if a.dtype != bool else a) for a in inputs]
    if name == "bert":
        theirs = bert(twin, *given)
    else:
        biases = []
        for part, length in (("encoder_bias", given[0].shape[1]), ("decoder_bias", given[2].shape[1])):
            module = getattr(model, part)
            with nf.use_device("cpu"):  # the table's rows by place: its own weight counts through 0, 1, 2, ...
                places = encoders.RelativeBias(1, 8, 16, both=module.both, device="cpu")
                places.table.weight.storage.write_(np.arange(8, dtype=np.float32)[:, None])
                at = np.asarray(places(length, length))[0, 0].astype(np.int64)
            biases.append(leaves[f"{part}.table.weight"][torch.tensor(at)].permute(2, 0, 1)[None])
        theirs = t5(twin, *given, biases)
    loss = torch.nn.functional.cross_entropy(theirs.flatten(0, 1), torch.tensor(target.astype(np.int64)).flatten())
    loss.backward()
    want = theirs.detach().numpy().astype(np.float64)
    check(np.asarray(logits), want, "layer", scale=np.abs(want).max(), factor=2)
    largest = max(float(x.grad.abs().max()) for x in leaves.values())
    for k, p in model.parameters().items():
        check(np.asarray(p.grad), leaves[k].grad.numpy().astype(np.float64), "layer_grad", scale=largest, factor=2)
