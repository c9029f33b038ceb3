"""CPU twin of `kernels.activation`: one kernel per function and direction, over tiles (plain) or rows (gated).

They are written out: Numba keeps no machine code of a closure over a helper, so a factory would compile at every start.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from nvfp.kernels.activation import CLAMP, KINDS, Clamp
from nvfp.kernels.cpu._act import (
    cut,
    cut_silu,
    cut_silu_vjp,
    cut_vjp,
    gelu,
    gelu_slope,
    qgelu,
    qgelu_slope,
    relu,
    relu_vjp,
    sigmoid_slope,
    silu,
    silu_slope,
    srelu,
    srelu_vjp,
)  # fmt: skip
from nvfp.kernels.cpu._exp import sigmoid32
from nvfp.kernels.cpu._halves import narrow, widen
from nvfp.kernels.cpu._njit import njit
from nvfp.kernels.cpu._pool import run_chunks
from nvfp.kernels.cpu._tiles import GRAIN, TILE, elementwise


@njit
def _gelu_tile(x: np.ndarray, y: np.ndarray) -> None:
    for i in range(y.size):
        y[i] = gelu(x[i])


@njit
def _gelu_vjp_tile(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    for i in range(dx.size):
        dx[i] = gelu_slope(x[i]) * dy[i]


@njit
def _relu_tile(x: np.ndarray, y: np.ndarray) -> None:
    for i in range(y.size):
        y[i] = relu(x[i])


@njit
def _relu_vjp_tile(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    for i in range(dx.size):
        dx[i] = relu_vjp(x[i], dy[i])


@njit
def _silu_tile(x: np.ndarray, y: np.ndarray) -> None:
    for i in range(y.size):
        y[i] = silu(x[i])


@njit
def _silu_vjp_tile(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    for i in range(dx.size):
        dx[i] = silu_slope(x[i]) * dy[i]


@njit
def _qgelu_tile(x: np.ndarray, y: np.ndarray) -> None:
    for i in range(y.size):
        y[i] = qgelu(x[i])


@njit
def _qgelu_vjp_tile(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    for i in range(dx.size):
        dx[i] = qgelu_slope(x[i]) * dy[i]


@njit
def _srelu_tile(x: np.ndarray, y: np.ndarray) -> None:
    for i in range(y.size):
        y[i] = srelu(x[i])


@njit
def _srelu_vjp_tile(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    for i in range(dx.size):
        dx[i] = srelu_vjp(x[i], dy[i])


@njit
def _glu_rows(x: np.ndarray, y: np.ndarray) -> None:
    n = y.shape[1]
    for r in range(y.shape[0]):
        a, b, to = x[r, :n], x[r, n:], y[r]
        for j in range(n):
            to[j] = sigmoid32(a[j]) * b[j]


@njit
def _glu_vjp_rows(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    n = dy.shape[1]
    for r in range(dy.shape[0]):
        a, b, d, da, db = x[r, :n], x[r, n:], dy[r], dx[r, :n], dx[r, n:]
        for j in range(n):
            da[j], db[j] = sigmoid_slope(a[j]) * (d[j] * b[j]), sigmoid32(a[j]) * d[j]


@njit
def _geglu_rows(x: np.ndarray, y: np.ndarray) -> None:
    n = y.shape[1]
    for r in range(y.shape[0]):
        a, b, to = x[r, :n], x[r, n:], y[r]
        for j in range(n):
            to[j] = gelu(a[j]) * b[j]


@njit
def _geglu_vjp_rows(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    n = dy.shape[1]
    for r in range(dy.shape[0]):
        a, b, d, da, db = x[r, :n], x[r, n:], dy[r], dx[r, :n], dx[r, n:]
        for j in range(n):
            da[j], db[j] = gelu_slope(a[j]) * (d[j] * b[j]), gelu(a[j]) * d[j]


@njit
def _qgeglu_rows(x: np.ndarray, y: np.ndarray) -> None:
    n = y.shape[1]
    for r in range(y.shape[0]):
        a, b, to = x[r, :n], x[r, n:], y[r]
        for j in range(n):
            to[j] = qgelu(a[j]) * b[j]


@njit
def _qgeglu_vjp_rows(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    n = dy.shape[1]
    for r in range(dy.shape[0]):
        a, b, d, da, db = x[r, :n], x[r, n:], dy[r], dx[r, :n], dx[r, n:]
        for j in range(n):
            da[j], db[j] = qgelu_slope(a[j]) * (d[j] * b[j]), qgelu(a[j]) * d[j]


@njit
def _swiglu_rows(x: np.ndarray, y: np.ndarray) -> None:
    n = y.shape[1]
    for r in range(y.shape[0]):
        a, b, to = x[r, :n], x[r, n:], y[r]
        for j in range(n):
            to[j] = silu(a[j]) * b[j]


@njit
def _swiglu_vjp_rows(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    n = dy.shape[1]
    for r in range(dy.shape[0]):
        a, b, d, da, db = x[r, :n], x[r, n:], dy[r], dx[r, :n], dx[r, n:]
        for j in range(n):
            da[j], db[j] = silu_slope(a[j]) * (d[j] * b[j]), silu(a[j]) * d[j]


@njit
def _reglu_rows(x: np.ndarray, y: np.ndarray) -> None:
    n = y.shape[1]
    for r in range(y.shape[0]):
        a, b, to = x[r, :n], x[r, n:], y[r]
        for j in range(n):
            to[j] = relu(a[j]) * b[j]


@njit
def _reglu_vjp_rows(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    n = dy.shape[1]
    for r in range(dy.shape[0]):
        a, b, d, da, db = x[r, :n], x[r, n:], dy[r], dx[r, :n], dx[r, n:]
        for j in range(n):
            da[j], db[j] = relu_vjp(a[j], d[j] * b[j]), relu(a[j]) * d[j]


@njit
def _sreglu_rows(x: np.ndarray, y: np.ndarray) -> None:
    n = y.shape[1]
    for r in range(y.shape[0]):
        a, b, to = x[r, :n], x[r, n:], y[r]
        for j in range(n):
            to[j] = srelu(a[j]) * b[j]


@njit
def _sreglu_vjp_rows(x: np.ndarray, dy: np.ndarray, dx: np.ndarray) -> None:
    n = dy.shape[1]
    for r in range(dy.shape[0]):
        a, b, d, da, db = x[r, :n], x[r, n:], dy[r], dx[r, :n], dx[r, n:]
        for j in range(n):
            da[j], db[j] = srelu_vjp(a[j], d[j] * b[j]), srelu(a[j]) * d[j]


@njit
def _clamped_rows(x: np.ndarray, y: np.ndarray, limit: np.float32, alpha: np.float32, offset: np.float32) -> None:
    n = y.shape[1]
    for r in range(y.shape[0]):
        a, b, to = x[r, :n], x[r, n:], y[r]
        for j in range(n):
            to[j] = cut_silu(a[j], limit, alpha) * cut(b[j], limit, offset)


@njit
def _clamped_vjp_rows(
    x: np.ndarray, dy: np.ndarray, dx: np.ndarray, limit: np.float32, alpha: np.float32, offset: np.float32
) -> None:
    n = dy.shape[1]
    for r in range(dy.shape[0]):
        a, b, d, da, db = x[r, :n], x[r, n:], dy[r], dx[r, :n], dx[r, n:]
        for j in range(n):
            da[j] = cut_silu_vjp(a[j], d[j] * cut(b[j], limit, offset), limit, alpha)
            db[j] = cut_vjp(b[j], cut_silu(a[j], limit, alpha) * d[j], limit)


_FORWARD: dict[str, Callable[..., Any]] = {
    "gelu": _gelu_tile,
    "relu": _relu_tile,
    "silu": _silu_tile,
    "qgelu": _qgelu_tile,
    "srelu": _srelu_tile,
    "glu": _glu_rows,
    "geglu": _geglu_rows,
    "qgeglu": _qgeglu_rows,
    "swiglu": _swiglu_rows,
    "reglu": _reglu_rows,
    "sreglu": _sreglu_rows,
    "clamped_swiglu": _clamped_rows,
}
_BACKWARD: dict[str, Callable[..., Any]] = {
    "gelu": _gelu_vjp_tile,
    "relu": _relu_vjp_tile,
    "silu": _silu_vjp_tile,
    "qgelu": _qgelu_vjp_tile,
    "srelu": _srelu_vjp_tile,
    "glu": _glu_vjp_rows,
    "geglu": _geglu_vjp_rows,
    "qgeglu": _qgeglu_vjp_rows,
    "swiglu": _swiglu_vjp_rows,
    "reglu": _reglu_vjp_rows,
    "sreglu": _sreglu_vjp_rows,
    "clamped_swiglu": _clamped_vjp_rows,
}


def _numbers(kind: str, params: Clamp | None) -> tuple[np.float32, ...]:
    """What the kernel takes behind its arrays."""
    return tuple(map(np.float32, params or CLAMP)) if kind == "clamped_swiglu" else ()


def _rows(
    kernel: Callable[..., Any], arrays: tuple[np.ndarray, ...], half: int, numbers: tuple[np.float32, ...]
) -> None:
    """Call ``kernel`` over some rows at a time of C-contiguous arrays of equal leading axes; it writes the last one."""
    rows = prod(arrays[0].shape[:-1])
    if rows == 0 or half == 0:
        return
    tables = [x.reshape(rows, x.shape[-1]) for x in arrays]
    target = tables[-1]
    step = max(1, TILE // (2 * half))

    def work(start: int, stop: int) -> None:
        for a in range(start, stop, step):
            b = min(a + step, stop)
            y = np.empty((b - a, target.shape[1]), np.float32)
            kernel(*(widen(x[a:b]) for x in tables[:-1]), y, *numbers)
            narrow(y, target[a:b])

    run_chunks(work, rows, max(1, GRAIN // half))


def activation(x: Any, kind: str = "gelu", *, params: Clamp | None = None, out: Any | None = None) -> Any:
    """See `nvfp.kernels.activation.activation`."""
    if not KINDS[kind].gated:
        y = np.empty(x.shape, x.dtype) if out is None else out
        elementwise(_FORWARD[kind], (x,), y)
        return y
    half = x.shape[-1] // 2
    y = np.empty((*x.shape[:-1], half), x.dtype) if out is None else out
    _rows(_FORWARD[kind], (x, y), half, _numbers(kind, params))
    return y


def activation_vjp(x: Any, dy: Any, kind: str = "gelu", *, params: Clamp | None = None, out: Any | None = None) -> Any:
    """See `nvfp.kernels.activation.activation_vjp`."""
    dx = np.empty(x.shape, x.dtype) if out is None else out
    if KINDS[kind].gated:
        _rows(_BACKWARD[kind], (x, dy, dx), dy.shape[-1], _numbers(kind, params))
    else:
        elementwise(_BACKWARD[kind], (x, dy), dx)
    return dx
