"""Muon against torch's and against what orthogonal means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, ShapeError
from tests.devices import need_oracle
from tests.tolerances import check


@pytest.mark.parametrize("shape", [(8, 8), (16, 5), (5, 16), (1, 7)], ids=str)
def test_the_step_is_nearly_orthogonal(device: Any, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    w = nf.parameter(nf.zeros(shape))
    optimizer = nf.optim.Muon({"w": w}, lr=1.0, weight_decay=0.0)
    w.grad = nf.asarray(rng.standard_normal(shape).astype(np.float32))
    optimizer.step()
    ratio = max(1.0, shape[0] / shape[1]) ** 0.5
    values = np.linalg.svd(np.asarray(w, np.float64) / ratio, compute_uv=False)
    assert values.min() > 0.6 and values.max() < 1.3  # five steps end between these, by the method's own figures
    cosine = -(np.asarray(w) * np.asarray(w.grad)).sum()
    assert cosine > 0  # downhill


@pytest.mark.parametrize("dtype", [nf.float32, nf.bfloat16], ids=str)
def test_state_round_trips_bit_for_bit(device: Any, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    grads = [nf.asarray(rng.standard_normal((6, 4)).astype(np.float32)).astype(dtype) for _ in range(4)]
    w = nf.parameter(nf.ones((6, 4), dtype=dtype))
    optimizer = nf.optim.Muon({"w": w}, lr=0.1)

    def steps(p: nf.Array, opt: nf.optim.Muon, some: list[nf.Array]) -> None:
        for g in some:
            p.grad = g
            opt.step()

    steps(w, optimizer, grads[:2])
    state = {k: np.array(v) for k, v in optimizer.state_dict().items()}
    q = nf.parameter(w.detach() + 0)
    other = nf.optim.Muon({"w": q}, lr=0.7)
    other.load_state_dict(state)
    steps(w, optimizer, grads[2:])
    steps(q, other, grads[2:])
    assert np.array_equal(np.asarray(w.astype(nf.float32)), np.asarray(q.astype(nf.float32)))
    assert other.step_count == 4 and ("master.w" in state) == (dtype != nf.float32)


def test_quantized_weights_follow_their_master(device: Any) -> None:
    recipe = nf.recipes.MXFP8BlockScaling()
    with nf.quantized_model_init(recipe=recipe):
        layer = nf.nn.Linear(32, 16, bias=False)
    optimizer = nf.optim.Muon(layer.parameters(), lr=0.1)
    with nf.autocast(recipe=recipe):
        layer(nf.ones((4, 32))).sum().backward()
    optimizer.step()
    master = optimizer.state_dict()["master.weight"]
    assert np.array_equal(np.asarray(layer.weight), np.asarray(nf.quantize(master, nf.mxfp8)))


def test_only_matrices(device: Any) -> None:
    for shape in ((3,), (2, 2, 2), (0, 4)):
        with pytest.raises(ShapeError, match="AdamW"):
            nf.optim.Muon({"w": nf.parameter(nf.zeros(shape))})
    w = nf.parameter(nf.zeros((2, 2)))
    for options in ({"ns_steps": 0}, {"ns_coefficients": (1.0, 2.0)}, {"momentum": 1.0}, {"adjust_lr": "x"}):
        with pytest.raises(ArgumentError):
            nf.optim.Muon({"w": w}, **options)  # type: ignore[arg-type]


def update(g: np.ndarray, buffer: np.ndarray, *, nesterov: bool) -> tuple[np.ndarray, np.ndarray]:
    """O and the new buffer in float64, by the formula of the docstring."""
    buffer = 0.95 * buffer + 0.05 * g
    u = 0.95 * buffer + 0.05 * g if nesterov else buffer
    x = (u.T if u.shape[0] > u.shape[1] else u) / np.linalg.norm(u)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return (x.T if u.shape[0] > u.shape[1] else x), buffer


@pytest.mark.parametrize("shape", [(24, 16), (16, 24), (40, 64)], ids=str)
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("rule", ["original", "match_rms_adamw"])
def test_against_float64(device: Any, shape: tuple[int, int], nesterov: bool, rule: str) -> None:
    rng = np.random.default_rng(2)
    start = rng.standard_normal(shape).astype(np.float32)
    w = nf.parameter(nf.asarray(start))
    optimizer = nf.optim.Muon({"w": w}, lr=0.02, weight_decay=0.1, nesterov=nesterov, adjust_lr=rule)
    ratio = max(1.0, shape[0] / shape[1]) ** 0.5 if rule == "original" else 0.2 * max(shape) ** 0.5
    buffer = np.zeros(shape)
    for _ in range(4):
        g, before = rng.standard_normal(shape).astype(np.float32), np.asarray(w, np.float64)
        w.grad = nf.asarray(g)
        optimizer.step()
        step, buffer = update(g.astype(np.float64), buffer, nesterov=nesterov)
        taken = (np.asarray(w, np.float64) - (1 - 0.02 * 0.1) * before) / (-0.02 * ratio)
        check(taken.astype(np.float32), step, "muon", scale=np.abs(step).max())


@pytest.mark.oracle
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("rule", ["original", "match_rms_adamw"])
def test_as_torch(nesterov: bool, rule: str) -> None:
    torch = need_oracle("torch")
    rng = np.random.default_rng(2)
    start = rng.standard_normal((24, 16)).astype(np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(start.copy()))
    other = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, nesterov=nesterov, adjust_lr_fn=rule)
    with nf.use_device("cpu"):
        w = nf.parameter(nf.asarray(start))
        optimizer = nf.optim.Muon({"w": w}, lr=0.02, weight_decay=0.1, nesterov=nesterov, adjust_lr=rule)
        for _ in range(5):
            g, before = rng.standard_normal(start.shape).astype(np.float32), np.array(w)
            theirs.grad, w.grad = torch.from_numpy(g.copy()), nf.asarray(g)
            optimizer.step()
            other.step()
            values = theirs.detach().numpy().copy()
            check(np.asarray(w), values, "muon", scale=np.abs(values - before).max(), factor=2)
            w.storage.write_(values)  # so that a step's difference does not add up
