"""Fused primitives of nn.functional as the tape sees them: values, gradients, second order refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import DTypeError, GradientError, ShapeError
from nvfp.nn.functional.activation import activation
from nvfp.nn.functional.cross_entropy import cross_entropy
from nvfp.nn.functional.embedding import embedding
from nvfp.nn.functional.rope import rope
from tests.oracles import activation as oracle, rope as rope_oracle
from tests.tolerances import check


@pytest.mark.parametrize("ids", [[1, 1, 3, 1], [[1, 1], [3, 1]]], ids=["flat", "square"])
def test_h17_embedding_gradient_with_repeated_ids(device: Any, ids: list[Any]) -> None:
    table = nf.zeros((5, 2))
    table.requires_grad = True
    upstream = np.asarray([[1, 2], [3, 4], [5, 6], [7, 8]], np.float32)
    y = embedding(table, nf.asarray(np.asarray(ids, np.int32)))
    y.backward(nf.asarray(upstream.reshape(y.shape)))
    assert np.asarray(table.grad).tolist() == [[0, 0], [11, 14], [0, 0], [5, 6], [0, 0]]


def test_h18_ignored_targets_with_label_smoothing(device: Any) -> None:
    logits = np.asarray([[np.log(3), 0], [5, -5]], np.float32)

    def run(targets: list[int], **kwargs: Any) -> tuple[float, np.ndarray]:
        x = nf.asarray(logits, requires_grad=True)
        loss = cross_entropy(x, nf.asarray(np.asarray(targets, np.int32)), **kwargs)
        loss.backward()
        return loss.item(), np.asarray(x.grad)

    for reduction in ("mean", "sum"):
        loss, grad = run([0, -100], label_smoothing=0.2, reduction=reduction)
        assert loss == pytest.approx(0.39754330131859184, rel=1e-6)
        np.testing.assert_allclose(grad, [[-0.15, 0.15], [0, 0]], atol=1e-6)
        assert run([0, -100], reduction=reduction)[0] == pytest.approx(0.28768207245178085, rel=1e-6)
        loss, grad = run([-100, -100], label_smoothing=0.2, reduction=reduction)
        assert loss == 0 and not grad.any()


def test_cross_entropy_none_keeps_the_shape_of_targets(device: Any) -> None:
    x = nf.random.default_rng(0).normal(size=(2, 3, 5))
    x.requires_grad = True
    loss = cross_entropy(x, nf.asarray(np.zeros((2, 3), np.int32)), reduction="none")
    assert loss.shape == (2, 3)
    loss.backward(nf.ones((2, 3)))
    assert x.grad.shape == x.shape


def test_cross_entropy_takes_any_strides_and_only_matching_targets(device: Any) -> None:
    x = nf.permute_dims(nf.random.default_rng(0).normal(size=(3, 2, 5)), (1, 0, 2))
    targets = nf.permute_dims(nf.asarray(np.asarray([[0, 3], [1, 4], [2, 0]])), (1, 0))
    got = []
    for a, t in ((x, targets), (nf.copy(x), nf.copy(targets))):
        a.requires_grad = True
        loss = cross_entropy(a, t, reduction="none")
        loss.backward(nf.permute_dims(nf.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), (1, 0)))
        got.append((np.asarray(loss).tobytes(), np.asarray(a.grad).tobytes()))
    assert got[0] == got[1]
    with pytest.raises(ShapeError, match=r"logits \[..., V\] and targets \[...\]"):
        cross_entropy(x, nf.copy(targets).reshape((3, 2)))


@pytest.mark.parametrize("kind", ["gelu", "relu", "silu", "qgelu", "srelu"])
def test_activation_gradient(device: Any, kind: str) -> None:
    x = nf.asarray(np.linspace(-4, 4, 33, dtype=np.float32), requires_grad=True)
    activation(x, kind).sum().backward()
    a = np.linspace(-4, 4, 33)
    h = 1e-3
    up, down = (np.asarray(activation(nf.asarray((a + s * h).astype(np.float32)), kind), np.float64) for s in (1, -1))
    keep = np.abs(a) > 0.01  # relu's corner
    np.testing.assert_allclose(np.asarray(x.grad)[keep], ((up - down) / (2 * h))[keep], atol=2e-3)


@pytest.mark.parametrize("kind", ["glu", "geglu", "qgeglu", "reglu", "sreglu", "swiglu", "clamped_swiglu"])
def test_gated_activation_gradient(device: Any, kind: str) -> None:
    a = np.random.default_rng(0).uniform(0.1, 3, (20, 6)) * np.random.default_rng(1).choice((-1, 1), (20, 6))
    x = nf.asarray(a.astype(np.float32), requires_grad=True)
    y = activation(x, kind)
    assert y.shape == (20, 3)
    y.sum().backward()
    a = np.asarray(x.detach(), np.float64)
    check(np.asarray(x.grad), oracle.activation_vjp(a, np.ones((20, 3)), kind), "activation", scale=4.0)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(device: Any, interleaved: bool) -> None:
    """Angles as TE shapes them; a slice of a fused buffer; the gradient is the transposed rotation."""
    fused = nf.random.default_rng(0).normal(size=(2, 5, 3, 3, 8), dtype=nf.float32)
    dy = nf.random.default_rng(1).normal(size=(2, 5, 3, 8), dtype=nf.float32)
    freqs = np.random.default_rng(2).uniform(-9, 9, (7, 1, 1, 6)).astype(np.float32)
    fused.requires_grad = True
    y = rope(fused[:, :, :, 1], nf.asarray(freqs), interleaved=interleaved)
    flat = rope(fused[:, :, :, 1], nf.asarray(freqs.reshape(7, 6)), interleaved=interleaved)
    assert nf.array_equal(y, flat)
    y.backward(dy)
    wanted = np.zeros(fused.shape)
    wanted[:, :, :, 1] = rope_oracle.rope(np.asarray(dy), freqs.reshape(7, 6), interleaved=interleaved, inverse=True)
    check(np.asarray(fused.grad), wanted, "rope", scale=np.abs(np.asarray(dy)).max())
    with pytest.raises(ShapeError, match=r"freqs \[L', R\]"):
        rope(fused[:, :, :, 0], nf.asarray(freqs[:, 0]))
    with pytest.raises(DTypeError, match="float32 freqs"):
        rope(fused[:, :, :, 0], nf.asarray(freqs).astype(nf.bfloat16))


@pytest.mark.parametrize("recipe", [None, nf.recipes.MXFP8BlockScaling()], ids=["dense", "mxfp8"])
def test_quantized_inputs_count_as_their_values(device: Any, recipe: Any) -> None:
    q = nf.random.default_rng(0).normal(size=(4, 32)).astype(nf.mxfp8)
    layer = nf.nn.Linear(32, 8, rng=nf.random.default_rng(1))
    targets = nf.asarray(np.arange(4))
    for function in (lambda x: activation(x, "gelu"), lambda x: cross_entropy(x, targets), layer):
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            got, want = function(q), function(q.astype(nf.float32))
        assert type(got) is nf.Array and np.asarray(got).tobytes() == np.asarray(want).tobytes()


def test_what_is_no_array_is_refused_by_name(device: Any) -> None:
    with pytest.raises(DTypeError, match=r"\[linear\] expected arrays or scalars, got list"):
        nf.nn.Linear(2, 2)([[1.0, 2.0]])  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match=r"\[embedding\]"):
        nf.nn.Embedding(2, 2)([0, 1])  # type: ignore[arg-type]


def test_fused_rules_refuse_second_order_by_name(device: Any) -> None:
    def f(x: nf.Array) -> nf.Array:
        return activation(x, "gelu").sum()

    with pytest.raises(GradientError, match="gelu"):
        nf.grad(lambda x: nf.grad(f)(x).sum())(nf.asarray([1.0, 2.0]))
