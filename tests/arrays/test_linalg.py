"""`nf.linalg` against NumPy in float64: values, dtypes, shapes, named results, errors."""

from __future__ import annotations

import inspect
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DeviceError, DTypeError, GradientError, LinAlgError, NvfpError, ShapeError
from tests.tolerances import check

L = np.linalg
DTYPES = ("float64", "float32", "bfloat16", "float16")


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).uniform(-1, 1, shape)


def square(*shape: int) -> np.ndarray:
    return drawn(*shape, seed=5) * 0.3 + np.eye(shape[-1])


def positive(*shape: int) -> np.ndarray:
    x = square(*shape)
    return x @ np.swapaxes(x, -1, -2) + np.eye(shape[-1])


def sides(u: Any, s: Any, vh: Any) -> Any:
    """What a decomposition is of."""
    return (u[..., : s.shape[-1]] * s[..., None, :]) @ vh[..., : s.shape[-1], :]


# name -> (function of (namespace, x), argument)
CASES: dict[str, tuple[Any, np.ndarray]] = {
    "cholesky": (lambda xp, x: xp.linalg.cholesky(x), positive(2, 3, 3)),
    "cholesky upper": (lambda xp, x: xp.linalg.cholesky(x, upper=True), positive(3, 3)),
    "cross": (lambda xp, x: xp.linalg.cross(x, x[::-1, ...] * 2), drawn(4, 3)),
    "det": (lambda xp, x: xp.linalg.det(x), square(2, 3, 3)),
    "diagonal": (lambda xp, x: xp.linalg.diagonal(x), drawn(2, 3, 4)),
    "diagonal above": (lambda xp, x: xp.linalg.diagonal(x, offset=2), drawn(2, 3, 4)),
    "diagonal below": (lambda xp, x: xp.linalg.diagonal(x, offset=-1), drawn(4, 2)),
    "diagonal beyond": (lambda xp, x: xp.linalg.diagonal(x, offset=7), drawn(4, 2)),
    "diagonal below beyond": (lambda xp, x: xp.linalg.diagonal(x, offset=-7), drawn(4, 2)),
    "eigh": (lambda xp, x: xp.linalg.eigh(x).eigenvalues, positive(2, 4, 4)),
    "eigvalsh": (lambda xp, x: xp.linalg.eigvalsh(x), positive(4, 4)),
    "inv": (lambda xp, x: xp.linalg.inv(x), square(2, 4, 4)),
    "matrix_norm": (lambda xp, x: xp.linalg.matrix_norm(x), drawn(2, 3, 4)),
    "matrix_power": (lambda xp, x: xp.linalg.matrix_power(x, 5), square(3, 3) * 0.7),
    "matrix_power 0": (lambda xp, x: xp.linalg.matrix_power(x, 0), square(2, 3, 3)),
    "matrix_power negative": (lambda xp, x: xp.linalg.matrix_power(x, -2), square(3, 3)),
    "pinv": (lambda xp, x: xp.linalg.pinv(x), drawn(2, 3, 4)),
    "slogdet": (lambda xp, x: xp.linalg.slogdet(x)[1], square(2, 3, 3)),
    "slogdet sign": (lambda xp, x: xp.linalg.slogdet(x)[0], -square(2, 3, 3)),
    "solve vector": (lambda xp, x: xp.linalg.solve(x, x[0, ...]), square(3, 3)),
    "solve batch of one": (lambda xp, x: xp.linalg.solve(x, x[0, :, :2]), square(2, 3, 3)),
    "solve": (lambda xp, x: xp.linalg.solve(x[0, ...], x[..., :2]), square(2, 3, 3)),
    "svdvals": (lambda xp, x: xp.linalg.svdvals(x), drawn(2, 3, 4)),
    "trace": (lambda xp, x: xp.linalg.trace(x, offset=1), drawn(2, 3, 4)),
    "vector_norm": (lambda xp, x: xp.linalg.vector_norm(x, axis=(0, 2)), drawn(2, 3, 4)),
    "vector_norm keepdims": (lambda xp, x: xp.linalg.vector_norm(x, axis=1, keepdims=True), drawn(2, 3, 4)),
    "vector_norm all": (lambda xp, x: xp.linalg.vector_norm(x), drawn(2, 3, 4)),
}
NUMPY_ONLY: dict[str, tuple[Any, np.ndarray]] = {
    "cond": (lambda xp, x: xp.linalg.cond(x), square(2, 3, 3)),
    "cond -2": (lambda xp, x: xp.linalg.cond(x, -2), square(3, 3)),
    "cond 1": (lambda xp, x: xp.linalg.cond(x, 1), square(3, 3)),
    "cond fro": (lambda xp, x: xp.linalg.cond(x, "fro"), square(2, 3, 3)),
    "norm": (lambda xp, x: xp.linalg.norm(x), drawn(2, 3, 4)),
    "norm axis": (lambda xp, x: xp.linalg.norm(x, axis=1), drawn(2, 3, 4)),
    "norm 3": (lambda xp, x: xp.linalg.norm(x, 3, axis=-1, keepdims=True), drawn(2, 3, 4)),
    "norm matrix": (lambda xp, x: xp.linalg.norm(x, "nuc", axis=(2, 0)), drawn(2, 3, 4)),
    "norm matrix keepdims": (lambda xp, x: xp.linalg.norm(x, 1, axis=(2, 0), keepdims=True), drawn(2, 3, 4)),
    "norm inf": (lambda xp, x: xp.linalg.norm(x, np.inf), drawn(3, 4)),
    "multi_dot": (lambda xp, x: xp.linalg.multi_dot([x[0], x, x.T, x, x[:, 0].T]), drawn(4, 4)),
    "lstsq": (lambda xp, x: xp.linalg.lstsq(x, x[:, 0] * 2)[0], drawn(5, 3)),
    "lstsq residuals": (lambda xp, x: xp.linalg.lstsq(x[:, :2], x)[1], drawn(5, 3)),
    "tensorinv": (lambda xp, x: xp.linalg.tensorinv(xp.reshape(x, (6, 2, 3)), ind=1), square(6, 6)),
    "tensorsolve": (
        lambda xp, x: xp.linalg.tensorsolve(xp.reshape(x, (2, 3, 6)), xp.reshape(x[0], (2, 3))),
        square(6, 6),
    ),
    "svd": (lambda xp, x: sides(*xp.linalg.svd(x)), drawn(2, 3, 4)),
    "svd reduced": (lambda xp, x: sides(*xp.linalg.svd(x, full_matrices=False)), drawn(4, 3)),
    "qr": (lambda xp, x: xp.abs(xp.linalg.qr(x)[1]), drawn(2, 4, 3)),
    "qr complete": (lambda xp, x: xp.abs(xp.linalg.qr(x, mode="complete")[1]), drawn(4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*CASES, *NUMPY_ONLY])
def test_values(name: str, dtype: str, device: Any) -> None:
    function, values = {**CASES, **NUMPY_ONLY}[name]
    x = nf.asarray(values, device=device).astype(dtype)
    exact = np.asarray(x.to_device("cpu")).astype(np.float64)  # the argument as rounded
    expected = np.asarray(function(strict, strict.asarray(exact)) if name in CASES else function(np, exact))
    got = function(nf, x)
    assert got.dtype == nf.asarray([], dtype=dtype, device="cpu").dtype and got.shape == expected.shape
    check(nf.asnumpy(got), expected, "linalg")


@pytest.mark.parametrize("ord", [2, 1, 0, 3, 0.5, -1, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(3, 4), (4,), ()])
def test_vector_norms(ord: Any, shape: tuple[int, ...], device: Any) -> None:
    values = drawn(*shape)
    expected = L.vector_norm(values, ord=ord)
    np.testing.assert_allclose(nf.linalg.vector_norm(nf.asarray(values, device=device), ord=ord).item(), expected)


@pytest.mark.parametrize("ord", ["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
@pytest.mark.parametrize("keepdims", [False, True])
def test_matrix_norms(ord: Any, keepdims: bool, device: Any) -> None:
    values = drawn(2, 3, 4)
    got = nf.linalg.matrix_norm(nf.asarray(values, device=device), ord=ord, keepdims=keepdims)
    np.testing.assert_allclose(nf.asnumpy(got), L.matrix_norm(values, ord=ord, keepdims=keepdims))


def test_eigenvalues_are_complex(device: Any) -> None:
    values = square(2, 4, 4)
    for dtype, target in (("float32", nf.complex64), ("float64", nf.complex128), ("bfloat16", nf.complex64)):
        x = nf.asarray(values, device=device).astype(dtype)
        w, v = nf.linalg.eig(x)
        a, w, v = (nf.asnumpy(part).astype(np.complex128) for part in (x, w, v))
        np.testing.assert_allclose(a @ v, v * w[..., None, :], rtol=1e-4, atol=1e-4)
        assert nf.linalg.eigvals(x).dtype == target == nf.linalg.eig(x).eigenvectors.dtype


def test_orthonormal_factors(device: Any) -> None:
    for values in (drawn(2, 5, 3), drawn(3, 5)):
        x = nf.asarray(values, device=device)
        for full in (False, True):
            q, _ = nf.linalg.qr(x, mode="complete" if full else "reduced")
            u, s, vh = nf.linalg.svd(x, full_matrices=full)
            for basis in (q, u, vh.mT):
                np.testing.assert_allclose(
                    nf.asnumpy(basis.mT @ basis),
                    np.broadcast_to(np.eye(basis.shape[-1]), (*basis.shape[:-2], basis.shape[-1], basis.shape[-1])),
                    atol=1e-12,
                )
            np.testing.assert_allclose(nf.asnumpy(sides(u, s, vh)), values, atol=1e-12)
        w, v = nf.linalg.eigh(x @ x.mT)
        np.testing.assert_allclose(nf.asnumpy((v * w[..., None, :]) @ v.mT), nf.asnumpy(x @ x.mT), atol=1e-12)


def test_rank(device: Any) -> None:
    values = np.stack([np.eye(3), np.ones((3, 3)), np.zeros((3, 3))])
    got = nf.linalg.matrix_rank(nf.asarray(values, device=device))
    assert got.dtype == nf.int64 and got.tolist() == [3, 1, 0]
    assert nf.linalg.matrix_rank(nf.asarray(np.diag([1.0, 0.1]), device=device), rtol=0.2).item() == 1
    assert nf.linalg.matrix_rank(nf.zeros((2, 0, 3), device=device)).tolist() == [0, 0]


def test_named_results_and_the_standard_s_signatures() -> None:
    x = nf.eye(3, device="cpu")
    fields = {
        "eig": ("eigenvalues", "eigenvectors"), "eigh": ("eigenvalues", "eigenvectors"), "qr": ("Q", "R"),
        "slogdet": ("sign", "logabsdet"), "svd": ("U", "S", "Vh"),
    }  # fmt: skip
    for name, expected in fields.items():
        result = getattr(nf.linalg, name)(x)
        assert isinstance(result, tuple) and type(result)._fields == expected  # type: ignore[attr-defined]
    missing = [n for n in strict.linalg.__all__ if not hasattr(nf.linalg, n)]
    assert not missing
    for name in strict.linalg.__all__:
        own = inspect.signature(getattr(nf.linalg, name)).parameters
        for parameter in inspect.signature(getattr(strict.linalg, name)).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY:
                assert own[parameter.name].kind is not parameter.POSITIONAL_ONLY, name
                assert own[parameter.name].default == parameter.default or parameter.default is parameter.empty, name


def test_matrices_with_no_inverse_or_factor_raise(device: Any) -> None:
    zero = nf.zeros((2, 2), device=device)
    for call in (
        nf.linalg.inv,
        nf.linalg.cholesky,
        lambda x: nf.linalg.solve(x, x),
        lambda x: nf.linalg.matrix_power(x, -1),
    ):
        with pytest.raises(LinAlgError, match=r"\[linalg\.\w+\]") as caught:
            call(zero)
        assert isinstance(caught.value, np.linalg.LinAlgError | ValueError) and isinstance(caught.value, NvfpError)
    with pytest.raises(np.linalg.LinAlgError):
        nf.linalg.inv(zero)
    assert nf.linalg.det(zero).item() == 0 and nf.linalg.slogdet(zero).logabsdet.item() == -np.inf
    assert nf.linalg.cond(zero, 1).item() == np.inf


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ShapeError, lambda x: nf.linalg.inv(x)),
        (ShapeError, lambda x: nf.linalg.det(x[0])),
        (ShapeError, lambda x: nf.linalg.cholesky(x)),
        (ShapeError, lambda x: nf.linalg.svd(x[0])),
        (ShapeError, lambda x: nf.linalg.trace(x[0])),
        (ShapeError, lambda x: nf.linalg.cross(x, x, axis=0)),
        (ShapeError, lambda x: nf.linalg.solve(x, x)),
        (ShapeError, lambda x: nf.linalg.solve(x @ x.mT, x[:1])),
        (ShapeError, lambda x: nf.linalg.norm(nf.reshape(x, (2, 3, 1)), 2)),
        (ShapeError, lambda x: nf.linalg.multi_dot([x, x])),
        (ArgumentError, lambda x: nf.linalg.multi_dot([x])),
        (ArgumentError, lambda x: nf.linalg.qr(x, mode="r")),
        (ArgumentError, lambda x: nf.linalg.matrix_norm(x, ord=3)),
        (ArgumentError, lambda x: nf.linalg.vector_norm(x, ord="fro")),
        (DTypeError, lambda x: nf.linalg.svd(x, compute_uv=False)),
        (GradientError, lambda x: nf.linalg.lstsq(nf.parameter(x), x)),
    ],
)  # fmt: skip
def test_errors_name_the_function(error: type[Exception], call: Any) -> None:
    with pytest.raises(error, match=r"^\[(linalg\.\w+|svd)\] expected .*, got .*; "):
        call(nf.asarray(drawn(2, 3), device="cpu"))


