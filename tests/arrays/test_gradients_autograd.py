"""Gradients against the `autograd` package, for all that it covers with real inputs and nf has too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest

import nvfp as nf
from tests.arrays.gradient_cases import BATCH, FLATTER, POSITIVE, SMALL, TALL, THREE, M, V, X, drawn

# NumPy's name -> nf's, where they differ; the table is written with NumPy's.
RENAMED = {
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan", "arctanh": "atanh",
    "arctan2": "atan2", "absolute": "abs", "power": "pow", "mod": "remainder", "true_divide": "divide",
    "conjugate": "conj", "amax": "max", "amin": "min",
}  # fmt: skip


class Names:
    """nf under NumPy's names."""

    linalg, fft = nf.linalg, nf.fft

    def __getattr__(self, name: str) -> Any:
        return getattr(nf, RENAMED.get(name, name))


xf = Names()
Case = tuple[Callable[..., Any], tuple[np.ndarray, ...]]


def same(name: str, *args: np.ndarray, **kwargs: Any) -> Case:
    def call(xp: Any, *arrays: Any) -> Any:
        function = xp
        for part in name.split("."):
            function = getattr(function, part)
        return function(*arrays, **kwargs)

    return call, args or (X,)


def of(call: Callable[..., Any], *args: np.ndarray) -> Case:
    return call, args or (X,)


def parts(xp: Any, z: Any) -> Any:
    return xp.real(z) * 0.3 + xp.imag(z) * 0.7 + xp.abs(z) ** 2


