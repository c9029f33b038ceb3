"""Factors and eigenvalues of `nf.linalg`."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import dense
from nvfp.arrays.functions._linalg import (
    apart,
    back,
    factors,
    inverse,
    like_matrix,
    matrix,
    no_rule,
    recorded,
    transposed,
)
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf
from nvfp.autograd.tape import Output, needs_grad
from nvfp.errors import ArgumentError, message


class EigResult(NamedTuple):
    """What `eig` returns."""

    eigenvalues: Array
    eigenvectors: Array


class EighResult(NamedTuple):
    """What `eigh` returns."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """What `qr` returns."""

    Q: Array
    R: Array


class SVDResult(NamedTuple):
    """What `svd` returns."""

    U: Array
    S: Array
    Vh: Array


def _symmetric(x: Array) -> Array:
    return (x + transposed(x)) * 0.5


def _lower_half(x: Array, diagonal: float) -> Array:
    """The lower triangle, its diagonal times ``diagonal``."""
    n = x.shape[-1]
    return x * like_matrix(np.tril(np.ones((n, n)), -1) + diagonal * np.eye(n), x)


def _cholesky_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    y = inverse("gradient of linalg.cholesky", saved[0])
    inner = _lower_half(transposed(saved[0]) @ g, 0.5)
    return (_symmetric(transposed(y) @ inner @ y),)


@explained
def cholesky(x: Any, /, *, upper: bool = False) -> Array:
    """Return the triangular factor L of ``x = L @ L.mT`` (complex: its conjugate).

    Args:
        x: Array [..., N, N], symmetric (complex: Hermitian) and positive definite; one triangle is read.
        upper: return ``L.mT`` (complex: its conjugate) instead.

    Returns:
        [..., N, N] in the dtype of ``x``. The gradient is the symmetric one.

    Raises:
        ShapeError: no square matrices.
        LinAlgError: a matrix that is not positive definite (on CUDA the call waits for the GPU to know).

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.cholesky(nf.asarray([[4.0, 2.0], [2.0, 5.0]], device="cpu")).tolist()
        [[2.0, 0.0], [1.0, 2.0]]
    """
    wide, dtype = matrix("linalg.cholesky", x, square=True)
    raw = wide.raw if wide.size == 0 else factors("linalg.cholesky", "cholesky", wide)
    (lower,) = recorded("linalg.cholesky", (wide,), _cholesky_vjp, (raw,))
    if upper:
        lower = transposed(nf.conj(lower) if dtype.kind == "c" else lower)
    return back(lower, dtype)


def _eigh_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    w, v = saved
    dw, dv = g
    vt = transposed(v)
    parts = []
    if dw is not None:
        parts.append((v * nf.expand_dims(dw, -2)) @ vt)
    if dv is not None:
        parts.append(v @ (apart(w) * (vt @ dv)) @ vt)
    return (_symmetric(parts[0] if len(parts) == 1 else parts[0] + parts[1]),)


@explained
def eigh(x: Any, /) -> EighResult:
    """Return eigenvalues and eigenvectors of symmetric (complex: Hermitian) matrices.

    Args:
        x: Array [..., N, N]; the lower triangle is read.

    Returns:
        ``(eigenvalues, eigenvectors)``: [..., N] in ascending order, real; [..., N, N] with the vectors as columns,
        each up to its sign. The gradient is the symmetric one; that of vectors of equal eigenvalues holds for what
        depends on the space they span alone.

    Raises:
        ShapeError: no square matrices.
        LinAlgError: no convergence (on CUDA the call waits for the GPU to know).

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.eigh(nf.asarray([[2.0, 0.0], [0.0, 1.0]], device="cpu")).eigenvalues
        nf.array([1., 2.])
    """
    wide, dtype = matrix("linalg.eigh", x, square=True)
    w, v = recorded("linalg.eigh", (wide,), _eigh_vjp, factors("linalg.eigh", "eigh", wide))
    return EighResult(back(w, dtype), back(v, dtype))


@explained
def eigvalsh(x: Any, /) -> Array:
    """Return the eigenvalues of symmetric (complex: Hermitian) matrices: the first part of `eigh`.

    Args:
        x: Array [..., N, N]; the lower triangle is read.

    Raises:
        ShapeError: no square matrices.
        LinAlgError: no convergence (on CUDA the call waits for the GPU to know).

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.eigvalsh(nf.asarray([[2.0, 0.0], [0.0, 1.0]], device="cpu"))
        nf.array([1., 2.])
    """
    wide, dtype = matrix("linalg.eigvalsh", x, square=True)
    if needs_grad(wide):
        return back(eigh(wide).eigenvalues, dtype)
    return back(wrap(factors("linalg.eigvalsh", "eigvalsh", wide)), dtype)


def _eig_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    """For results that do not depend on the length and phase of the vectors."""
    w, v, dtype = saved
    dw, dv = g
    vh = transposed(nf.conj(v))
    eye = nf.eye(w.shape[-1], device=w.device)
    inner = eye * nf.expand_dims(dw, -2) if dw is not None else None
    if dv is not None:
        along = vh @ dv
        across = along - (vh @ v) * nf.expand_dims(nf.real(nf.sum(along * eye, axis=-2)), -2)
        across = across * nf.conj(apart(w))
        inner = across if inner is None else inner + across
    found = inverse("gradient of linalg.eig", vh) @ inner @ vh
    return (nf.astype(nf.real(found), dtype),)


@explained
def eig(x: Any, /) -> EigResult:
    """Return eigenvalues and eigenvectors of matrices: always complex.

    Args:
        x: Array [..., N, N], real or complex.

    Returns:
        ``(eigenvalues, eigenvectors)``: [..., N] in no order; [..., N, N] with the vectors, of length 1, as columns.
        The gradient holds for what does not depend on their phase; it cannot be differentiated again.

    Raises:
        ShapeError: no square matrices.
        LinAlgError: no convergence, or a value that is not finite.
        GradientError: a complex ``x`` that needs gradients.

    Notes:
        Waits for the GPU.

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.eig(nf.asarray([[0.0, 1.0], [-1.0, 0.0]], device="cpu")).eigenvalues.tolist()
        [1j, -1j]
    """
    wide, _ = matrix("linalg.eig", x, square=True)
    target = np.result_type(wide.dtype, np.complex64)
    w, v = (wrap(raw.astype(target, copy=False)) for raw in factors("linalg.eig", "eig", wide))
    node = dense("linalg.eig", (wide,), _eig_vjp, (Output(w, 0), Output(v, 1), wide.dtype), 2, twice=False)
    w._node, v._node, v._index = node, node, 1
    return EigResult(w, v)


@explained
def eigvals(x: Any, /) -> Array:
    """Return the eigenvalues of matrices: the first part of `eig`.

    Args:
        x: Array [..., N, N], real or complex.

    Raises:
        ShapeError: no square matrices.
        LinAlgError: no convergence, or a value that is not finite.

    Notes:
        Waits for the GPU.

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.eigvals(nf.asarray([[0.0, 1.0], [-1.0, 0.0]], device="cpu")).dtype
        dtype('complex64')
    """
    wide, _ = matrix("linalg.eigvals", x, square=True)
    if needs_grad(wide):
        return eig(wide).eigenvalues
    target = np.result_type(wide.dtype, np.complex64)
    return wrap(factors("linalg.eigvals", "eigvals", wide).astype(target, copy=False))


def _skew(x: Array) -> Array:
    return x - transposed(x)


def _svd_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    u, s, vh, x = saved
    du, ds, dvh = g
    (m, n), k = (u.shape[-2], vh.shape[-1]), s.shape[-1]
    if m != n and u.shape[-1] == m and vh.shape[-2] == n:  # full ones: the rule is that of the thin ones
        if du is not None or dvh is not None:
            raise no_rule("linalg.svd", "full_matrices=True for what depends on U or Vh", "pass full_matrices=False")
        u, s, vh = svd(x, full_matrices=False)
    v, row = transposed(vh), nf.expand_dims(s, -2)
    inner = like_matrix(np.eye(k), s) * nf.expand_dims(ds, -2) if ds is not None else None
    gaps = apart(s * s) if du is not None or dvh is not None else None
    outside = None
    if du is not None:
        turned = _skew(transposed(u) @ du) * gaps * row
        inner = turned if inner is None else inner + turned
        if m > k:
            scaled = du / row
            outside = (scaled - u @ (transposed(u) @ scaled)) @ vh
    if dvh is not None:
        dv = transposed(dvh)
        turned = nf.expand_dims(s, -1) * (_skew(vh @ dv) * gaps)
        inner = turned if inner is None else inner + turned
        if n > k:
            scaled = transposed(dv / row)
            rest = u @ (scaled - (scaled @ v) @ vh)
            outside = rest if outside is None else outside + rest
    found = u @ inner @ vh
    return (found if outside is None else found + outside,)


@explained
def svd(x: Any, /, *, full_matrices: bool = True) -> SVDResult:
    """Return the singular value decomposition ``x = (U * S) @ Vh``.

    Args:
        x: Array [..., M, N]; K = min(M, N).
        full_matrices: complete U and Vh to bases of the whole spaces.

    Returns:
        ``(U, S, Vh)``: [..., M, M] or [..., M, K]; [..., K], real, in descending order; [..., N, N] or [..., K, N].
        The gradient of vectors of equal singular values holds for what depends on the space they span alone; that of
        U and Vh needs ``full_matrices=False`` where M and N differ.

    Raises:
        ShapeError: no matrices.
        LinAlgError: no convergence (on CUDA the call waits for the GPU to know).

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.svd(nf.asarray([[0.0, 2.0], [1.0, 0.0]], device="cpu")).S
        nf.array([2., 1.])
    """
    wide, dtype = matrix("linalg.svd", x)
    found = factors("linalg.svd", "svd", wide, full_matrices=full_matrices)
    u, s, vh = recorded("linalg.svd", (wide,), _svd_vjp, found, (wide,))
    return SVDResult(back(u, dtype), back(s, dtype), back(vh, dtype))


@explained
def svdvals(x: Any, /) -> Array:
    """Return the singular values of matrices, in descending order.

    Args:
        x: Array [..., M, N].

    Returns:
        [..., min(M, N)], real.

    Raises:
        ShapeError: no matrices.
        LinAlgError: no convergence (on CUDA the call waits for the GPU to know).

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.svdvals(nf.asarray([[0.0, 2.0], [1.0, 0.0]], device="cpu"))
        nf.array([2., 1.])
    """
    wide, dtype = matrix("linalg.svdvals", x)
    if needs_grad(wide):
        return back(svd(wide, full_matrices=False).S, dtype)
    return back(wrap(factors("linalg.svdvals", "svdvals", wide)), dtype)


def _triangular(m: Array) -> Array:
    """The lower triangle, mirrored above the diagonal."""
    below = _lower_half(m, 0.0)
    return _lower_half(m, 1.0) + transposed(below)


def _square_qr(q: Array, r: Array, dq: Array, dr: Array) -> Array:
    """The gradient of ``x`` [..., M, N] with M >= N."""
    rt = transposed(r)
    inner = _triangular(r @ transposed(dr) - transposed(dq) @ q)
    return (dq + q @ inner) @ inverse("gradient of linalg.qr", rt)


def _qr_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    q, r, x = saved
    m, n = x.shape[-2:]
    if q.shape[-1] > n:
        raise no_rule("linalg.qr", "mode='complete' for more rows than columns", "pass mode='reduced'")
    dq = nf.zeros_like(q) if g[0] is None else g[0]
    dr = nf.zeros_like(r) if g[1] is None else g[1]
    if m >= n:
        return (_square_qr(q, r, dq, dr),)
    rest = dr[..., m:]  # x = [first | y], r = [r of first | q.mT @ y]
    first = _square_qr(q, r[..., :m], dq + x[..., m:] @ transposed(rest), dr[..., :m])
    return (nf.concat([first, q @ rest], axis=-1),)


@explained
def qr(x: Any, /, *, mode: Literal["reduced", "complete"] = "reduced") -> QRResult:
    """Return orthonormal columns Q and an upper triangle R with ``x = Q @ R``.

    Args:
        x: Array [..., M, N]; K = min(M, N).
        mode: ``"reduced"``, or ``"complete"``: Q is completed to a basis of the whole space.

    Returns:
        ``(Q, R)``: [..., M, K] and [..., K, N], or [..., M, M] and [..., M, N]. The gradient needs the reduced mode
        where M > N, and first K columns that are independent.

    Raises:
        ShapeError: no matrices.
        ArgumentError: another mode.

    Example:
        >>> import nvfp as nf
        >>> [part.shape for part in nf.linalg.qr(nf.ones((3, 2), device="cpu"))]
        [(3, 2), (2, 2)]
    """
    if mode not in ("reduced", "complete"):
        raise ArgumentError(message("linalg.qr", "mode 'reduced' or 'complete'", repr(mode), "name one of these"))
    wide, dtype = matrix("linalg.qr", x)
    q, r = recorded("linalg.qr", (wide,), _qr_vjp, factors("linalg.qr", "qr", wide, mode=mode), (wide,))
    return QRResult(back(q, dtype), back(r, dtype))
