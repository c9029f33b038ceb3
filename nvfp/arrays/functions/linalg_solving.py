"""Equations, inverses and determinants of `nf.linalg`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions._common import HALVES, Axes, axis_tuple, promoted, widened
from nvfp.arrays.functions._library import constant
from nvfp.arrays.functions._linalg import back, factors, inverse, like_matrix, matrix, recorded, transposed
from nvfp.arrays.functions.linalg_factors import svd
from nvfp.arrays.habits import explained
from nvfp.arrays.registry import nf
from nvfp.dtypes.dense import float32, int64
from nvfp.dtypes.finfo import finfo
from nvfp.errors import LinAlgError, ShapeError, message


class SlogdetResult(NamedTuple):
    """What `slogdet` returns."""

    sign: Array
    logabsdet: Array


class LstsqResult(NamedTuple):
    """What `lstsq` returns."""

    x: Array
    residuals: Array
    rank: Array
    singular_values: Array


@explained
def inv(x: Any, /) -> Array:
    """Return the inverse of matrices.

    Args:
        x: Array [..., N, N].

    Returns:
        [..., N, N] in the dtype of ``x`` (float32 for integers).

    Raises:
        ShapeError: no square matrices.
        LinAlgError: a singular matrix (exactly so; on CUDA the call waits for the GPU to know).

    Numerics:
        LU factors; 16-bit floats compute in float32 and are rounded once.

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.inv(nf.asarray([[2.0, 0.0], [0.0, 4.0]], device="cpu")).tolist()
        [[0.5, 0.0], [0.0, 0.25]]
    """
    wide, dtype = matrix("linalg.inv", x, square=True)
    return back(inverse("linalg.inv", wide), dtype)


def _cofactors(x: Array) -> Array:
    """The derivative of det by the matrix: ``det * inv.T``, of singular matrices by their singular values."""
    try:
        return nf.expand_dims(det(x), (-2, -1)) * transposed(inverse("gradient of linalg.det", x))
    except LinAlgError:
        u, s, vh = svd(x, full_matrices=False)
    others = nf.where(like_matrix(np.eye(s.shape[-1]), s) != 0, 1.0, nf.expand_dims(s, -2))
    sign = nf.expand_dims(det(u) * det(vh), (-2, -1))
    return sign * ((u * nf.expand_dims(nf.prod(others, axis=-1), -2)) @ vh)


def _det_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    return (nf.expand_dims(g, (-2, -1)) * _cofactors(saved[1]),)


@explained
def det(x: Any, /) -> Array:
    """Return the determinant of matrices.

    Args:
        x: Array [..., N, N].

    Returns:
        [...] in the dtype of ``x``.

    Raises:
        ShapeError: no square matrices.

    Notes:
        The gradient is right for singular matrices too.

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.det(nf.asarray([[2.0, 0.0], [0.0, 4.0]], device="cpu"))
        nf.array(8.)
    """
    wide, dtype = matrix("linalg.det", x, square=True)
    return back(recorded("linalg.det", (wide,), _det_vjp, (factors("linalg.det", "det", wide),), (wide,))[0], dtype)


def _slogdet_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    if g[1] is None:
        return (None,)
    return (nf.expand_dims(g[1], (-2, -1)) * transposed(inverse("gradient of linalg.slogdet", saved[2])),)


@explained
def slogdet(x: Any, /) -> SlogdetResult:
    """Return the sign and the logarithm of the absolute determinant, which cannot overflow.

    Args:
        x: Array [..., N, N].

    Returns:
        ``(sign, logabsdet)``, both [...]; 0 and -inf for a singular matrix. The sign has no gradient.

    Raises:
        ShapeError: no square matrices.

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.slogdet(nf.asarray([[-1.0, 0.0], [0.0, 1.0]], device="cpu")).sign
        nf.array(-1.)
    """
    wide, dtype = matrix("linalg.slogdet", x, square=True)
    found = factors("linalg.slogdet", "slogdet", wide)
    sign, logarithm = recorded("linalg.slogdet", (wide,), _slogdet_vjp, found, (wide,))
    return SlogdetResult(back(sign, dtype), back(logarithm, dtype))


def _solve_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    y, a = saved
    db = _solved("gradient of linalg.solve", transposed(a), g)
    return nf.negative(db @ transposed(y)) if needs[0] else None, db


def _solved(op: str, a: Array, b: Array) -> Array:
    return recorded("linalg.solve", (a, b), _solve_vjp, (factors(op, "solve", a, b),), (a,))[0]


@explained
def solve(x1: Any, x2: Any, /) -> Array:
    """Return y with ``x1 @ y = x2``.

    Args:
        x1: Array [..., N, N].
        x2: Array [N], or [..., N, K]; batch axes broadcast.

    Returns:
        [..., N] or [..., N, K] of ``nf.result_type(x1, x2)``.

    Raises:
        ShapeError: no square matrices, or lengths that do not meet.
        LinAlgError: a singular matrix (on CUDA the call waits for the GPU to know).
        DeviceError: operands on different devices.

    Numerics:
        LU factors; 16-bit floats compute in float32 and are rounded once.

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.solve(nf.asarray([[2.0, 0.0], [0.0, 4.0]], device="cpu"), nf.asarray([2.0, 2.0], device="cpu"))
        nf.array([1. , 0.5])
    """
    a, b, dtype = _equations("linalg.solve", x1, x2)
    if a.shape[-1] != a.shape[-2]:
        raise ShapeError(message("linalg.solve", "square matrices [..., N, N]", a.shape, "use nf.linalg.lstsq"))
    vector = b.ndim == 1
    b = nf.expand_dims(b, 1) if vector else b
    lead = nf.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (x if x.shape[:-2] == lead else nf.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
    y = _solved("linalg.solve", a, b)
    return back(nf.squeeze(y, -1) if vector else y, dtype)


def _equations(op: str, x1: Any, x2: Any) -> tuple[Array, Array, np.dtype]:
    """Two operands in the wide dtype to compute in, and the dtype of the result."""
    (a, b), dtype = promoted(op, x1, x2)
    target = float32 if dtype.kind in "iub" else dtype
    compute = float32 if target in HALVES else target
    a, b = (nf.astype(x if isinstance(x, Array) else nf.asarray(x), compute, copy=False) for x in (a, b))
    if a.ndim < 2 or b.ndim < 1 or a.shape[-2] != b.shape[-2 if b.ndim > 1 else 0]:
        do = "give both as many rows"
        raise ShapeError(message(op, "x1 [..., M, N] and x2 [M] or [..., M, K]", f"{a.shape} and {b.shape}", do))
    return a, b, target


def _pinv_vjp(saved: tuple[Any, ...], g: Any, needs: tuple[bool, ...]) -> tuple[Any, ...]:
    p, x = saved
    pt, gt = transposed(p), transposed(g)
    left = like_matrix(np.eye(x.shape[-2]), x) - x @ p
    right = like_matrix(np.eye(x.shape[-1]), x) - p @ x
    return (left @ gt @ p @ pt + pt @ p @ gt @ right - pt @ g @ pt,)


@explained
def pinv(x: Any, /, *, rtol: Any = None) -> Array:
    """Return the Moore-Penrose inverse of matrices.

    Args:
        x: Array [..., M, N].
        rtol: singular values up to ``rtol`` times the largest count as 0; max(M, N) times the dtype's eps without it.

    Returns:
        [..., N, M] in the dtype of ``x``. The gradient holds where the rank stays the same.

    Raises:
        ShapeError: no matrices.
        LinAlgError: the singular values do not converge (on CUDA the call waits for the GPU to know).

    Example:
        >>> import nvfp as nf
        >>> nf.round(nf.linalg.pinv(nf.asarray([[2.0], [0.0]], device="cpu")) + 0.0).tolist()
        [[0.0, 0.0]]
    """
    wide, dtype = matrix("linalg.pinv", x)
    if isinstance(rtol, Array):
        rtol = rtol.detach().raw
    return back(recorded("linalg.pinv", (wide,), _pinv_vjp, (_pinv(wide, rtol),), (wide,))[0], dtype)


def _pinv(x: Array, rtol: Any) -> Any:
    if 0 in x.shape:
        return nf.zeros((*x.shape[:-2], x.shape[-1], x.shape[-2]), dtype=x.dtype, device=x.device).raw
    return factors("linalg.pinv", "pinv", x, rtol=rtol)


@explained
def lstsq(x1: Any, x2: Any, /, *, rcond: float | None = None) -> LstsqResult:
    """Return y that makes ``x1 @ y - x2`` shortest, and of several the shortest (NumPy's `lstsq`).

    Args:
        x1: Array [M, N].
        x2: Array [M] or [M, K].
        rcond: singular values up to ``rcond`` times the largest count as 0; max(M, N) times eps without it.

    Returns:
        ``(x, residuals, rank, singular_values)``: [N] or [N, K]; the squared lengths of what is left, [1] or [K], or
        none where the rank is below N or M <= N; a 0-d int64; [min(M, N)].

    Raises:
        ShapeError: lengths that do not meet, or more axes.
        GradientError: an operand needs gradients: there is no rule; write ``nf.linalg.pinv(x1) @ x2``.

    Notes:
        Waits for the GPU.

    Example:
        >>> import nvfp as nf
        >>> x = nf.asarray([[1.0], [1.0]], device="cpu")
        >>> float(nf.linalg.lstsq(x, nf.asarray([1.0, 3.0], device="cpu")).x.item())  # doctest: +ELLIPSIS
        2.0...
    """
    a, b, dtype = _equations("linalg.lstsq", x1, x2)
    a, b = constant("linalg.lstsq", a), constant("linalg.lstsq", b)
    if a.ndim > 2 or b.ndim > 2:
        raise ShapeError(message("linalg.lstsq", "x1 [M, N]", a.shape, "use nf.linalg.pinv(x1) @ x2 for batches"))
    tolerance = float(finfo(a.dtype).eps) * max(a.shape) if rcond is None else rcond
    y, rest, rank, values = factors("linalg.lstsq", "lstsq", a, b, rcond=tolerance)
    count = nf.asarray(int(rank), dtype=int64, device=a.device)
    y, rest, values = (back(wrap(v), dtype) for v in (y, rest, values))
    return LstsqResult(y, rest, count, values)


@explained
def tensorinv(x: Any, /, ind: int = 2) -> Array:
    """Return the inverse of a map between tensors: ``tensordot(tensorinv(x, ind), x, ind)`` is the identity.

    Args:
        x: Array [a..., b...] with as many elements in its first ``ind`` axes as in the others.
        ind: how many axes come first.

    Raises:
        ShapeError: other lengths, or ``ind`` < 1.
        LinAlgError: a map without inverse.

    Example:
        >>> import nvfp as nf
        >>> nf.linalg.tensorinv(nf.reshape(nf.eye(6, device="cpu"), (6, 2, 3)), ind=1).shape
        (2, 3, 6)
    """
    (wide,), dtype = widened(nf.asarray(x)), nf.asarray(x).dtype
    if ind < 1:
        raise ShapeError(message("linalg.tensorinv", "ind >= 1", ind, "name how many axes come first"))
    shape = wide.shape[ind:] + wide.shape[:ind]
    rows = int(np.prod(wide.shape[:ind]))
    return back(nf.reshape(inv(nf.reshape(wide, (rows, -1))), shape), dtype)


@explained
def tensorsolve(x1: Any, x2: Any, /, axes: Any = None) -> Array:
    """Return y with ``tensordot(x1, y, y.ndim) = x2``.

    Args:
        x1: Array [b..., y...], with as many elements in the axes of ``x2`` as in those of y.
        x2: Array [b...].
        axes: axes of ``x1`` that move to the end first.

    Raises:
        ShapeError: lengths that do not meet.
        LinAlgError: a map without inverse.

    Example:
        >>> import nvfp as nf
        >>> x = nf.reshape(nf.eye(6, device="cpu"), (2, 3, 6))
        >>> nf.linalg.tensorsolve(x, nf.ones((2, 3), device="cpu")).shape
        (6,)
    """
    a, b = nf.asarray(x1), nf.asarray(x2)
    if axes is not None:
        last: Axes = axis_tuple("linalg.tensorsolve", axes, a.ndim)
        a = nf.permute_dims(a, (*(i for i in range(a.ndim) if i not in last), *last))
    shape = a.shape[b.ndim :]
    return nf.reshape(solve(nf.reshape(a, (b.size, -1)), nf.reshape(b, (-1,))), shape)
