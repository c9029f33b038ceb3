"""Weights that are born and kept quantized: what they compute, optimizer, resume, files, errors."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp import recipes
from nvfp.arrays.quantized_parameter import quantized_parameter
from nvfp.errors import ArgumentError, DTypeError, ShapeError
from nvfp.inspect import memory
from nvfp.recipes import MXFP8BlockScaling, NVFP4BlockScaling
from tests.recipes.every import RECIPES

QUANTIZED = {name: recipe for name, recipe in RECIPES.items() if recipe is not None} | {
    "mxfp8-2d": MXFP8BlockScaling(enable_2d_quantization=True),
    "nvfp4-1d": NVFP4BlockScaling(disable_2d_quantization=True),
}
# Both copies of such weights hold equal numbers, and the scale is that of the forward pass.
SAME = {"fp8-current", "fp8-block", "mxfp8-2d", "nvfp4", "nvfp4-default"}


def make(recipe: Any, *, quantized: bool = True, **options: Any) -> nf.nn.Module:
    with nf.quantized_model_init(quantized, recipe, **options):
        return nf.nn.LayerNormMLP(32, 48, activation="swiglu", rng=nf.random.default_rng(0))


def train(model: nf.nn.Module, optimizer: Any, recipe: Any, steps: range) -> list[bytes]:
    found = []
    for i in steps:
        x = nf.random.default_rng(i).normal(size=(6, 32))
        x.requires_grad = True
        optimizer.zero_grad()
        with nf.autocast(recipe=recipe):
            y = model(x)
        (y * y).sum().backward()
        optimizer.step()
        found += [np.asarray(a).tobytes() for a in (y, x.grad, *(p.grad for p in model.parameters().values()))]
    return found


def bits(state: dict[str, nf.Array]) -> dict[str, bytes]:
    return {
        k: b"".join(np.ascontiguousarray(nf.asnumpy(nf.asarray(part))).tobytes() for part in _parts(v))
        for k, v in state.items()
    }


def _parts(x: nf.Array) -> list[Any]:
    return [x.codes, x.scale] if isinstance(x, nf.QuantizedArray) else [x]


@pytest.mark.parametrize("name", QUANTIZED)
def test_training_equals_that_with_dense_weights_where_both_directions_hold_equal_numbers(
    device: Any, name: str
) -> None:
    recipe, runs = QUANTIZED[name], []
    for quantized in (True, False):
        model = make(recipe, quantized=quantized, preserve_high_precision_init_val=True)
        runs.append(train(model, nf.optim.AdamW(model.parameters(), lr=1e-2), recipe, range(3)))
    if name in SAME:
        assert runs[0] == runs[1]
    elif name != "fp8":  # the first forward pass, where dgrad of 1-D blocks differs; delayed scaling starts at scale 1
        assert runs[0][0] == runs[1][0]


@pytest.mark.parametrize("name", QUANTIZED)
def test_both_directions_read_the_codes(device: Any, name: str) -> None:
    recipe = QUANTIZED[name]
    with nf.quantized_model_init(recipe=recipe):
        layer = nf.nn.Linear(32, 16, bias=False, rng=nf.random.default_rng(0), dtype=nf.bfloat16)
    assert layer.weight.dtype == recipe.linear_plan().w.format
    w = np.asarray(layer.weight, np.float64)
    x, dy = (nf.random.default_rng(i).normal(size=s, dtype=nf.bfloat16) for i, s in ((1, (3, 32)), (2, (3, 16))))
    x.requires_grad = True
    y = layer(x)  # without a recipe: its values
    y.backward(dy)
    xs, dys = np.asarray(x).astype(np.float64), np.asarray(dy).astype(np.float64)
    assert np.allclose(np.asarray(y).astype(np.float64), xs @ w.T, rtol=1e-2, atol=1e-2)
    assert np.allclose(np.asarray(x.grad).astype(np.float64), dys @ w, rtol=1e-2, atol=1e-2)
    assert (layer.weight.grad.dtype, layer.weight.grad.shape) == (nf.bfloat16, (16, 32))


@pytest.mark.parametrize("name", ["fp8", "fp8-block", "mxfp8", "nvfp4-default"])
def test_resume_through_files_is_exact(device: Any, name: str, tmp_path: Path) -> None:
    recipe = QUANTIZED[name]
    model = make(recipe)
    optimizer = nf.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, recipe, range(2))
    nf.save(tmp_path / "model.safetensors", model.state_dict())
    nf.save(tmp_path / "optimizer.safetensors", optimizer.state_dict())
    other = make(recipe)
    again = nf.optim.AdamW(other.parameters(), lr=1e-2)
    other.load_state_dict(nf.load(tmp_path / "model.safetensors"))
    again.load_state_dict(nf.load(tmp_path / "optimizer.safetensors"))
    assert bits(other.state_dict()) == bits(model.state_dict())
    assert train(other, again, recipe, range(2, 4)) == train(model, optimizer, recipe, range(2, 4))
    assert bits(again.state_dict()) == bits(optimizer.state_dict())


def test_dense_and_quantized_weights_load_into_each_other(device: Any) -> None:
    recipe = QUANTIZED["mxfp8-2d"]
    held, dense = make(recipe), make(recipe, quantized=False)
    other = make(recipe)
    other.load_state_dict(dense.state_dict())
    assert bits(other.state_dict()) == bits(held.state_dict())
    dense.load_state_dict(held.state_dict())
    assert np.array_equal(np.asarray(dense.fc1_weight), np.asarray(held.fc1_weight))


def test_first_values_are_kept_only_when_asked(device: Any) -> None:
    recipe = QUANTIZED["nvfp4"]
    dense = make(recipe, quantized=False)
    weight = make(recipe, preserve_high_precision_init_val=True).fc1_weight
    kept = weight.get_high_precision_init_val()
    assert kept.device.type == "cpu"
    assert np.array_equal(np.asarray(kept), np.asarray(dense.fc1_weight))
    weight.clear_high_precision_init_val()
    assert weight.get_high_precision_init_val() is None
    plain = make(recipe).fc1_weight
    assert plain.get_high_precision_init_val() is None
    plain.clear_high_precision_init_val()
    master = nf.optim.AdamW({"w": plain}).state_dict()["master.w"]
    assert np.array_equal(np.asarray(master), np.asarray(plain))


def test_one_byte_per_parameter_with_its_scales(device: Any) -> None:
    recipe = QUANTIZED["mxfp8-2d"]
    model = make(recipe, preserve_high_precision_init_val=True)
    optimizer = nf.optim.AdamW(model.parameters())
    train(model, optimizer, recipe, range(1))
    row = next(r for r in memory(model, optimizer) if r.name == "fc1_weight")
    n = 96 * 32
    expected = {"high_precision": 0, "row": n, "column": 0, "scales": 3, "initial": 4 * n, "grad": 4 * n}
    assert {k: getattr(row, k) for k in expected} == expected
    assert (row.master, row.moments, row.main_grad) == (4 * n, 8 * n, 0)


def test_blocks_nest_and_spare_what_is_no_gemm_weight(device: Any) -> None:
    with nf.quantized_model_init(recipe=MXFP8BlockScaling()):
        with nf.quantized_model_init(enabled=False):
            dense = nf.nn.Linear(32, 16)
        layer = nf.nn.LayerNormLinear(32, 16)
        other = nf.nn.Embedding(4, 32)
    after = nf.nn.Linear(32, 16)
    kinds = [
        type(p) for p in (dense.weight, layer.weight, layer.bias, layer.layer_norm_weight, other.weight, after.weight)
    ]
    assert kinds == [nf.Array, nf.QuantizedArray, nf.Array, nf.Array, nf.Array, nf.Array]
    with nf.autocast(recipe=NVFP4BlockScaling()), nf.quantized_model_init():
        assert nf.nn.Linear(32, 16).weight.dtype == NVFP4BlockScaling().linear_plan().w.format


def named(**options: Any) -> nf.nn.Module:
    """Two layers with three GEMMs: 0, 1.fc1, 1.fc2."""
    rng = nf.random.default_rng(0)
    return nf.nn.Sequential(nf.nn.Linear(32, 32, rng=rng, **options), nf.nn.LayerNormMLP(32, 48, rng=rng, **options))


def test_names_decide_under_a_policy(device: Any) -> None:
    policy = recipes.Policy(
        {"1.fc2": None, "0": NVFP4BlockScaling(), "*.fc1:weight": MXFP8BlockScaling()}, default=None
    )
    with nf.quantized_model_init(recipe=policy, preserve_high_precision_init_val=True):
        model = named()
        with nf.quantized_model_init(enabled=False):
            inner = nf.nn.Linear(32, 16)
        alone = nf.nn.Linear(32, 16)  # named "": the default
        assert type(model.parameters()["0.weight"]) is nf.Array  # until the block ends
    found = {name: p.dtype for name, p in model.parameters().items() if isinstance(p, nf.QuantizedArray)}
    table = policy.table(model)
    assert found == {"0.weight": table["0"].w.format, "1.fc1_weight": nf.mxfp8_e4m3}
    assert [type(layer.weight) for layer in (inner, alone, nf.nn.Linear(32, 16))] == [nf.Array] * 3
    dense = named()
    first = model.parameters()["0.weight"]
    assert np.array_equal(np.asarray(first.get_high_precision_init_val()), np.asarray(dense.parameters()["0.weight"]))
    runs = [train(m, nf.optim.AdamW(m.parameters(), lr=1e-2), policy, range(2)) for m in (model, dense)]
    assert runs[0][0] == runs[1][0] and len(runs[0]) == len(runs[1])


@pytest.mark.parametrize("name", ["fp8-current", "nvfp4-default"])
def test_one_recipe_for_all_names_is_that_recipe(device: Any, name: str) -> None:
    models = []
    for recipe in (QUANTIZED[name], recipes.Policy({"none.such": None}, default=QUANTIZED[name])):
        with nf.quantized_model_init(recipe=recipe):
            models.append(named())
    assert bits(models[0].state_dict()) == bits(models[1].state_dict())


def test_roles_of_a_custom_recipe_have_full_names(device: Any) -> None:
    seen = set()

    def by_name(role: recipes.QuantizerRole) -> Any:
        seen.add(role.name)
        return nf.mxfp8 if role.name.endswith("fc1") else recipes.IdentityQuantizer()

    with nf.quantized_model_init(recipe=recipes.CustomRecipe(by_name)):
        shared = nf.nn.Linear(32, 32)
        model = nf.nn.Sequential(nf.nn.Sequential(named(), shared), shared)
    assert seen == {"0.0.0", "0.0.1.fc1", "0.0.1.fc2", "0.1"}
    kinds = {n for n, p in model.parameters().items() if isinstance(p, nf.QuantizedArray)}
    assert kinds == {"0.0.1.fc1_weight"}


def test_names_that_cannot_be_quantized_change_nothing(device: Any) -> None:
    made: list[nf.nn.Module] = []
    policy = recipes.Policy({"0": None}, default=MXFP8BlockScaling())
    with pytest.raises(ArgumentError, match="fuse_qkv_params"), nf.quantized_model_init(recipe=policy):
        made.append(nf.nn.Sequential(nf.nn.Linear(32, 32), nf.nn.MultiheadAttention(32, 2)))
    with pytest.raises(ArgumentError, match="quantized weights"), nf.quantized_model_init(recipe=policy):
        made.append(nf.nn.Sequential(nf.nn.Linear(32, 32)))

    def interrupted() -> None:
        made.append(named())
        raise KeyError

    with pytest.raises(KeyError), nf.quantized_model_init(recipe=policy):
        interrupted()
    assert all(type(p) is nf.Array for m in made for p in m.parameters().values())
    with nf.quantized_model_init(recipe=policy):
        kept = nf.nn.Sequential(nf.nn.MultiheadAttention(32, 2), nf.nn.Linear(32, 32))  # its parts stay dense
    assert [n for n, p in kept.parameters().items() if isinstance(p, nf.QuantizedArray)] == ["1.weight"]


def test_tied_weights_stay_tied(device: Any) -> None:
    with nf.quantized_model_init(recipe=recipes.Policy({"2": None}, default=MXFP8BlockScaling())):
        model = nf.nn.Sequential(*(nf.nn.Linear(32, 32) for _ in range(3)))
        model[1].weight = model[0].weight
    assert model[0].weight is model[1].weight
    assert [type(layer.weight) for layer in model] == [nf.QuantizedArray, nf.QuantizedArray, nf.Array]


def test_copies_moves_and_freezing(device: Any) -> None:
    model = make(QUANTIZED["fp8-current"])
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert bits(other.state_dict()) == bits(model.state_dict())
        other.fc1_weight.storage.write_(nf.ones((96, 32)).raw)
        assert other.fc1_weight.requires_grad
        assert bits(other.state_dict()) != bits(model.state_dict())
    weight = model.fc1_weight
    weight.requires_grad = False
    weight.requires_grad = True
    before = np.asarray(weight)
    model.to("cpu", nf.bfloat16)
    assert (model.fc1_weight, model.fc1_bias.dtype) == (weight, nf.bfloat16)
    assert np.array_equal(np.asarray(weight), before)
    x = nf.ones((2, 32), dtype=nf.bfloat16, device="cpu")
    with nf.autocast(recipe=QUANTIZED["fp8-current"]):
        model(x).sum().backward()
    assert weight.grad.dtype == nf.bfloat16


def test_the_examples_of_the_page_run() -> None:
    page = (Path(__file__).parents[2] / "docs" / "weights.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile("\n".join(blocks), "docs/weights.md", "exec"), {})


def test_faults_are_told_before_anything_changes(device: Any) -> None:
    model = make(QUANTIZED["mxfp8"])
    x = nf.ones((2, 32))
    with nf.autocast(recipe=QUANTIZED["fp8"]), pytest.raises(ArgumentError, match="mxfp8_e4m3 weights"):
        model(x)
    assert not [k for k in model.state_dict() if k.startswith("scaling")]
    with pytest.raises(ArgumentError, match="fuse_qkv_params"), nf.quantized_model_init(recipe=QUANTIZED["mxfp8"]):
        nf.nn.MultiheadAttention(32, 2)
    with pytest.raises(ArgumentError, match="master_weights"):
        nf.optim.AdamW(model.parameters(), master_weights=False)
    with pytest.raises(DTypeError, match="quantized_model_init"):
        nf.optim.AdamW({"w": nf.ones((2, 32)).astype(nf.mxfp8)})
    with pytest.raises(ShapeError, match="shape"):
        model.fc1_weight.storage.write_(nf.ones((2, 2)).raw)
    with pytest.raises(DTypeError, match="immutable"):
        model.fc1_weight[0] = 1.0
    for wrong in ({"enabled": 1}, {"preserve_high_precision_init_val": None}):
        with pytest.raises(ArgumentError, match="bool"):
            nf.quantized_model_init(**wrong)
    with pytest.raises(DTypeError, match="Recipe"):
        nf.quantized_model_init(recipe="fp8")  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="dense floating"):
        quantized_parameter(nf.ones((2,), dtype=nf.int32), nf.mxfp8)
    custom = recipes.MXFP8BlockScaling(backward_override="high_precision")
    assert make(custom).fc1_weight.dtype == nf.mxfp8_e4m3