@pytest.mark.gpu
def test_operands_of_two_devices() -> None:
    with pytest.raises(DeviceError):
        nf.linalg.solve(nf.eye(2, device="cuda"), nf.eye(2, device="cpu"))


def test_empty_and_integer_and_quantized(device: Any) -> None:
    assert nf.linalg.det(nf.zeros((0, 0), device=device)).item() == 1
    assert nf.linalg.inv(nf.zeros((2, 0, 0), device=device)).shape == (2, 0, 0)
    assert nf.linalg.pinv(nf.zeros((0, 3), device=device)).shape == (3, 0)
    assert nf.linalg.vector_norm(nf.zeros((0,), device=device), ord=np.inf).item() == 0
    assert nf.linalg.det(nf.asarray([[2, 0], [0, 3]], device=device)).dtype == nf.float32
    q = nf.asarray(np.eye(32, dtype=np.float32), device=device).astype(nf.mxfp8)
    assert nf.linalg.inv(q).dtype == nf.float32 and nf.linalg.trace(q).item() == 32


def test_complex_values(device: Any) -> None:
    values = (square(3, 3) + 1j * drawn(3, 3)).astype(np.complex64)
    x = nf.asarray(values, device=device)
    for name in ("inv", "det", "svdvals", "matrix_norm", "vector_norm", "pinv"):
        expected = getattr(L, name)(values.astype(np.complex128))
        got = getattr(nf.linalg, name)(x)
        np.testing.assert_allclose(nf.asnumpy(got), expected, rtol=1e-4, atol=1e-5)
        assert got.dtype == (nf.complex64 if expected.dtype.kind == "c" else nf.float32)
    hermitian = nf.matmul(x, nf.conj(x).mT) + nf.eye(3, device=device)
    for upper in (False, True):
        factor = nf.asnumpy(nf.linalg.cholesky(hermitian, upper=upper))
        again = factor.conj().T @ factor if upper else factor @ factor.conj().T
        np.testing.assert_allclose(again, nf.asnumpy(hermitian), rtol=1e-4, atol=1e-5)
