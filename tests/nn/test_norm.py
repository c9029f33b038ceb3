"""LayerNorm and RMSNorm: values, gradients, TE's state, arguments; their functions as the tape sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, GradientError, NotBuiltError, ShapeError
from nvfp.nn.functional.layer_norm import layer_norm
from nvfp.nn.functional.rms_norm import rms_norm
from tests.data.load import load
from tests.kernels.dense import normal
from tests.kernels.norms import compare
from tests.tolerances import check

LAYERS = pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
STEM = {"LayerNorm": "layer_norm", "RMSNorm": "rms_norm"}


def made(name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(nf.nn, name)(*args, **kwargs)


def test_te_state_output_and_gradients(device: Any) -> None:
    case = {key.partition("/")[2]: value for key, value in load("te_norm").items()}
    layer = nf.nn.RMSNorm(72, zero_centered_gamma=True)
    layer.load_state_dict({key.removeprefix("state."): v for key, v in case.items() if key.startswith("state.")})
    x = nf.asarray(case["in.0"], requires_grad=True)
    y = layer(x)
    y.backward(nf.asarray(case["grad_out"]))
    for found, theirs in ((y, "out"), (x.grad, "grad_in.0"), (layer.weight.grad, "grad.weight")):
        check(np.asarray(found), case[theirs], "norm_te", scale=np.abs(case[theirs]).max())


@LAYERS
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("dtype", [nf.float32, nf.bfloat16, nf.float16], ids=str)
def test_values_and_gradients(device: Any, name: str, zero: bool, dtype: Any) -> None:
    x, dy, weight, bias = (normal(s, dtype, k) for k, s in enumerate(((2, 5, 33), (2, 5, 33), (33,), (33,))))
    layer = made(name, 33, eps=1e-3, zero_centered_gamma=zero, dtype=dtype)
    state = {"weight": weight, "bias": bias}
    layer.load_state_dict({key: state[key] for key in layer.parameters()})
    a = nf.asarray(x, requires_grad=True)
    y = layer(a)
    y.backward(nf.asarray(dy))
    found = {"y": y, "dx": a.grad, "dweight": layer.weight.grad}
    if name == "LayerNorm":
        found["dbias"] = layer.bias.grad
    found = {key: np.asarray(value) for key, value in found.items()}
    compare(STEM[name], found, (x, dy, weight, bias), eps=1e-3, zero=zero)


@LAYERS
def test_initial_values_and_names(device: Any, name: str) -> None:
    for zero in (False, True):
        layer = made(name, 8, zero_centered_gamma=zero)
        assert list(layer.parameters()) == ["weight", "bias"][: 2 if name == "LayerNorm" else 1]
        assert np.asarray(layer.weight).tolist() == [0.0 if zero else 1.0] * 8
        assert name == "RMSNorm" or not np.asarray(layer.bias).any()
    assert layer.weight.dtype == nf.float32
    assert made(name, 8, params_dtype=nf.bfloat16, sequence_parallel=False).weight.dtype == nf.bfloat16
    assert repr(layer) == f"{name}((8,), eps=1e-05, zero_centered_gamma=True)"


@LAYERS
def test_several_axes_together(device: Any, name: str) -> None:
    layer, flat = made(name, (4, 6)), made(name, 24)
    weight = normal((24,), seed=2)
    layer.load_state_dict({**layer.parameters(), "weight": weight.reshape(4, 6)})
    flat.load_state_dict({**flat.parameters(), "weight": weight})
    x = normal((5, 4, 6))
    y, wanted = layer(nf.asarray(x)), flat(nf.asarray(x.reshape(5, 24)))
    assert y.shape == (5, 4, 6) and np.array_equal(np.asarray(y).reshape(5, 24), np.asarray(wanted))
    y.sum().backward()
    wanted.sum().backward()
    assert np.array_equal(np.asarray(layer.weight.grad).reshape(-1), np.asarray(flat.weight.grad))


@LAYERS
def test_dtypes_mix_under_a_recipe_only(device: Any, name: str) -> None:
    layer, x = made(name, 32), nf.asarray(normal((4, 32), nf.bfloat16), requires_grad=True)
    with pytest.raises(DTypeError, match=rf"\[{name}\] expected x and weight of one dtype outside autocast"):
        layer(x)
    with nf.autocast(enabled=True, recipe=nf.recipes.MXFP8BlockScaling()):
        y = layer(x)
    y.sum().backward()
    assert (y.dtype, x.grad.dtype, layer.weight.grad.dtype) == (nf.bfloat16, nf.bfloat16, nf.float32)


@LAYERS
def test_empty_and_frozen(device: Any, name: str) -> None:
    layer = made(name, 8)
    x = nf.zeros((0, 8))
    x.requires_grad = True
    layer(x).sum().backward()
    assert x.grad.shape == (0, 8) and not np.asarray(layer.weight.grad).any()
    layer.zero_grad()
    layer.weight.requires_grad = False
    y = layer(nf.asarray(normal((3, 8)), requires_grad=True))
    y.sum().backward()
    assert layer.weight.grad is None


@LAYERS
def test_backward_notices_a_changed_weight(device: Any, name: str) -> None:
    layer = made(name, 8)
    y = layer(nf.asarray(normal((3, 8)), requires_grad=True))
    layer.weight.storage.write_(nf.zeros((8,)).raw)
    with pytest.raises(GradientError):
        y.sum().backward()


def test_quantized_input_counts_as_its_values(device: Any) -> None:
    q = nf.asarray(normal((4, 32))).astype(nf.mxfp8)
    for layer in (nf.nn.LayerNorm(32), nf.nn.RMSNorm(32)):
        assert np.array_equal(np.asarray(layer(q)), np.asarray(layer(q.astype(nf.float32))))


@pytest.mark.parametrize("function", [layer_norm, rms_norm])
def test_second_order_is_refused_by_name(device: Any, function: Any) -> None:
    weight = nf.ones((4,))
    with pytest.raises(GradientError, match=function.__name__):
        nf.grad(lambda x: nf.grad(lambda z: function(z, weight).sum())(x).sum())(nf.asarray(normal((2, 4))))


@LAYERS
def test_what_does_not_fit(device: Any, name: str) -> None:
    layer = made(name, 8)
    with pytest.raises(ShapeError, match=rf"\[{name}\] expected x \[\.\.\., 8\]"):
        layer(nf.ones((2, 7)))
    with pytest.raises(NotBuiltError, match="sequence_parallel"):
        made(name, 8, sequence_parallel=True)
    with pytest.raises(TypeError, match="colour"):
        made(name, 8, colour=1)
    with pytest.raises(ArgumentError, match="eps >= 0"):
        made(name, 8, eps=-1)
    with pytest.raises(ArgumentError, match="normalized_shape >= 1"):
        made(name, 0)
    with pytest.raises(ArgumentError, match="drop one"):
        made(name, 8, dtype=nf.bfloat16, params_dtype=nf.float16)
    with pytest.raises(DTypeError, match="rng=a Generator"):
        made(name, 8, rng=3)
