"""LayerNormLinear and LayerNormMLP against float64; weights in parts; what a recipe adds to each GEMM."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, GradientError, NotBuiltError, ShapeError, StateError
from nvfp.kernels.activation import KINDS
from tests.nn import reference
from tests.recipes.every import RECIPES
from tests.tolerances import check

QKV = {"query": 6, "key": 3, "value": 3}


def rng(seed: int = 0) -> nf.random.Generator:
    return nf.random.default_rng(seed)


def randomize(module: nf.nn.Module, seed: int = 5) -> nf.nn.Module:
    """Give every parameter values that no initialiser would, norms and biases too."""
    draw = np.random.default_rng(seed)
    for p in module.parameters().values():
        p.storage.write_(nf.asarray((draw.standard_normal(p.shape) * 0.3).astype(np.float32)).raw)
    return module


def compare(module: nf.nn.Module, function: Any, x: np.ndarray, dy: np.ndarray, row: str = "layer") -> None:
    """Values and all gradients against a float64 function (x, parameters) -> y."""
    parameters = {k: np.asarray(v, np.float64) for k, v in module.parameters().items()}
    want, dx, gradients = reference.values_and_gradients(function, x.astype(np.float64), parameters, dy)
    xa = nf.asarray(x, requires_grad=True)
    module.zero_grad()
    y = module(xa)
    assert y.dtype == xa.dtype
    y.backward(nf.asarray(dy.astype(x.dtype)))
    check(np.asarray(y), want, row, scale=np.abs(want).max())
    check(np.asarray(xa.grad), dx, f"{row}_grad", scale=np.abs(dx).max())
    for name, p in module.parameters().items():
        check(np.asarray(p.grad), gradients[name], f"{row}_grad", scale=reference.gradient_scale(name, gradients))


@pytest.mark.parametrize("normalization", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("zero_centered", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_layernorm_linear(device: Any, normalization: str, zero_centered: bool, bias: bool) -> None:
    module = nf.nn.LayerNormLinear(
        33, 7, eps=1e-3, normalization=normalization, zero_centered_gamma=zero_centered, bias=bias
    )
    start = np.asarray(module.layer_norm_weight)
    assert (start == (0 if zero_centered else 1)).all()
    randomize(module)

    def function(x: Any, p: reference.Params) -> Any:
        rms = normalization == "RMSNorm"
        options = {"rms": rms, "zero_centered": zero_centered, "eps": 1e-3}
        return reference.linear(reference.norm(x, p["layer_norm_weight"], p.get("layer_norm_bias"), **options), p)

    draw = np.random.default_rng(1)
    compare(module, function, draw.standard_normal((2, 5, 33)).astype(np.float32), draw.standard_normal((2, 5, 7)))


@pytest.mark.parametrize("kind", KINDS)
def test_layernorm_mlp_of_every_activation(device: Any, kind: str) -> None:
    rms = len(kind) % 2 == 0
    module = nf.nn.LayerNormMLP(18, 23, activation=kind, normalization="RMSNorm" if rms else "LayerNorm")
    randomize(module)
    draw = np.random.default_rng(2)
    x, dy = draw.standard_normal((3, 5, 18)).astype(np.float32), draw.standard_normal((3, 5, 18))
    compare(module, lambda x, p: reference.mlp(x, p, kind=kind, rms=rms)[0], x, dy)
    assert module.fc1_weight.shape == (46 if KINDS[kind].gated else 23, 18)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_clamped_swiglu_of_other_numbers(device: Any, checkpoint: bool) -> None:
    numbers = {"limit": 0.5, "alpha": 1.25, "glu_linear_offset": -0.75}
    module = nf.nn.LayerNormMLP(18, 23, activation="clamped_swiglu", activation_params=numbers, checkpoint=checkpoint)
    randomize(module)
    draw = np.random.default_rng(2)
    x, dy = draw.standard_normal((3, 5, 18)).astype(np.float32), draw.standard_normal((3, 5, 18))
    clamp = tuple(numbers.values())
    compare(module, lambda x, p: reference.mlp(x, p, kind="clamped_swiglu", clamp=clamp)[0], x, dy)
    part = nf.nn.Activation("clamped_swiglu", numbers)
    y = np.asarray(part(nf.asarray(x)))
    check(y, reference.activation(x.astype(np.float64), "clamped_swiglu", clamp), "activation")


@pytest.mark.parametrize("kind", ["gelu", "swiglu"])
def test_mlp_of_plain_and_gated_activations(device: Any, kind: str) -> None:
    module = randomize(nf.nn.MLP(6, 10, 4, activation=kind))

    def function(x: Any, p: reference.Params) -> Any:
        return reference.linear(reference.activation(reference.linear(x, p, "fc1."), kind), p, "fc2.")

    draw = np.random.default_rng(2)
    compare(module, function, draw.standard_normal((5, 6)).astype(np.float32), draw.standard_normal((5, 4)))
    assert module.fc1.weight.shape == (20 if KINDS[kind].gated else 10, 6)


@pytest.mark.parametrize("dtype", [nf.bfloat16, nf.float16], ids=str)
def test_layernorm_mlp_in_16_bits(device: Any, dtype: Any) -> None:
    module = randomize(nf.nn.LayerNormMLP(18, 23, activation="swiglu")).to(dtype=dtype)
    draw = np.random.default_rng(2)
    x, dy = (draw.standard_normal((3, 5, 18)).astype(dtype) for _ in range(2))
    compare(module, lambda x, p: reference.mlp(x, p, kind="swiglu")[0], x, dy.astype(np.float64))


@pytest.mark.parametrize("name", RECIPES)
def test_parts_are_one_weight(device: Any, name: str) -> None:
    """The same bits as one weight and one bias; the gradients are its rows."""
    recipe = RECIPES[name]
    whole = randomize(nf.nn.LayerNormLinear(8, 12, dtype=nf.bfloat16, rng=rng(7)))
    state = {k: np.asarray(v) for k, v in whole.state_dict().items()}
    parts = nf.nn.LayerNormLinear(8, 12, dtype=nf.bfloat16, parameters_split=QKV, rng=rng(7))  # and so rounds alike
    cut = [0, 6, 9, 12]
    for i, part in enumerate(QKV):
        state[f"{part}_weight"] = state["weight"][cut[i] : cut[i + 1]]
        state[f"{part}_bias"] = state["bias"][cut[i] : cut[i + 1]]
    parts.load_state_dict({k: v for k, v in state.items() if k not in ("weight", "bias")})
    found = []
    for module in (whole, parts):
        x = nf.asarray(rng(3).normal(size=(5, 8), dtype=nf.bfloat16), requires_grad=True)
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            y = module(x)
        y.backward(rng(4).normal(size=(5, 12), dtype=nf.bfloat16))
        grads = {k: np.asarray(p.grad, np.float32) for k, p in module.parameters().items()}
        for kind in ("weight", "bias"):
            grads.setdefault(kind, np.concatenate([grads.get(f"{p}_{kind}", np.zeros(0, np.float32)) for p in QKV]))
        found.append([np.asarray(v, np.float32) for v in (y, x.grad, grads["weight"], grads["bias"])])
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def test_parts_lie_side_by_side_whatever_happens_to_them(device: Any) -> None:
    module = nf.nn.Linear(8, 12, parameters_split=QKV, rng=rng())
    x = rng(1).normal(size=(5, 8))

    def joined() -> bool:
        weight = module._weight(module)
        return weight._storage is module._weight._storage

    assert joined() and list(module.parameters()) == [f"{n}_{k}" for k in ("weight", "bias") for n in QKV]
    module.to(dtype=nf.bfloat16).to(dtype=nf.float32)
    before = np.asarray(module(x))
    module.load_state_dict({k: np.asarray(v) * 2 for k, v in module.state_dict().items()})
    assert joined()
    assert np.array_equal(np.asarray(module(x)), 2 * before)
    now = np.asarray(module(x))
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert np.array_equal(np.asarray(other(x)), now)
        other.key_weight.storage.write_((other.key_weight.detach() * 0).raw)
        assert not np.array_equal(np.asarray(other(x)), now) and np.array_equal(np.asarray(module(x)), now)
    module.key_weight = nf.parameter(nf.zeros((3, 8)))
    assert not joined()
    assert not np.asarray(module(x) - module._bias(module))[:, 6:9].any()


def test_parts_of_other_kinds_stay_where_they_are(device: Any) -> None:
    """An absent part is refused by name, one of another dtype is not converted; `to` changes all or nothing."""
    x = rng(1).normal(size=(5, 8))
    for name in ("query_bias", "key_bias", "value_weight"):
        module = nf.nn.Linear(8, 12, parameters_split=QKV, rng=rng())
        setattr(module, name, None)
        module.to(dtype=nf.bfloat16).to(dtype=nf.float32)
        with pytest.raises(StateError, match=rf"\[Linear\] .*got None for {name}; assign"):
            module(x)
    for name in ("query_weight", "key_weight"):
        module = nf.nn.Linear(8, 12, parameters_split=QKV, rng=rng())
        whole = np.concatenate([np.asarray(p) for p in (module.query_weight, module.key_weight, module.value_weight)])
        setattr(module, name, nf.parameter(getattr(module, name).detach().astype(nf.bfloat16)))
        module.to(device=device)
        kinds = {n: p.dtype for n, p in module.parameters().items()}
        assert kinds.pop(name) == nf.bfloat16 and set(kinds.values()) == {nf.float32}
        assert np.allclose(np.asarray(module(x)), np.asarray(x) @ whole.T, atol=1e-2)


@pytest.mark.parametrize("make", [nf.nn.Linear, nf.nn.LayerNormLinear])
def test_a_returned_bias_leaves_its_gradient_alone(device: Any, make: Any) -> None:
    """The parts of a joined bias must not keep the memory of a gradient that is the user's."""
    module = make(8, 12, parameters_split=QKV, return_bias=True)
    x, g = rng(1).normal(size=(5, 8)), nf.ones((12,))
    for _ in range(2):
        module(x)[1].backward(g)
    assert g.tolist() == [1] * 12
    assert [p.grad.tolist() for n, p in module.parameters().items() if n[-4:] == "bias" and n[0] != "l"] == [
        [2.0] * n for n in QKV.values()
    ]