TIES = np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, -1.0, 5.0]])
UNARY = {
    "negative": X, "exp": X, "log": POSITIVE, "tanh": X, "sinh": X, "cosh": X, "abs": X, "absolute": X,
    "reciprocal": POSITIVE, "expm1": X, "log2": POSITIVE, "log10": POSITIVE, "log1p": POSITIVE, "arcsin": SMALL,
    "arccos": SMALL, "arctan": X, "sin": X, "cos": X, "tan": SMALL,
    "arcsinh": X, "arccosh": POSITIVE + 1, "arctanh": SMALL, "sqrt": POSITIVE,
    "square": X, "conj": X, "real": X, "nan_to_num": X, "ravel": X, "sort": V, "diag": V, "triu": M, "tril": M,
    "trace": M, "squeeze": X[:1], "transpose": X, "atleast_1d": V, "atleast_2d": V, "atleast_3d": V, "sum": X,
    "mean": X, "prod": X, "var": X, "std": X, "max": TIES, "min": TIES, "amax": TIES, "amin": TIES, "cumsum": X,
    "diff": X,
    "linalg.det": BATCH, "linalg.inv": BATCH, "linalg.pinv": TALL,
    "linalg.norm": X,
}  # fmt: skip
BINARY = ("add", "subtract", "multiply", "divide", "true_divide", "power", "arctan2", "logaddexp", "mod", "hypot")
CASES: dict[str, Case] = {
    **{n: same(n, x) for n, x in UNARY.items()},
    **{n: same(n, POSITIVE + 0.5, drawn(3, low=0.3, high=1.4, seed=9)) for n in BINARY if n != "hypot"},
    **{n: same(n, TIES, TIES.T) for n in ("maximum", "minimum")},
    **{f"{n} axis": of(lambda xp, x, n=n: getattr(xp, n)(x, axis=1)) for n in ("sum", "mean", "prod", "std", "var")},
    **{
        f"{n} axes": of(lambda xp, x, n=n: getattr(xp, n)(x, axis=(0, 2), keepdims=True))
        for n in ("sum", "mean", "var")
    },
    **{f"{n} axis": of(lambda xp, x, n=n: getattr(xp, n)(x, axis=1), TIES) for n in ("max", "min")},
    "clip": of(lambda xp, x: xp.clip(x, -1.0, 1.0)),
    "where": of(lambda xp, x, y: xp.where(np.asarray(X > 0) if xp is anp else nf.asarray(X > 0), x, y), X, X * 2),
    "reshape": of(lambda xp, x: xp.reshape(x, (4, 6)) ** 2),
    "swapaxes": of(lambda xp, x: xp.swapaxes(x, 0, 2) ** 2),
    "moveaxis": of(lambda xp, x: xp.moveaxis(x, 0, 2) ** 2),
    "expand_dims": of(lambda xp, x: xp.expand_dims(x, 1) ** 2),
    "broadcast_to": of(lambda xp, x: xp.broadcast_to(x, (2, 3, 4)) ** 2, X[:, :1]),
    "flip 0": of(lambda xp, x: (nf.flip(x, axis=0) if xp is xf else anp.flipud(x)) ** 2),
    "flip 1": of(lambda xp, x: (nf.flip(x, axis=1) if xp is xf else anp.fliplr(x)) ** 2),
    "roll": of(lambda xp, x: xp.roll(x, 2, axis=1) ** 2),
    "repeat": of(lambda xp, x: xp.repeat(x, 3, axis=1) ** 2),
    "tile": of(lambda xp, x: xp.tile(x, (2, 1, 3)) ** 2),
    "pad": of(lambda xp, x: xp.pad(x, ((1, 0), (2, 3)), mode="constant") ** 2, M),
    "split": of(lambda xp, x: xp.split(x, 2, axis=2)[1] ** 2),
    "split positions": of(lambda xp, x: xp.split(x, [1, 2], axis=2)[2] ** 2),
    "concatenate": of(lambda xp, x, y: xp.concatenate([x, y], axis=2) ** 2, X, X[:, :, :1]),
    "vstack": of(lambda xp, x, y: xp.vstack([x, y]) ** 2, V, V * 2),
    "hstack": of(lambda xp, x, y: xp.hstack([x, y]) ** 2, V, V * 2),
    "stack": of(lambda xp, x, y: xp.stack([x, y], axis=1) ** 2, V, V * 2),
    "getitem": of(lambda xp, x: x[:, [2, 0, 2], 1:] ** 2),
    "take": of(lambda xp, x: x[..., ::-2] ** 2),
    "diag offset": of(lambda xp, x: xp.diag(x, 1) ** 2, M),
    "cumsum axis": of(lambda xp, x: xp.cumsum(x, axis=1) ** 2),
    "diff twice": of(lambda xp, x: xp.diff(x, n=2, axis=-1) ** 2),
    "kron": same("kron", TALL, M),
    "dot": same("dot", X, drawn(5, 4, 2)),
    "inner": same("inner", X, drawn(2, 4)),
    "outer": same("outer", V, V[:3]),
    "matmul": same("matmul", X, drawn(2, 4, 3)),
    "tensordot": of(lambda xp, x, y: xp.tensordot(x, y, axes=([1, 2], [1, 2])), X, X),
    "einsum": of(lambda xp, x, y: xp.einsum("abc,cd->adb", x, y), X, drawn(4, 2)),
    "einsum sum": of(lambda xp, x, y: xp.einsum("...ij,...jk->...", x, y), BATCH, M),
    "slogdet": of(lambda xp, x: xp.linalg.slogdet(x)[1], BATCH),
    "solve": of(lambda xp, x, y: xp.linalg.solve(x, y), M, THREE.T),
    "solve vector": of(lambda xp, x, y: xp.linalg.solve(x, y), M, THREE[0]),
    "cholesky": of(lambda xp, x: xp.linalg.cholesky(xp.matmul(x, xp.swapaxes(x, -1, -2))), BATCH),
    "eigh": of(lambda xp, x: xp.linalg.eigh(x + x.T)[0] + xp.linalg.eigh(x + x.T)[1] ** 2, M),
    "eig": of(lambda xp, x: parts(xp, xp.sum(xp.square(xp.linalg.eig(x)[0]))), M),
    "svd": of(lambda xp, x: xp.linalg.svd(x, full_matrices=False)[0] ** 2, TALL),
    "svd vh": of(lambda xp, x: xp.linalg.svd(x, full_matrices=False)[2] ** 2, FLATTER),
    "svd values": of(lambda xp, x: nf.linalg.svdvals(x) if xp is xf else anp.linalg.svd(x, compute_uv=False), BATCH),
    "norm 3": of(lambda xp, x: xp.linalg.norm(x, 3, 1)),
    "norm fro": of(lambda xp, x: xp.linalg.norm(x, "fro", (0, 2))),
    "norm nuc": of(lambda xp, x: xp.linalg.norm(x, "nuc", (0, 2))),
    **{
        f"fft.{n} {k}": of(lambda xp, x, n=n, k=k: parts(xp, getattr(xp.fft, n)(x, **k)))
        for n in ("fft", "ifft") for k in ({}, {"n": 2}, {"n": 6, "norm": "ortho"})
    },
    **{f"fft.{n}": of(lambda xp, x, n=n: parts(xp, getattr(xp.fft, n)(x))) for n in ("fft2", "ifft2", "fftn", "ifftn")},
    "fft.rfft": of(lambda xp, x: parts(xp, xp.fft.rfft(x))),  # with n=2 autograd's disagrees with finite differences
    "fft.rfft2": of(lambda xp, x: parts(xp, xp.fft.rfft2(x))),
    "fft.rfftn": of(lambda xp, x: parts(xp, xp.fft.rfftn(x))),
    "fft.irfft": of(lambda xp, x: xp.fft.irfft(xp.fft.fft(x) * (1 + 2j)) ** 2, drawn(3, 5)),
    "fft.irfftn": of(lambda xp, x: xp.fft.irfftn(xp.fft.fft(x) * (1 + 2j)) ** 2, drawn(4, 5)),
    "fft.fftshift": of(lambda xp, x: xp.fft.fftshift(x) * x),
    "fft.ifftshift": of(lambda xp, x: xp.fft.ifftshift(x) * x),
}  # fmt: skip


def total(xp: Any, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A scalar that weighs every element of the result differently."""
    y = call(xp, *args)
    weights = np.cos(np.arange(y.size, dtype=np.float64) + 0.5).reshape(y.shape)
    return xp.sum(y * (weights if xp is anp else nf.asarray(weights, device="cpu")))


@pytest.mark.parametrize("name", CASES)
def test_equal_to_autograd(name: str) -> None:
    call, args = CASES[name]
    places = tuple(range(len(args)))
    expected = autograd.grad(lambda *a: total(anp, call, a), argnum=places)(*args)
    variables = [nf.asarray(a, device="cpu") for a in args]
    got = nf.grad(lambda *a: total(xf, call, a), argnums=places)(*variables)
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(nf.asnumpy(g), e, rtol=1e-9, atol=1e-10)
