"""Gradients of `nf.linalg` where formulas divide by zero: equal eigenvalues, singular matrices, vectors of length 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.autograd import check_grads
from nvfp.errors import GradientError, LinAlgError
from tests.arrays.gradient_cases import BATCH, TALL, drawn


def on_cpu(values: Any) -> Any:
    return nf.asarray(np.asarray(values, np.float64), device="cpu")


SINGULAR = {
    "rank 2": np.outer([1.0, 2, 3], [4.0, 5, 6]) + np.outer([1.0, 0, 1], [0.0, 1, 1]),
    "rank 1": np.outer([1.0, 2, 3], [4.0, 5, 6]),
    "zero": np.zeros((3, 3)),
    "row of zeros": np.array([[0.0, 0, 0], [1, 2, 3], [4, 5, 7]]),
}


@pytest.mark.parametrize("name", SINGULAR)
def test_determinant_of_singular_matrices(name: str) -> None:
    """The derivative by an entry is its cofactor."""
    values = SINGULAR[name]
    minors = [[np.delete(np.delete(values, i, 0), j, 1) for j in range(3)] for i in range(3)]
    expected = [[(-1) ** (i + j) * np.linalg.det(minors[i][j]) for j in range(3)] for i in range(3)]
    x = on_cpu(values)
    np.testing.assert_allclose(nf.asnumpy(nf.grad(nf.linalg.det)(x)), expected, atol=1e-12)
    batch = nf.stack([x, on_cpu(BATCH[0])])
    both = nf.grad(lambda x: nf.sum(nf.linalg.det(x)))(batch)
    np.testing.assert_allclose(nf.asnumpy(both[0]), expected, atol=1e-12)
    np.testing.assert_allclose(nf.asnumpy(both[1]), nf.asnumpy(nf.grad(nf.linalg.det)(on_cpu(BATCH[0]))), rtol=1e-9)


def test_what_has_no_derivative_raises_by_name() -> None:
    with pytest.raises(LinAlgError, match=r"\[gradient of linalg\.slogdet\]"):
        nf.grad(lambda x: nf.linalg.slogdet(x).logabsdet)(on_cpu(np.zeros((2, 2))))
    for part in ("U", "Vh"):
        with pytest.raises(GradientError, match=r"\[linalg\.svd\].*full_matrices=False"):
            nf.grad(lambda x, part=part: nf.sum(getattr(nf.linalg.svd(x), part)))(on_cpu(TALL))
    with pytest.raises(GradientError, match=r"\[linalg\.qr\].*mode='reduced'"):
        nf.grad(lambda x: nf.sum(nf.linalg.qr(x, mode="complete").Q))(on_cpu(TALL))


def test_equal_eigenvalues_and_singular_values() -> None:
    """What depends on values alone, or on the space of their vectors, has its gradient; twice for values' sums."""
    x = on_cpu(np.diag([1.0, 1.0, 3.0]))
    np.testing.assert_allclose(nf.asnumpy(nf.grad(lambda x: nf.sum(nf.linalg.eigvalsh(x)))(x)), np.eye(3), atol=1e-12)
    np.testing.assert_allclose(nf.asnumpy(nf.grad(lambda x: nf.sum(nf.linalg.svdvals(x)))(x)), np.eye(3), atol=1e-12)

    def projected(x: Any) -> Any:
        v = nf.linalg.eigh(x).eigenvectors[:, :2]
        return (v @ v.mT)[0, 2]

    gradient = nf.asnumpy(nf.grad(projected)(x))
    assert np.isfinite(gradient).all()
    expected = np.zeros((3, 3))
    expected[0, 2] = expected[2, 0] = 0.5 / (1.0 - 3.0)
    np.testing.assert_allclose(gradient, expected, atol=1e-12)


def test_norm_at_zero_and_beside_it() -> None:
    x = on_cpu([[0.0, 0.0], [3.0, 4.0]])
    got = nf.grad(lambda x: nf.sum(nf.linalg.vector_norm(x, axis=1)))(x)
    np.testing.assert_allclose(nf.asnumpy(got), [[0.0, 0.0], [0.6, 0.8]], rtol=1e-12)
    assert nf.grad(lambda x: nf.linalg.matrix_norm(x))(on_cpu(np.zeros((2, 2)))).tolist() == [[0.0, 0.0]] * 2


def test_gradients_of_symmetric_functions_are_symmetric() -> None:
    x = on_cpu(BATCH[0] @ BATCH[0].T)
    for f in (nf.linalg.cholesky, lambda x: nf.linalg.eigh(x).eigenvectors, nf.linalg.eigvalsh):
        g = nf.asnumpy(nf.grad(lambda x, f=f: nf.sum(f(x)[..., -1]))(x))
        np.testing.assert_allclose(g, g.T, rtol=1e-12)


def test_batches_broadcast_in_solve() -> None:
    a, b = on_cpu(BATCH[:, None]), on_cpu(drawn(5, 3, 2))
    check_grads(nf.linalg.solve, [a, b], order=1)
    ga, gb = nf.grad(lambda a, b: nf.sum(nf.linalg.solve(a, b)), argnums=(0, 1))(a, b)
    assert ga.shape == (2, 1, 3, 3) and gb.shape == (5, 3, 2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_gradients_go_through_float32(dtype: str) -> None:
    """The rule sees the unrounded inverse: only the gradient itself is rounded."""
    x = on_cpu(BATCH[0]).astype(dtype)
    f = lambda x: nf.sum(nf.linalg.inv(x).astype(nf.float32)[0])  # noqa: E731
    got, exact = nf.grad(f)(x), nf.grad(f)(x.astype(nf.float64))
    assert got.dtype == x.dtype
    limit = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    np.testing.assert_allclose(nf.asnumpy(got).astype(np.float64), nf.asnumpy(exact), rtol=limit * 1.1, atol=1e-6)