@pytest.mark.parametrize("substituted", [False, True])
def test_a_part_written_before_backward_is_noticed(device: Any, substituted: bool) -> None:
    module = nf.nn.Linear(8, 12, parameters_split=QKV, rng=rng())
    x = nf.asarray(rng(1).normal(size=(5, 8)), requires_grad=True)
    y = module(x)
    module.value_weight.storage.write_((module.value_weight.detach() * 2).raw)
    with pytest.raises(GradientError, match="written 1 times since"):
        y.sum().backward()
    params = {k: p.detach() for k, p in module.parameters().items()}
    if substituted:
        params = {k: nf.copy(p) for k, p in params.items()}

    def loss(params: dict[str, nf.Array]) -> nf.Array:
        return nf.nn.functional_call(module, params, x.detach()).sum()

    _, grads = nf.value_and_grad(loss)(params)
    for part, rows in QKV.items():
        want, size = (np.tile(z.sum(0), (rows, 1)) for z in (np.asarray(x), np.abs(np.asarray(x))))
        check(np.asarray(grads[f"{part}_weight"]), want, "gemm", scale=size)
        assert np.asarray(grads[f"{part}_bias"]).tolist() == [5.0] * rows


@pytest.mark.parametrize("name", [n for n in RECIPES if RECIPES[n] is not None])
def test_kept_weights_of_parts_are_never_stale(device: Any, name: str) -> None:
    kept, fresh = (nf.nn.LayerNormLinear(32, 48, parameters_split=("a", "b", "c"), rng=rng()) for _ in range(2))
    x = rng(1).normal(size=(4, 32))
    for factor in (1.0, 1.0, 0.25):
        for module in (kept, fresh):
            module.b_weight.storage.write_((module.b_weight.detach() * factor).raw)
        with nf.autocast(enabled=True, recipe=RECIPES[name]):
            a, b = kept(x, is_first_microbatch=False), fresh(x)
        assert np.array_equal(np.asarray(a), np.asarray(b))


