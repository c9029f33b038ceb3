"""Inputs that the tests of the dense kernels share."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

BF16 = np.dtype(ml_dtypes.bfloat16)
F16, F32 = np.dtype(np.float16), np.dtype(np.float32)
COMPUTED = (F32, BF16, F16)
SPECIAL = (0.0, -0.0, 1.0, -0.5, np.inf, -np.inf, np.nan, 60000.0, -60000.0, 6e-8, -1e-40, 20.0, -20.0, -0.752)


def normal(shape: tuple[int, ...], dtype: np.dtype = F32, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """Seeded normal numbers."""
    return np.asarray(np.random.default_rng(seed).standard_normal(shape) * scale).astype(dtype)


def bits(x: np.ndarray) -> np.ndarray:
    """The bits, all NaNs made one."""
    unsigned = np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")
    return np.where(np.isnan(x.astype(np.float32)).reshape(unsigned.shape), np.iinfo(unsigned.dtype).max, unsigned)


def views(x: np.ndarray) -> list[np.ndarray]:
    """A matrix [M, N] of at least 4 x 4 in several layouts: negative and zero strides, transposed, off 16 bytes."""
    shifted = np.concatenate([x.reshape(-1)[:1], x.reshape(-1)])[1:].reshape(x.shape)
    return [x, x[::-1, ::2], x[1:, 1:], x.T, x.T[::-3], np.broadcast_to(x[:1], x.shape), x[:0], x[:, :0], shifted]


@st.composite
def arrays(draw: st.DrawFn, dtype: np.dtype, special: bool = True, ndim: int = 3) -> np.ndarray:
    """A small array of any layout, with special values."""
    shape = draw(st.lists(st.integers(0, 9), min_size=1, max_size=ndim))
    steps = [draw(st.sampled_from((1, 2, -1, -3))) for _ in shape]
    x = normal(tuple(n * abs(s) for n, s in zip(shape, steps)), F32, draw(st.integers(0, 99)), 4.0)
    if special and x.size:
        for _ in range(draw(st.integers(0, 6))):
            x.reshape(-1)[draw(st.integers(0, x.size - 1))] = draw(st.sampled_from(SPECIAL))
    with np.errstate(all="ignore"):
        view: Any = x.astype(dtype)[tuple(slice(None, None, s) for s in steps)]
    return view.transpose(draw(st.permutations(range(len(shape)))))
