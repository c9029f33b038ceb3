"""`reset_parameters`: layers on "meta" have shapes alone until then; made layers get new first values."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, NvfpError, ShapeError, StateError

Make = Callable[..., nf.nn.Module]
OFF = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
MODULES: dict[str, Make] = {
    "Linear": lambda **o: nf.nn.Linear(32, 16, **o),
    "parts": lambda **o: nf.nn.Linear(32, 16, parameters_split=("a", "b"), **o),
    "LayerNorm": lambda **o: nf.nn.LayerNorm(32, zero_centered_gamma=True, **o),
    "RMSNorm": lambda **o: nf.nn.RMSNorm(32, **o),
    "LayerNormLinear": lambda **o: nf.nn.LayerNormLinear(32, 16, normalization="RMSNorm", bias=False, **o),
    "LayerNormMLP": lambda **o: nf.nn.LayerNormMLP(32, 48, activation="swiglu", **o),
    "MLP": lambda **o: nf.nn.MLP(32, 16, **o),
    "MultiheadAttention": lambda **o: nf.nn.MultiheadAttention(
        32, 4, softmax_type="learnable", qk_norm_type="RMSNorm", attention_dropout=0.1, **o
    ),
    "TransformerLayer": lambda **o: nf.nn.TransformerLayer(32, 48, 4, drop_path_rate=0.1, output_layernorm=True, **o),
}
modules = pytest.mark.parametrize("name", MODULES)


def rng(seed: int = 3) -> nf.random.Generator:
    return nf.random.default_rng(seed)


def state(module: nf.nn.Module) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in module.state_dict().items()}


def run(module: nf.nn.Module, recipe: Any = None) -> bytes:
    x = nf.random.default_rng(8).normal(size=(2, 3, 32))
    with nf.autocast(enabled=recipe is not None, recipe=recipe):
        y = module(x)
    y.sum().backward()
    return b"".join(np.asarray(z).tobytes() for z in (y, *(p.grad for p in module.parameters().values())))


@modules
def test_values_are_those_of_a_layer_made_at_once(device: Any, name: str) -> None:
    """Dropout and stochastic rounding included: what the generator gives later does not change."""
    generators = rng(), rng()
    late, made = MODULES[name](rng=generators[0], device="meta"), MODULES[name](rng=generators[1])
    shapes = {key: (p.shape, p.dtype, p.size, p.ndim, p.nbytes) for key, p in late.parameters().items()}
    assert shapes == {key: (p.shape, p.dtype, p.size, p.ndim, 0) for key, p in made.parameters().items()}
    assert all(p.is_parameter and p.requires_grad for p in late.parameters().values())
    held = late.parameters()
    assert late.reset_parameters() is None
    assert all(p is held[key] and p.device == device for key, p in late.parameters().items())
    assert state(late) == state(made)
    assert generators[0].state == generators[1].state
    assert run(late) == run(made)
    assert run(late, nf.recipes.MXFP8BlockScaling()) == run(made, nf.recipes.MXFP8BlockScaling())


@modules
@pytest.mark.parametrize("recipe", [None, nf.recipes.DelayedScaling(), nf.recipes.MXFP8BlockScaling()], ids=str)
def test_before_that_nothing_runs(device: Any, name: str, recipe: Any) -> None:
    module = MODULES[name](device="meta")
    for use in (
        lambda: run(module, recipe),
        lambda: module.load_state_dict(MODULES[name]().state_dict()),
        lambda: copy.deepcopy(module),
        lambda: pickle.dumps(module),
        lambda: module.to("cpu"),
        lambda: module.to(dtype=nf.bfloat16),
        lambda: nf.optim.AdamW(module.parameters()),
        lambda: nf.save("nowhere.safetensors", module.state_dict()),
        lambda: next(iter(module.parameters().values())).device,
        lambda: np.asarray(next(iter(module.parameters().values()))),
        lambda: next(iter(module.parameters().values())) + 1.0,
        lambda: repr(next(iter(module.parameters().values()))),
    ):
        with pytest.raises(StateError, match="reset_parameters"):
            use()
    assert set(module.state_dict()) == set(module.parameters())  # and no scaling state
    assert repr(module) == repr(MODULES[name]())
    module.zero_grad()
    module.eval()


def test_a_call_with_other_parameters_needs_no_values(device: Any) -> None:
    module, made = (nf.nn.LayerNormMLP(32, 16, device=where, rng=rng()) for where in ("meta", None))
    x = nf.ones((3, 32))
    assert nf.array_equal(nf.nn.functional_call(module, made.parameters(), x), made(x))


def test_made_parameters_get_new_values_in_place(device: Any) -> None:
    module = MODULES["TransformerLayer"](rng=rng())
    first, at = state(module), {key: p.raw for key, p in module.parameters().items()}
    run(module)
    module.reset_parameters()
    second = state(module)
    assert all(p.raw is at[key] and p.grad is None for key, p in module.parameters().items())
    drawn = {key for key in first if key.endswith("weight") and not key.endswith(("norm_weight", "layernorm.weight"))}
    assert all((first[key] != second[key]) == (key in drawn) for key in module.parameters())
    other = nf.nn.Linear(32, 16, init_method=lambda shape, rng, dtype, device: nf.full(shape, 2.0, dtype=dtype))
    with nf.no_grad():
        other.weight[...] = 7.0
    kept = other(nf.ones((1, 32)), is_first_microbatch=True)
    other.reset_parameters()
    assert np.asarray(kept)[0, 0] == 224 and np.asarray(other(nf.ones((1, 32)))).tolist() == [[64.0] * 16]


def test_scaling_starts_anew(device: Any) -> None:
    module, recipe = nf.nn.Linear(32, 16, rng=rng()), nf.recipes.DelayedScaling()
    run(module, recipe)
    assert any(key.startswith("scaling") for key in module.state_dict())
    module.reset_parameters()
    assert list(module.state_dict()) == ["weight", "bias"]
    twin = nf.nn.Linear(32, 16, rng=rng())
    twin.load_state_dict(module.state_dict())
    assert run(module, recipe) == run(twin, recipe)


def test_shared_parameters_stay_shared(device: Any) -> None:
    class Model(nf.nn.Module):
        def __init__(self, where: Any) -> None:
            super().__init__()
            self.embedding = nf.nn.Embedding(11, 8, device=where, rng=rng())
            self.head = nf.nn.LinearCrossEntropy(8, 11, device=where, bias=True)
            self.head.weight = self.embedding.weight
            self.own = nf.parameter(nf.ones((2,)))

    late, made = Model("meta"), Model(None)
    with pytest.raises(StateError, match="weight, which was made elsewhere"):
        late.head.reset_parameters()
    with pytest.raises(StateError, match="reset_parameters"):
        np.asarray(late.head.bias)  # nothing has changed
    late.reset_parameters()
    assert late.head.weight is late.embedding.weight
    assert state(late) == state(made)


@pytest.mark.parametrize("recipe", [nf.recipes.MXFP8BlockScaling(), nf.recipes.Float8CurrentScaling()], ids=str)
@pytest.mark.parametrize("named", [False, True])
def test_weights_born_quantized(device: Any, recipe: Any, named: bool) -> None:
    recipe = nf.recipes.Policy({"*": recipe}) if named else recipe

    def make(where: Any) -> nf.nn.Module:
        with nf.quantized_model_init(recipe=recipe, preserve_high_precision_init_val=True):
            return nf.nn.LayerNormMLP(32, 64, device=where, rng=rng())

    late, made = make("meta"), make(None)
    weight = late.fc1_weight
    late.reset_parameters()
    assert weight is late.fc1_weight and type(weight) is type(made.fc1_weight) is not nf.Array
    assert state(late) == state(made) and run(late, recipe) == run(made, recipe)
    before = np.asarray(made.fc1_weight.get_high_precision_init_val())
    assert np.array_equal(np.asarray(weight.get_high_precision_init_val()), before)
    made.reset_parameters()
    after = made.fc1_weight.get_high_precision_init_val()
    assert not np.array_equal(np.asarray(after), before)
    wanted = nf.asarray(after, device=device).astype(made.fc1_weight.dtype)
    assert np.array_equal(np.asarray(made.fc1_weight), np.asarray(wanted))


@pytest.mark.parametrize("through", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(device: Any, through: Any) -> None:
    made = MODULES["TransformerLayer"](rng=rng())
    late = MODULES["TransformerLayer"](rng=rng(), device="meta")
    late.reset_parameters()
    other = through(late)
    assert state(other) == state(late) == state(made)
    other.reset_parameters()
    made.reset_parameters()
    assert state(other) == state(made) != state(late)


def double(shape: Any, rng: Any, dtype: Any, device: Any) -> nf.Array:
    """An initialiser that draws twice."""
    source = rng or nf.random.default_rng()
    return source.normal(size=shape, dtype=dtype, device=device) + source.random(shape, dtype=dtype, device=device)


def test_functions_of_the_users(device: Any) -> None:
    """On "meta" each has a generator of its own: no two parameters share draws. A pickle does not hold it."""
    late = nf.nn.LayerNormMLP(8, 8, init_method=double, output_layer_init_method=double, rng=rng(), device="meta")
    late.reset_parameters()
    assert not np.isin(np.asarray(late.fc1_weight), np.asarray(late.fc2_weight)).any()
    before = state(late)
    copied = pickle.loads(pickle.dumps(late))
    with pytest.raises(StateError, match="init_method was not pickled"):
        copied.reset_parameters()
    assert state(copied) == before
    copy.deepcopy(late).reset_parameters()
    nf.nn.LayerNormMLP(8, 8, init_method=double, device="meta").reset_parameters()


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: nf.nn.Linear(4, 4, device="meta", dtype=nf.int32), DTypeError),
        (lambda: nf.nn.Linear(4, 4, device="meta", rng=7), DTypeError),
        (lambda: nf.nn.Linear(4, 4, device="nowhere"), ArgumentError),
        (lambda: nf.nn.Linear(4, 4, device="meta").reset_parameters("meta"), ArgumentError),
        (lambda: nf.nn.Linear(4, 4, init_method=lambda s, r, t, d: nf.ones(s[:1], device=d)), ShapeError),
    ],
)
def test_refused(make: Any, error: type[NvfpError]) -> None:
    with pytest.raises(error):
        make()
