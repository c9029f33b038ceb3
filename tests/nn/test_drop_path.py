"""DropPath as a primitive and as a layer: whole samples, one mask for both directions, steps, resume, recompute."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.device import Device
from nvfp.errors import ArgumentError, DTypeError, ShapeError
from nvfp.nn._dropout import DropoutState
from nvfp.nn.functional.drop_path import drop_path
from tests.oracles.dropout import keeps


def layer(rate: float = 0.5, seed: int = 0, axis: int = 0) -> nf.nn.DropPath:
    return nf.nn.DropPath(rate, axis=axis, rng=nf.random.default_rng(seed))


def sample(device: Device, shape: tuple[int, ...], dtype: Any = nf.float32) -> nf.Array:
    x = nf.asarray(nf.random.default_rng(3).normal(size=shape, dtype=dtype, device=device))
    x.requires_grad = True
    return x


def values(x: nf.Array | None) -> np.ndarray:
    assert x is not None
    return np.asarray(x).astype(np.float32)


def counts(module: nf.nn.DropPath) -> tuple[int, int]:
    state = module.state_dict()
    return int(state["dropout.step"].item()), int(state["dropout.calls"].item())


@pytest.mark.parametrize("dtype", [nf.float32, nf.bfloat16, nf.float16], ids=str)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_against_the_oracle(device: Device, dtype: Any, axis: int) -> None:
    x, p = sample(device, (20, 21, 22), dtype), 0.3
    draw = DropoutState(nf.random.default_rng(5)).draw(x.raw)
    y = drop_path(x, p, draw, axis=axis)
    shape = [1, 1, 1]
    shape[axis] = x.shape[axis]
    keep = keeps(x.shape[axis], p, draw.key, draw.ordinal, int(draw.step)).reshape(shape)
    scale = np.where(keep, np.float32(1 / (1 - p)), np.float32(0))
    assert 0 < keep.sum() < keep.size
    assert y.dtype == dtype
    expected = nf.asarray(values(x) * scale, device=device).astype(dtype)
    assert np.array_equal(values(y), values(expected))
    dy = sample(device, (20, 21, 22), dtype).detach() * 3
    y.backward(dy)
    assert np.array_equal(values(x.grad), values(nf.asarray(values(dy) * scale, device=device).astype(dtype)))


def test_masks_differ_by_call_and_step_and_repeat_by_seed(device: Device) -> None:
    x = nf.ones((400, 2), device=device, requires_grad=True)
    runs = []
    for _ in range(2):
        module, masks = layer(), []
        for _ in range(3):
            first, second = module(x), module(x)
            masks += [values(first), values(second)]
            (first + second).sum().backward()
        assert counts(module) == (3, 0)
        runs.append(masks)
    assert all(np.array_equal(a, b) for a, b in zip(*runs, strict=True))
    for i, a in enumerate(runs[0]):
        assert abs(a.sum() / 4 - 200) < 4 * np.sqrt(100)
        assert all(not np.array_equal(a, b) for b in runs[0][:i])


def test_a_forward_keeps_its_mask_over_other_backwards(device: Device) -> None:
    module, x, other = layer(), (nf.ones((300, 2), device=device, requires_grad=True)), sample(device, (300, 2))
    early = module(x)
    for _ in range(2):
        module(other).sum().backward()
    early.sum().backward()
    assert np.array_equal(values(x.grad), values(early))


def test_recomputed_segments_have_the_mask_of_the_first_run(device: Device) -> None:
    found = []
    for whole in (False, True):
        module, x = layer(), sample(device, (64, 3))
        for _ in range(2):
            y = nf.checkpoint(lambda z, f=module: f(z * z), x) if whole else module(x * x)
            y.sum().backward()
        found.append((values(y), values(x.grad), counts(module)))
    assert np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1], found[1][1])
    assert found[0][2] == found[1][2] == (2, 0)


def test_resume(device: Device) -> None:
    module, x = layer(), sample(device, (100, 2))
    module(x).sum().backward()
    module(x)
    saved = {name: np.array(np.asarray(value)) for name, value in module.state_dict().items()}
    copy, resumed = pickle.loads(pickle.dumps(module)), layer(seed=9)
    resumed.load_state_dict(saved)
    expected = values(module(x))
    assert np.array_equal(values(resumed(x)), expected)
    assert np.array_equal(values(copy(x)), expected)


def test_when_nothing_is_dropped(device: Device) -> None:
    x = sample(device, (4, 2))
    for module in (layer(0.0), layer().eval()):
        assert module(x) is x
        assert not module.state_dict()
    assert not values(layer(1.0)(x)).any()
    assert layer()(x[:0]).shape == (0, 2)


def test_errors(device: Device) -> None:
    with pytest.raises(ArgumentError, match="probability"):
        nf.nn.DropPath(1.5)
    with pytest.raises(ArgumentError, match="axis as an integer"):
        nf.nn.DropPath(0.1, axis=0.5)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="rng=a Generator"):
        nf.nn.DropPath(0.1, rng=3)  # type: ignore[arg-type]
    module = layer(axis=2)
    module(nf.ones((2, 2, 2), device=device))
    for wrong, error in ((nf.ones((2, 2), device=device), ShapeError), (nf.arange(3, device=device), DTypeError)):
        with pytest.raises(error):
            module(wrong)
    assert counts(module) == (0, 1)  # calls that failed have drawn nothing


@pytest.mark.gpu
def test_graph_equals_eager() -> None:
    """The step word is on the device, so replays draw what eager steps draw."""
    x, w = nf.ones((500, 3), device="cuda"), nf.parameter(nf.ones((500, 3), device="cuda"))
    results = []
    for captured in (False, True):
        module = layer(0.3)

        def run(x: nf.Array, module: nf.nn.DropPath = module) -> tuple[nf.Array, nf.Array]:
            w.grad = None
            y = module(x * w)
            y.sum().backward()
            assert w.grad is not None
            return y, w.grad

        call = nf.cuda_graph(run) if captured else run
        results.append([values(a) for _ in range(5) for a in call(x)])
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))
