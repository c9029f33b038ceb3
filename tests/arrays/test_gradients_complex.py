"""Real variables, complex values on the way: right where there is a rule for them, refused by name elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.arrays.functions._common import COMPLEX
from nvfp.autograd import check_grads
from nvfp.errors import ArgumentError, DTypeError, GradientError
from tests.arrays.gradient_cases import drawn, squares

X = drawn(3, 4, seed=21)
Z = nf.asarray(drawn(4, seed=22) + 1j * drawn(4, seed=23), device="cpu")
W = nf.asarray(drawn(4, 2, seed=24) + 1j * drawn(4, 2, seed=25), device="cpu")

# name of the rule -> a function of complex values z made of x
CASES: dict[str, Callable[[Any], Any]] = {
    "abs": lambda z: nf.abs(z),
    "add": lambda z: z + Z + z,
    "astype": lambda z: nf.astype(nf.real(z), nf.complex128) * z,
    "broadcast_to": lambda z: nf.broadcast_to(z[:1], (3, 4)),
    "concat": lambda z: nf.concat([z, nf.real(z)], axis=0),
    "conj": lambda z: nf.conj(z) * Z,
    "copy": lambda z: nf.copy(z),
    "divide": lambda z: Z / (z + 5) + z / (Z + z + 5j),
    "exp": lambda z: nf.exp(z * 0.3),
    "expand_dims": lambda z: nf.expand_dims(z, 0),
    "fft.fft": lambda z: nf.fft.fftn(z) + nf.fft.ifft(z, axis=0),
    "fft.irfft": lambda z: nf.fft.irfft(z) * 1j,
    "fft.rfft": lambda z: nf.fft.rfft(nf.imag(z)),
    "flip": lambda z: nf.flip(z, axis=1) * Z,
    "getitem": lambda z: z[:, 1:],
    "imag": lambda z: nf.imag(z) * nf.real(z),
    "matmul": lambda z: nf.matmul(z, W) + nf.matmul(nf.real(z), W),
    "mean": lambda z: nf.mean(z, axis=0),
    "multiply": lambda z: z * Z * z * (2 - 1j),
    "negative": lambda z: -z,
    "pad": lambda z: nf.pad(z, 1),
    "permute_dims": lambda z: z.T,
    "positive": lambda z: +z,
    "real": lambda z: nf.real(z) * z,
    "reciprocal": lambda z: nf.reciprocal(z + 5),
    "reshape": lambda z: nf.reshape(z, (-1,)),
    "scatter": lambda z: z[[0, 0, 2]],
    "square": lambda z: nf.square(z),
    "squeeze": lambda z: nf.squeeze(z[:1], 0),
    "subtract": lambda z: Z - z,
    "sum": lambda z: nf.sum(z, axis=1),
    "to_device": lambda z: nf.to_device(z, "cpu"),
    "where": lambda z: nf.where(nf.real(z) > 0, z, Z),
}
COMPOSED: dict[str, Callable[[Any], Any]] = {
    "einsum": lambda z: nf.einsum("ij,jk->ki", z, W),
    "kron": lambda z: nf.kron(z, W),
    "vdot": lambda z: nf.vdot(Z, z[0]),
    "tensordot": lambda z: nf.tensordot(z, W, axes=1),
    "outer": lambda z: nf.outer(z[0], Z),
    "stack": lambda z: nf.stack([z, z * Z]),
    "roll": lambda z: nf.roll(z, 1, axis=1) * Z,
    "tile": lambda z: nf.tile(z, (2, 1)) * Z,
    "trace": lambda z: nf.trace(z),
    "diag": lambda z: nf.diag(z, 1),
}


def values(x: Any) -> Any:
    return x * (1 - 0.5j) + nf.flip(x, axis=0) * 0.25j


def test_every_rule_for_complex_values_has_a_row() -> None:
    assert set(CASES) == COMPLEX


@pytest.mark.parametrize("name", [*CASES, *COMPOSED])
def test_finite_differences(name: str) -> None:
    function = {**CASES, **COMPOSED}[name]

    def real(x: Any) -> Any:
        return squares(function(values(x)))

    real.__name__ = name
    check_grads(real, [nf.asarray(X, device="cpu")], order=2, rtol=2e-5, atol=1e-5)


REFUSED: dict[str, Callable[[Any], Any]] = {
    "sin": nf.sin, "log": nf.log, "sqrt": nf.sqrt, "tanh": nf.tanh, "sign": nf.sign, "pow": lambda z: z**2,
    "prod": nf.prod, "cumulative_sum": lambda z: nf.cumulative_sum(z, axis=0),
    "cumulative_prod": lambda z: nf.cumulative_prod(z, axis=0), "linalg.inv": lambda z: nf.linalg.inv(z[:, :3]),
    "linalg.svd": lambda z: nf.linalg.svd(z).S, "linalg.vector_norm": nf.linalg.vector_norm,
    "linalg.eigh": lambda z: nf.linalg.eigh(z[:, :3]).eigenvalues, "linalg.qr": lambda z: nf.linalg.qr(z).R,
    "linalg.eig": lambda z: nf.linalg.eig(z[:, :3]).eigenvalues, "linalg.det": lambda z: nf.linalg.det(z[:, :3]),
    "linalg.solve": lambda z: nf.linalg.solve(z[:, :3], z), "linalg.cholesky": lambda z: nf.linalg.cholesky(z[:, :3]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_rules_for_real_arrays_refuse_complex_ones_by_name(name: str) -> None:
    x = nf.asarray(X, device="cpu", requires_grad=True)
    with pytest.raises(GradientError, match=rf"^\[{name}\] expected real arrays"):
        REFUSED[name](values(x) + nf.eye(3, 4, device="cpu") * 9)
    with nf.no_grad():
        if name != "linalg.cholesky":  # not Hermitian
            REFUSED[name](values(x))


def test_complex_variables_and_losses_are_refused() -> None:
    x = nf.asarray(X, device="cpu")
    with pytest.raises(DTypeError, match="floating dtype, got complex"):
        nf.asarray(Z, requires_grad=True)
    with pytest.raises(ArgumentError, match=r"argument 0 of type Array, dtype complex128"):
        nf.grad(lambda z: nf.sum(nf.abs(z)))(Z)
    with pytest.raises(GradientError, match=r"0-d floating array, got .*complex128"):
        nf.grad(lambda x: nf.sum(values(x)))(x)


def test_gradient_of_abs_at_zero_is_zero() -> None:
    x = nf.zeros((2,), device="cpu")
    assert nf.grad(lambda x: nf.sum(nf.abs(x * 1j)))(x).tolist() == [0.0, 0.0]
    assert nf.grad(lambda x: nf.linalg.vector_norm(x))(x).tolist() == [0.0, 0.0]


def test_vjp_of_a_complex_function_is_its_adjoint() -> None:
    """Re <F x, y> = <x, F* y>."""
    x, y = nf.asarray(X, device="cpu"), nf.asarray(X + 1j * np.flip(X), device="cpu")
    out, pull = nf.vjp(nf.fft.fft, x)
    left, right = nf.real(nf.vdot(out, y)).item(), nf.vdot(x, pull(y)[0]).item()
    assert left == pytest.approx(right, rel=1e-12) and pull(y)[0].dtype == x.dtype
