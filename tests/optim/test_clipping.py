"""clip_grad_norm: the norm, the factor, what it may write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, StateError
from tests.devices import need_oracle


def with_gradients(device: Any, *grads: np.ndarray, dtype: Any = nf.float32) -> dict[str, nf.Array]:
    params = {}
    for i, g in enumerate(grads):
        params[str(i)] = p = nf.parameter(nf.zeros(g.shape, dtype=dtype))
        (p * nf.asarray(g).astype(dtype)).sum().backward()
    return params


@pytest.mark.parametrize("dtype", [nf.float32, nf.bfloat16, nf.float16], ids=str)
@pytest.mark.parametrize("bound", [0.0, 0.5, 3.0, 1e9])
def test_against_float64(device: Any, dtype: Any, bound: float) -> None:
    rng = np.random.default_rng(0)
    params = with_gradients(device, rng.standard_normal((5, 7)), rng.standard_normal(11), dtype=dtype)
    before = {k: np.asarray(p.grad.astype(nf.float32), np.float64) for k, p in params.items()}
    norm = float(nf.optim.clip_grad_norm(params, bound))
    want = np.sqrt(sum((g**2).sum() for g in before.values()))
    assert norm == pytest.approx(want, rel=1e-6)
    factor, step = min(1.0, bound / (want + 1e-6)), float(nf.finfo(dtype).eps)
    for k, p in params.items():
        assert p.grad.dtype == dtype
        assert np.allclose(np.asarray(p.grad.astype(nf.float32)), factor * before[k], rtol=step, atol=1e-7)


def test_what_was_given_as_a_gradient_is_left_alone(device: Any) -> None:
    given, w = nf.full((4,), 3.0), nf.parameter(nf.zeros((4,)))
    w.grad = given
    nf.optim.clip_grad_norm({"w": w}, 1.0)
    assert given.tolist() == [3.0] * 4 and w.grad.tolist() == pytest.approx([0.5] * 4, rel=1e-5)


def test_main_grad_is_clipped_at_its_address(device: Any) -> None:
    layer = nf.nn.Linear(4, 4, bias=False, fuse_wgrad_accumulation=True)
    layer(nf.ones((2, 4))).sum().backward()
    weight = layer.weight
    raw, version = weight.main_grad.raw, weight.main_grad.storage.version
    norm = float(nf.optim.clip_grad_norm(layer.parameters(), 1.0))
    assert norm == pytest.approx(8.0) and weight.main_grad.raw is raw
    assert weight.main_grad.storage.version > version
    assert float(nf.linalg.vector_norm(weight.main_grad)) == pytest.approx(1.0, rel=1e-5)


def test_infinity_only_measures_and_tied_weights_count_once(device: Any) -> None:
    w = nf.parameter(nf.zeros((2,)))
    w.grad = nf.asarray([3.0, 4.0])
    held = w.grad
    assert float(nf.optim.clip_grad_norm({"a": w, "b": w}, float("inf"))) == 5.0
    assert w.grad is held and held.tolist() == [3.0, 4.0]


def test_without_gradients(device: Any) -> None:
    assert float(nf.optim.clip_grad_norm({}, 1.0)) == 0.0
    norm = nf.optim.clip_grad_norm({"w": nf.parameter(nf.zeros((2,)))}, 1.0)
    assert float(norm) == 0.0 and norm.device == nf.default_device()


def test_bad_arguments(device: Any) -> None:
    w = nf.parameter(nf.zeros((2,)))
    for bound in (-1.0, float("nan"), "x"):
        with pytest.raises(ArgumentError):
            nf.optim.clip_grad_norm({"w": w}, bound)  # type: ignore[arg-type]
    with pytest.raises(DTypeError):
        nf.optim.clip_grad_norm([w], 1.0)  # type: ignore[arg-type]
    layer = nf.nn.Linear(4, 4, bias=False, delay_wgrad_compute=True)
    layer(nf.ones((2, 4))).sum().backward()
    with pytest.raises(StateError, match="backward_dw"):
        nf.optim.clip_grad_norm(layer.parameters(), 1.0)


@pytest.mark.oracle
def test_as_torch() -> None:
    torch = need_oracle("torch")
    rng = np.random.default_rng(1)
    grads = [rng.standard_normal((33, 5)).astype(np.float32), rng.standard_normal(8).astype(np.float32)]
    theirs = [torch.nn.Parameter(torch.zeros(g.shape)) for g in grads]
    for p, g in zip(theirs, grads, strict=True):
        p.grad = torch.from_numpy(g.copy())
    with nf.use_device("cpu"):
        params = with_gradients("cpu", *grads)
        norm = nf.optim.clip_grad_norm(params, 2.0)
    assert float(norm) == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs, 2.0)), rel=1e-6)
    for p, q in zip(params.values(), theirs, strict=True):
        assert np.allclose(np.asarray(p.grad), q.grad.numpy(), rtol=1e-6)


def test_no_bound_leaves_finite_gradients_beside_infinite_ones(device: Any) -> None:
    w, flag = nf.parameter(nf.zeros((3,))), nf.zeros(())
    w.grad = nf.asarray([1.0, np.inf, 2.0])
    assert float(nf.optim.clip_grad_norm({"w": w}, float("inf"), nonfinite=flag)) == np.inf
    assert w.grad.tolist() == [1.0, np.inf, 2.0] and float(flag) == 1.0


def test_a_shared_main_grad_is_scaled_once(device: Any) -> None:
    a, b, shared = nf.parameter(nf.zeros((2,))), nf.parameter(nf.zeros((2,))), nf.asarray([3.0, 4.0])
    a.main_grad = b.main_grad = shared
    nf.optim.clip_grad_norm({"a": a, "b": b}, 1.0)
    assert shared.tolist() == pytest.approx([3 / 50**0.5, 4 / 50**0.5], rel=1e-5)


def test_an_error_leaves_the_flag(device: Any) -> None:
    layer, flag = nf.nn.Linear(4, 4, bias=False, delay_wgrad_compute=True), nf.ones(())
    layer(nf.ones((2, 4))).sum().backward()
    with pytest.raises(StateError):
        nf.optim.clip_grad_norm(layer.parameters(), 1.0, nonfinite=flag)
    assert float(flag) == 1.0