def test_return_values(device: Any) -> None:
    x = rng(1).normal(size=(2, 3, 8))
    both: dict[str, Any] = {"return_bias": True, "return_layernorm_output": True, "rng": rng()}
    linear = randomize(nf.nn.LayerNormLinear(8, 5, **both))
    y, bias, normed = linear(x)
    assert bias is linear.bias
    plain = nf.nn.LayerNormLinear(8, 5)
    plain.load_state_dict(linear.state_dict())
    check(np.asarray(y + bias), want := np.asarray(plain(x)), "layer", scale=np.abs(want).max())
    mlp = randomize(nf.nn.LayerNormMLP(8, 12, **both))
    y, bias, normed_too = mlp(x)
    assert bias is mlp.fc2_bias and normed.shape == normed_too.shape == x.shape
    other = nf.nn.LayerNormMLP(8, 12)
    other.load_state_dict(mlp.state_dict())
    check(np.asarray(y + bias), want := np.asarray(other(x)), "layer", scale=np.abs(want).max())
    y, bias = nf.nn.Linear(8, 5, bias=False, return_bias=True)(x)
    assert y.shape == (2, 3, 5) and bias is None


def test_each_gemm_has_its_own_scaling_state(device: Any) -> None:
    recipe = nf.recipes.DelayedScaling(amax_history_len=3)
    module = nf.nn.LayerNormMLP(8, 12, rng=rng())
    x = rng(1).normal(size=(4, 8))
    for _ in range(3):
        with nf.autocast(enabled=True, recipe=recipe):
            module(x).sum().backward()
    state = {k: np.array(v) for k, v in module.state_dict().items()}
    words = [f"{which}.{part}" for which in ("forward", "backward") for part in ("scale", "amax_history", "fp8_max")]
    assert [k for k in state if k.startswith("scaling.")] == [
        "scaling.version", *(f"scaling.{fc}.{w}" for fc in ("fc1", "fc2") for w in words)
    ]  # fmt: skip
    assert not np.array_equal(state["scaling.fc1.forward.scale"], state["scaling.fc2.forward.scale"])
    other = nf.nn.LayerNormMLP(8, 12, rng=rng(9))
    other.load_state_dict(state)
    for m in (module, other):
        m.zero_grad()
        with nf.autocast(enabled=True, recipe=recipe):
            m(x).sum().backward()
    assert np.array_equal(np.asarray(module.fc1_weight.grad), np.asarray(other.fc1_weight.grad))
    with pytest.raises(StateError, match="scaling state of"):
        other.load_state_dict({**state, "scaling.fc3.forward.scale": np.ones(2, np.float32)})
    with pytest.raises(StateError, match="scale and amax_history together"):
        other.load_state_dict({k: v for k, v in state.items() if k != "scaling.fc2.forward.scale"})


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: nf.nn.Linear(4, 6, tp_size=2), NotBuiltError),
        (lambda: nf.nn.Linear(4, 6, parallel_mode="column"), NotBuiltError),
        (lambda: nf.nn.Linear(4, 6, fuse_wgrad_accumulation=1), ArgumentError),
        (lambda: nf.nn.LayerNormMLP(4, 6, delay_wgrad_compute=None), ArgumentError),
        (lambda: nf.nn.Linear(4, 6, nonsense=1), TypeError),
        (lambda: nf.nn.Linear(4, 6, dtype=nf.bfloat16, params_dtype=nf.float32), ArgumentError),
        (lambda: nf.nn.Linear(4, 6, parameters_split=("a", "b", "c", "d")), ArgumentError),
        (lambda: nf.nn.Linear(4, 6, parameters_split={"a": 2, "b": 3}), ArgumentError),
        (lambda: nf.nn.Linear(4, 6, parameters_split=("a", "a_")), ArgumentError),
        (lambda: nf.nn.Linear(4, 6, parameters_split=("a.b", "c")), ArgumentError),
        (lambda: nf.nn.Linear(4, 6, parameters_split=()), ArgumentError),
        (lambda: nf.nn.Linear(4, 6, parameters_split=("_",)), ArgumentError),
        (lambda: nf.nn.LayerNormLinear(4, 6, parameters_split=("layer_norm", "b")), ArgumentError),
        (lambda: nf.nn.Linear(4, 6, parameters_split="query"), DTypeError),
        (lambda: nf.nn.Linear(4, 6, parameters_split=3), DTypeError),  # type: ignore[arg-type]
        (lambda: nf.nn.LayerNormLinear(4, 6, return_layernorm_output_gathered=True), NotBuiltError),
        (lambda: nf.nn.LayerNormLinear(4, 6, normalization="BatchNorm"), ArgumentError),
        (lambda: nf.nn.LayerNormLinear(4, 6, eps=-1.0), ArgumentError),
        (lambda: nf.nn.LayerNormLinear(0, 6), ArgumentError),
        (lambda: nf.nn.LayerNormMLP(4, 6, activation_params={"limit": 7.0}), ArgumentError),
        (lambda: nf.nn.LayerNormMLP(4, 6, activation="clamped_swiglu", activation_params={"beta": 1.0}), ArgumentError),
        (lambda: nf.nn.LayerNormMLP(4, 6, activation="clamped_swiglu", activation_params={"limit": 0}), ArgumentError),
        (lambda: nf.nn.LayerNormMLP(4, 6, activation="tanh"), ArgumentError),
        (lambda: nf.nn.LayerNormMLP(4, 6, set_parallel_mode=True), NotBuiltError),
        (lambda: nf.nn.LayerNormMLP(4, 2.5), DTypeError),  # type: ignore[arg-type]
    ],
)
def test_refused_by_name(device: Any, make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


def test_transformer_engines_defaults_pass(device: Any) -> None:
    module = nf.nn.Linear(
        4, 6, tp_size=1, tp_group=None, sequence_parallel=False, ub_name="qkv", params_dtype=nf.bfloat16
    )
    assert module.weight.dtype == nf.bfloat16


def test_a_refused_input_makes_no_state(device: Any) -> None:
    for module in (nf.nn.LayerNormLinear(4, 6), nf.nn.LayerNormMLP(4, 6)):
        for x in (nf.ones((1, 3)), nf.ones((1, 4), dtype=nf.int32), None):
            recipe = RECIPES["fp8"]
            with nf.autocast(enabled=True, recipe=recipe), pytest.raises((DTypeError, ShapeError)):
                module(x)
        assert not any("scaling" in k for k in module.state_dict())
        with pytest.raises(DTypeError):
            module(nf.ones((1, 4), dtype=nf.bfloat16))
