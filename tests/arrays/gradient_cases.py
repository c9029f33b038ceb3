"""Every public function of `nf`, `nf.linalg` and `nf.fft`: with a gradient, refused by name, or without derivative.

A new function needs a row here: `CASES` if it has a rule, `REFUSED` if it raises for a variable, `FLAT` if its results
are integers, bools or no arrays, `NO_INPUT` if it takes no array, or one whose values do not enter the result.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import nvfp as nf


@dataclass(frozen=True)
class Case:
    """A call on float64 arrays away from kinks; ``order`` is how often it can be differentiated."""

    call: Callable[..., Any]
    args: tuple[np.ndarray, ...] = field(repr=False)
    order: int = 2
    quantized: bool = False  # rounds in the middle: finite differences say nothing


def drawn(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).uniform(low, high, shape)


X = drawn(2, 3, 4)
POSITIVE = drawn(2, 3, low=0.3, high=2.0, seed=1)
SMALL = drawn(2, 3, low=-0.8, high=0.8, seed=2)
M = drawn(3, 3, low=-1, high=1, seed=3) + 2 * np.eye(3)
BATCH = drawn(2, 3, 3, low=-1, high=1, seed=4) + 2 * np.eye(3)
TALL, FLATTER = drawn(4, 3, seed=5), drawn(3, 4, seed=6)
V = drawn(4, seed=7)
THREE = drawn(2, 3, seed=8)


def symmetric(x: Any) -> Any:
    return (x + x.mT) * 0.5


def positive(x: Any) -> Any:
    return x @ x.mT + nf.eye(x.shape[-1], dtype=x.dtype, device=x.device)


def squares(z: Any) -> Any:
    """A real function of complex values that sees both parts of each."""
    return nf.real(z * nf.conj(z)) + nf.real(z) * 0.3 - nf.imag(z) * 0.7


_UNARY = {
    "abs": POSITIVE, "acos": SMALL, "acosh": POSITIVE + 1, "asin": SMALL, "asinh": X, "atan": X, "atanh": SMALL,
    "ceil": POSITIVE + 0.1234, "cos": X, "cosh": SMALL, "exp": SMALL, "expm1": SMALL, "floor": POSITIVE + 0.1234,
    "log": POSITIVE, "log10": POSITIVE, "log1p": POSITIVE, "log2": POSITIVE, "negative": X, "positive": X,
    "reciprocal": POSITIVE, "round": POSITIVE + 0.1234, "rsqrt": POSITIVE, "sigmoid": X, "sign": POSITIVE, "sin": X,
    "sinh": SMALL, "sqrt": POSITIVE, "square": X, "tan": SMALL, "tanh": X, "trunc": POSITIVE + 0.1234, "conj": X,
    "real": X, "imag": X, "angle": POSITIVE, "exp2": SMALL, "sinc": X,
}  # fmt: skip
_BINARY = (
    "add", "atan2", "copysign", "divide", "hypot", "logaddexp", "maximum", "minimum", "multiply", "pow", "subtract",
    "floor_divide", "remainder", "fmax", "fmin", "fmod",
)  # fmt: skip
_REDUCTIONS = ("sum", "mean", "prod", "max", "min", "var", "std", "ptp", "nansum", "nanmean", "nanprod", "nanvar",
               "nanstd", "nanmax", "nanmin")  # fmt: skip


def _rows() -> dict[str, list[Case]]:
    rows: dict[str, list[Case]] = {n: [Case(getattr(nf, n), (x,))] for n, x in _UNARY.items()}
    pair = (POSITIVE + 0.5, drawn(3, low=0.3, high=1.4, seed=9))
    rows |= {n: [Case(getattr(nf, n), pair)] for n in _BINARY}
    for n in _REDUCTIONS:
        f = getattr(nf, n)
        rows[n] = [
            Case(f, (POSITIVE,)),
            Case(lambda x, f=f: f(x, axis=(0, -1), keepdims=True), (X,)),
            Case(lambda x, f=f: f(x, axis=1), (X,)),
        ]
    return rows


def case(call: Callable[..., Any], *args: np.ndarray, order: int = 2, quantized: bool = False) -> Case:
    return Case(call, args or (X,), order, quantized)


_HOLES = np.where(np.abs(X) > 1.5, 0.0, X)
CASES: dict[str, list[Case]] = {
    **_rows(),
    # conversions
    "array": [case(lambda x: nf.array(x) * 2)],
    "asarray": [case(lambda x: nf.asarray(x) * 2)],
    "astype": [case(lambda x: nf.astype(x, nf.float64) * x), case(lambda x: squares(nf.astype(x, nf.complex128)))],
    "copy": [case(lambda x: nf.copy(x))],
    "to_device": [case(lambda x: nf.to_device(x, "cpu") * 2)],
    "fake_quant": [case(lambda x: nf.fake_quant(x, nf.mxfp8), quantized=True)],
    "quantize": [case(lambda x: nf.dequantize(nf.quantize(x, nf.mxfp8)), quantized=True)],
    "dequantize": [case(lambda x: nf.dequantize(x.astype(nf.nvfp4), nf.float64), quantized=True)],
    "requantize": [case(lambda x: nf.dequantize(nf.requantize(x.astype(nf.mxfp8), axis=0)), quantized=True)],
    # choosing and filling
    "clip": [case(lambda x: nf.clip(x, -1, 1)), case(nf.clip, X, X[0] - 0.4, X[1] + 0.7)],
    "where": [case(lambda x, y: nf.where(x > 0.1, x * y, y), X, V)],
    "nan_to_num": [case(lambda x: nf.nan_to_num(x) * x)],
    # shapes
    "atleast_1d": [case(lambda x: nf.atleast_1d(x[0, 0, 0]))],
    "atleast_2d": [case(lambda x: nf.atleast_2d(x[0, 0]))],
    "atleast_3d": [case(lambda x: nf.atleast_3d(x[0]))],
    "broadcast_arrays": [case(lambda x, y: nf.broadcast_arrays(x, y)[1], X, V)],
    "broadcast_to": [case(lambda x: nf.broadcast_to(x[:, :1], (2, 3, 4)))],
    "expand_dims": [case(lambda x: nf.expand_dims(x, (0, -1)))],
    "flip": [case(lambda x: nf.flip(x, axis=(0, 2)))],
    "matrix_transpose": [case(nf.matrix_transpose)],
    "moveaxis": [case(lambda x: nf.moveaxis(x, 0, -1))],
    "permute_dims": [case(lambda x: nf.permute_dims(x, (2, 0, 1)))],
    "ravel": [case(nf.ravel)],
    "reshape": [case(lambda x: nf.reshape(x, (4, -1)))],
    "rot90": [case(lambda x: nf.rot90(x, axes=(0, 2))), case(lambda x: nf.rot90(x, -1, (1, 2)))],
    "squeeze": [case(lambda x: nf.squeeze(x[:1], 0))],
    "swapaxes": [case(lambda x: nf.swapaxes(x, 0, 2))],
    "transpose": [case(nf.transpose)],
    # joining, repeating
    "column_stack": [case(lambda x, y: nf.column_stack([x, y]), V, V * 2)],
    "concat": [case(lambda x, y: nf.concat([x, y, x], axis=-1), X, X[:, :, :1])],
    "concatenate": [case(lambda x: nf.concatenate([x, x]))],
    "dstack": [case(lambda x, y: nf.dstack([x, y]), V, V)],
    "hstack": [case(lambda x, y: nf.hstack([x, y]), V, V)],
    "vstack": [case(lambda x, y: nf.vstack([x, y]), V, V)],
    "stack": [case(lambda x, y: nf.stack([x, y], axis=1), V, V)],
    "array_split": [case(lambda x: nf.array_split(x, 3, axis=2)[0])],
    "split": [case(lambda x: nf.split(x, [1, 3], axis=2)[1])],
    "unstack": [case(lambda x: nf.unstack(x, axis=1)[2])],
    "pad": [case(lambda x: nf.pad(x, ((1, 0), (0, 2), (1, 1)))), case(lambda x: nf.pad(x, 1, mode="reflect"), X[0])],
    "repeat": [case(lambda x: nf.repeat(x, 3, axis=1)), case(lambda x: nf.repeat(x, [2, 0, 1], axis=1))],
    "roll": [case(lambda x: nf.roll(x, 2, axis=1)), case(lambda x: nf.roll(x, -3))],
    "tile": [case(lambda x: nf.tile(x, (2, 1, 3)))],
    "meshgrid": [case(lambda x, y: nf.meshgrid(x, y)[1] * nf.meshgrid(x, y)[0], V, V[:3])],
    # elements
    "take": [case(lambda x: nf.take(x, nf.asarray([2, 0, 2], device=x.device), axis=2))],
    "take_along_axis": [case(lambda x: nf.take_along_axis(x, nf.argsort(x, axis=1), axis=1))],
    "tril": [case(lambda x: nf.tril(x, k=-1))],
    "triu": [case(nf.triu)],
    "diag": [case(nf.diag, V), case(lambda x: nf.diag(x, 1), M)],
    "diagonal": [case(lambda x: nf.diagonal(x, 1, 0, 2))],
    "trace": [case(lambda x: nf.trace(x, -1), M)],
    "sort": [case(lambda x: nf.sort(x, axis=1)), case(lambda x: nf.sort(x, descending=True))],
    # running, differences, means
    "cumsum": [case(lambda x: nf.cumsum(x)), case(lambda x: nf.cumsum(x, axis=1))],
    "cumulative_sum": [case(lambda x: nf.cumulative_sum(x, axis=1, include_initial=True))],
    "cumprod": [case(lambda x: nf.cumprod(x, axis=1), order=1)],
    "cumulative_prod": [
        case(lambda x: nf.cumulative_prod(x, axis=2, include_initial=True), order=1),
        case(lambda x: nf.cumulative_prod(x, axis=2), _HOLES, order=1),
    ],
    "diff": [case(lambda x, y: nf.diff(x, n=2, prepend=y), V, V[:2])],
    "gradient": [
        case(lambda x: nf.gradient(x, 0.5)[1]),
        case(lambda x, t: nf.gradient(x, t, axis=1), X, np.array([0.0, 0.5, 2.0])),
    ],
    "unwrap": [case(lambda x: nf.unwrap(x * 4)), case(lambda x: nf.unwrap(x, axis=1, period=1.0))],
    "average": [case(lambda x, w: nf.average(x, axis=0, weights=w), POSITIVE, POSITIVE[:, 0] + 1)],
    # products
    "matmul": [case(nf.matmul, X, drawn(4, 2)), case(nf.matmul, V, drawn(2, 4, 3)), case(nf.matmul, V, V)],
    "tensordot": [case(lambda x, y: nf.tensordot(x, y, axes=((1, 2), (1, 2))), X, X)],
    "vecdot": [case(lambda x, y: nf.vecdot(x, y, axis=1), X, X)],
    "outer": [case(nf.outer, V, V[:3])],
    "dot": [case(nf.dot, X, drawn(5, 4, 2))],
    "inner": [case(nf.inner, X, drawn(2, 4))],
    "vdot": [case(nf.vdot, X, X)],
    "cross": [case(nf.cross, THREE, THREE[::-1] * 2)],
    "kron": [case(nf.kron, TALL, M)],
    "einsum": [
        case(lambda x, y: nf.einsum("abc,cd->adb", x, y), X, drawn(4, 2)),
        case(lambda x: nf.einsum("ii->i", x), M),
        case(lambda x, y, z: nf.einsum("ij,jk,k", x, y, z), TALL, M, THREE[0]),
    ],
    # linalg
    "linalg.cholesky": [
        case(lambda x: nf.linalg.cholesky(positive(x)), BATCH),
        case(lambda x: nf.linalg.cholesky(positive(x), upper=True), M),
    ],
    "linalg.cross": [case(nf.linalg.cross, THREE, THREE[::-1] * 2)],
    "linalg.det": [case(nf.linalg.det, BATCH)],
    "linalg.diagonal": [case(lambda x: nf.linalg.diagonal(x, offset=-1))],
    "linalg.eig": [
        case(lambda x: nf.abs(nf.linalg.eig(x).eigenvalues), M, order=1),
        case(lambda x: nf.abs(nf.linalg.eig(x).eigenvectors), BATCH, order=1),
    ],
    "linalg.eigvals": [case(lambda x: squares(nf.sum(nf.square(nf.linalg.eigvals(x)))), M, order=1)],
    "linalg.eigh": [
        case(lambda x: nf.square(nf.linalg.eigh(symmetric(x)).eigenvectors), BATCH),
        case(lambda x: nf.linalg.eigh(symmetric(x)).eigenvalues, M),
        case(lambda x: (lambda r: nf.square(r.eigenvectors * r.eigenvalues))(nf.linalg.eigh(symmetric(x))), M),
    ],
    "linalg.eigvalsh": [case(lambda x: nf.linalg.eigvalsh(symmetric(x)), BATCH)],
    "linalg.inv": [case(nf.linalg.inv, BATCH)],
    "linalg.matmul": [case(nf.linalg.matmul, M, M)],
    "linalg.matrix_norm": [
        case(lambda x, ord=ord: nf.linalg.matrix_norm(x, ord=ord), X) for ord in ("fro", "nuc", 1, -1, 2, -2, np.inf)
    ],
    "linalg.matrix_power": [case(lambda x, n=n: nf.linalg.matrix_power(x, n), M) for n in (3, -2, 0)],
    "linalg.matrix_transpose": [case(nf.linalg.matrix_transpose)],
    "linalg.multi_dot": [case(lambda x, y, z: nf.linalg.multi_dot([x, y, z]), TALL, M, FLATTER)],
    "linalg.norm": [case(nf.linalg.norm), case(lambda x: nf.linalg.norm(x, 3, axis=1)),
                    case(lambda x: nf.linalg.norm(x, "nuc", axis=(2, 0)))],
    "linalg.cond": [case(nf.linalg.cond, TALL), case(lambda x: nf.linalg.cond(x, 1), M)],
    "linalg.outer": [case(nf.linalg.outer, V, V)],
    "linalg.pinv": [case(nf.linalg.pinv, TALL), case(nf.linalg.pinv, drawn(2, 3, 4, seed=11))],
    "linalg.qr": [
        case(lambda x: nf.linalg.qr(x).Q, TALL), case(lambda x: nf.linalg.qr(x).R, BATCH),
        case(lambda x: nf.linalg.qr(x).Q @ nf.square(nf.linalg.qr(x).R), FLATTER),
        case(lambda x: nf.linalg.qr(x, mode="complete").Q, FLATTER),
    ],
    "linalg.slogdet": [case(lambda x: nf.linalg.slogdet(x).logabsdet, BATCH),
                       case(lambda x: nf.linalg.slogdet(x).sign * x[..., 0], M)],
    "linalg.solve": [
        case(nf.linalg.solve, M, THREE[0]), case(nf.linalg.solve, BATCH, drawn(3, 2)), case(nf.linalg.solve, M, BATCH),
    ],
    "linalg.svd": [
        case(lambda x: nf.square(nf.linalg.svd(x, full_matrices=False).U), TALL),
        case(lambda x: nf.square(nf.linalg.svd(x, full_matrices=False).Vh), TALL),
        case(lambda x: nf.square(nf.linalg.svd(x, full_matrices=False).U), FLATTER),
        case(lambda x: nf.square(nf.linalg.svd(x, full_matrices=False).Vh), drawn(2, 3, 4, seed=12)),
        case(lambda x: nf.linalg.svd(x).S, FLATTER),
        case(lambda x: (lambda r: nf.square(r.U * r.S) + nf.square(r.Vh))(nf.linalg.svd(x)), M),
    ],
    "linalg.svdvals": [case(nf.linalg.svdvals, X)],
    "linalg.tensordot": [case(lambda x, y: nf.linalg.tensordot(x, y, axes=1), TALL, M)],
    "linalg.tensorinv": [case(lambda x: nf.linalg.tensorinv(nf.reshape(x, (3, 3, 1)), ind=1), M)],
    "linalg.tensorsolve": [
        case(lambda x, y: nf.linalg.tensorsolve(nf.reshape(x, (3, 1, 3)), y), M, THREE[0][:, None])
    ],
    "linalg.trace": [case(lambda x: nf.linalg.trace(x, offset=1))],
    "linalg.vecdot": [case(nf.linalg.vecdot, X, V)],
    "linalg.vector_norm": [
        *(case(lambda x, ord=ord: nf.linalg.vector_norm(x, axis=1, ord=ord)) for ord in (1, 2, 3, 0.5, -1, np.inf)),
        case(lambda x: nf.linalg.vector_norm(x, axis=(0, 2), keepdims=True)),
    ],
    # fft
    **{
        f"fft.{n}": [
            case(lambda x, f=f, k=k: squares(f(x, **k)))
            for k in ({}, {"n": 2}, {"n": 3, "norm": "ortho"}, {"n": 7, "axis": 1})
        ]
        for n in ("fft", "ifft", "rfft", "ihfft")
        for f in [getattr(nf.fft, n)]
    },
    **{
        f"fft.{n}": [
            case(lambda x, f=f, k=k: f(x * 1j - nf.flip(x), **k))
            for k in ({}, {"n": 3, "norm": "forward"}, {"n": 8, "axis": 1})
        ]
        for n in ("irfft", "hfft")
        for f in [getattr(nf.fft, n)]
    },
    **{
        f"fft.{n}": [
            case(lambda x, f=f: squares(f(x))), case(lambda x, f=f: squares(f(x, s=(3, 5), axes=(2, 0), norm="ortho")))
        ]
        for n in ("fftn", "ifftn", "rfftn", "fft2", "ifft2", "rfft2")
        for f in [getattr(nf.fft, n)]
    },
    **{
        f"fft.{n}": [
            case(lambda x, f=f: f(x * 2j + x)), case(lambda x, f=f: f(x, s=(3, 5), axes=(2, 0), norm="ortho"))
        ]
        for n in ("irfftn", "irfft2")
        for f in [getattr(nf.fft, n)]
    },
    "fft.fftshift": [case(lambda x: nf.fft.fftshift(x, axes=1))],
    "fft.ifftshift": [case(lambda x: nf.fft.ifftshift(x) * x)],
}  # fmt: skip

# A variable raises a GradientError that names the function.
REFUSED: dict[str, Callable[[Any], Any]] = {
    "median": nf.median,
    "quantile": lambda x: nf.quantile(x, 0.5),
    "percentile": lambda x: nf.percentile(x, 50),
    "histogram": lambda x: nf.histogram(x),
    "unique": nf.unique,
    "unique_all": nf.unique_all,
    "unique_counts": nf.unique_counts,
    "unique_inverse": nf.unique_inverse,
    "unique_values": nf.unique_values,
    "nextafter": lambda x: nf.nextafter(x, x),
    "interp": lambda x: nf.interp(x, *[nf.asarray([0.0, 1.0], device=x.device)] * 2),
    "linalg.lstsq": lambda x: nf.linalg.lstsq(x[0], x[0]),
}

# Integers, bools, or no arrays: constants for the tape.
FLAT: dict[str, Callable[[Any], Any]] = {
    **{n: getattr(nf, n) for n in (
        "all", "any", "argmax", "argmin", "argsort", "argwhere", "count_nonzero", "flatnonzero", "isfinite", "isinf",
        "isnan", "logical_not", "nonzero", "signbit", "asnumpy",
    )},
    **{n: lambda x, n=n: getattr(nf, n)(x, x) for n in (
        "allclose", "array_equal", "equal", "greater", "greater_equal", "isclose", "isin", "less", "less_equal",
        "logical_and", "logical_or", "logical_xor", "not_equal",
    )},
    "digitize": lambda x: nf.digitize(x, nf.asarray([0.0, 1.0], device=x.device)),
    "searchsorted": lambda x: nf.searchsorted(nf.asarray([0.0, 1.0], device=x.device), x),
    "linalg.matrix_rank": lambda x: nf.linalg.matrix_rank(x),
    "result_type": lambda x: nf.result_type(x, nf.float32),
    "can_cast": lambda x: nf.can_cast(x, nf.float64),
    "isdtype": lambda x: nf.isdtype(x.dtype, "real floating"),
    "finfo": lambda x: nf.finfo(x.dtype),
    "quant_error": lambda x: nf.quant_error(x, nf.mxfp8),
    "compare_formats": lambda x: nf.compare_formats(x, [nf.mxfp8]),
}  # fmt: skip

# No arrays, only integers, or values that do not enter the result.
NO_INPUT = {
    "alignment", "arange", "bincount", "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "broadcast_shapes", "checkpoint", "cuda_problem", "custom_vjp",
    "default_device", "devices", "empty", "empty_like", "explain_attention", "explain_recipe", "eye", "fft.fftfreq",
    "fft.rfftfreq", "from_dlpack", "full", "full_like", "gemm_stats", "grad", "iinfo", "is_fp8_available",
    "is_fp8_block_scaling_available", "is_mxfp8_available", "is_nvfp4_available", "linspace", "load",
    "load_checkpoint", "ones", "ones_like", "parameter", "save", "save_checkpoint", "set_default_device", "use_device",
    "value_and_grad", "vjp", "zeros", "zeros_like",
}  # fmt: skip


def public_functions() -> set[str]:
    """Names of every public function, those of the namespaces with a dot."""
    found = {n for n in dir(nf) if not n.startswith("_") and inspect.isfunction(getattr(nf, n))}
    for space in ("linalg", "fft"):
        module = getattr(nf, space)
        found |= {
            f"{space}.{n}" for n in dir(module) if not n.startswith("_") and inspect.isfunction(getattr(module, n))
        }
    return found
