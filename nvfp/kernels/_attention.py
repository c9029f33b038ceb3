"""What the files of `kernels.attention` share: settings, the arrays beside q, k and v, what the backward needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

# Mask type -> from which corner the causal diagonal starts.
MASK_TYPES: dict[str, str | None] = {
    "no_mask": None, "causal": "top_left", "causal_bottom_right": "bottom_right", "padding": None,
    "padding_causal": "top_left", "padding_causal_bottom_right": "bottom_right", "arbitrary": None,
}  # fmt: skip
BIAS_TYPES = ("no_bias", "pre_scale_bias", "post_scale_bias", "alibi")
SOFTMAX_TYPES = ("vanilla", "off-by-one", "learnable")
BACKENDS = ("cudnn", "composed")
Window = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Settings:
    """What one attention does, apart from its arrays.

    Attributes:
        mask_type: a key of `MASK_TYPES`.
        scale: of the scores.
        window: (left, right) neighbours of the diagonal that are seen, or None where that is all of them.
        dropout: probability that a weight is dropped.
        key: seed of the dropout.
        ordinal: number of the call within its step.
        backend: the one that the caller asks for, or None.
        bottom_right: whether window and ALiBi count from the bottom right corner where the mask type does not say.
        bias_type: one of `BIAS_TYPES`.
        softmax_type: one of `SOFTMAX_TYPES`.
        softcap: bound of the scores, 0 for none.
        max_logit: whether the largest score of each head is wanted.
        deterministic: whether the backward must repeat its bits.
    """

    mask_type: str
    scale: float
    window: Window | None = None
    dropout: float = 0.0
    key: int = 0
    ordinal: int = 0
    backend: str | None = None
    bottom_right: bool = True
    bias_type: str = "no_bias"
    softmax_type: str = "vanilla"
    softcap: float = 0.0
    max_logit: bool = False
    deterministic: bool = True

    @property
    def causal(self) -> str | None:
        """From which corner the causal diagonal starts."""
        return MASK_TYPES[self.mask_type]

    @property
    def corner(self) -> str:
        """From which corner the diagonal of window and ALiBi starts."""
        return self.causal or ("bottom_right" if self.bottom_right else "top_left")

    @property
    def band(self) -> Window:
        """(left, right) neighbours of the diagonal that are seen, -1 for all of them; causal ones see none ahead.

        Example:
            >>> Settings("causal", 1.0, (4, 9)).band, Settings("no_mask", 1.0).band
            ((4, 0), (-1, -1))
        """
        left, right = self.window or (-1, -1)
        return left, right if self.causal is None else 0

    @property
    def bends(self) -> bool:
        """Whether scores are more than ``scale q k^T`` before they are masked."""
        return self.bias_type != "no_bias" or self.softcap > 0


class Lengths(NamedTuple):
    """How long each entry of the batch is, and where it starts in packed arrays [T, H, D]; all on the device.

    Attributes:
        queries: int32 [B].
        keys: int32 [B].
        q_starts: int32 [B], first row of each entry's queries; None where arrays are [B, L, H, D].
        k_starts: likewise of keys and values.
        most: (Lq, Lk), what no entry exceeds.
    """

    queries: Any
    keys: Any
    q_starts: Any | None = None
    k_starts: Any | None = None
    most: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The arrays of an attention beside q, k, v and the mask.

    Attributes:
        bias: [1 or B, 1 or H, Lq, Lk], added to the scores, or None.
        slopes: float32 [H] or [B, H] of ALiBi, or None.
        sink: float32 [H], the extra logit of each head of a learnable softmax, or None.
        lengths: of the batch entries, or None where all are full.
        ahead: int32 [B], how far the bottom right diagonal of each entry lies to the right of the top left one; None
            where it is ``Lk - Lq`` for all, or does not matter.
    """

    bias: Any | None = None
    slopes: Any | None = None
    sink: Any | None = None
    lengths: Lengths | None = None
    ahead: Any | None = None

    def arrays(self) -> tuple[Any, ...]:
        """Those that are there."""
        held = (self.bias, self.slopes, self.sink, *(self.lengths or ())[:4])
        return tuple(x for x in held if x is not None)


NO_TERMS = Terms()


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """What `attention_vjp` needs beside the arrays of `attention`.

    Attributes:
        settings: of the call; its mask type describes ``mask``.
        backend: which one ran.
        mask: bool, broadcastable to [B, H, Lq, Lk], or None.
        stats: float32 [B, H, Lq], log-sum-exp of the scores (None where it is not kept; cuDNN: its own record).
        used: the int64 step word of the dropout mask, or None.
        terms: of the call.
        max_logit: float32 [H], the largest score of each head, where it was asked for.
    """

    settings: Settings
    backend: str
    mask: Any | None
    stats: Any
    used: Any | None
    terms: Terms = NO_TERMS
    max_logit: Any | None = None


class Gradients(NamedTuple):
    """What `attention_vjp` returns.

    Attributes:
        q: of q's shape and dtype.
        k: of k's.
        v: of v's.
        bias: of the bias's, where it was asked for.
        sink: float32 [H], where there is a sink.
    """

    q: Any
    k: Any
    v: Any
    bias: Any | None = None
    sink: Any | None = None


@dataclass(frozen=True)
class Described:
    """What choosing a backend needs to know of an array that need not exist: contiguous, at an aligned address.

    Attributes:
        shape: its lengths.
        dtype: its dtype.
    """

    shape: tuple[int, ...]
    dtype: np.dtype

    ptr: ClassVar[int] = 0

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from entry to entry of each axis."""
        return tuple(self.dtype.itemsize * math.prod(self.shape[i + 1 :]) for i in range(self.ndim))

    @property
    def data(self) -> Described:
        """What holds the address ``ptr``, as in a CuPy array."""
        return self


def alibi_slopes(heads: int) -> np.ndarray:
    """Return the geometric slopes of ALiBi, float32 [H].

    ``2^(-8 i / n)`` for i = 1 .. n, n the largest power of two up to H; the heads beyond take every other slope of
    twice as many.

    Args:
        heads: H.

    Source:
        Press, Smith, Lewis: Train short, test long (2022).

    Example:
        >>> alibi_slopes(4).tolist(), alibi_slopes(3).tolist()
        ([0.25, 0.0625, 0.015625, 0.00390625], [0.0625, 0.00390625, 0.25])
    """
    if heads == 0:
        return np.zeros(0, np.float32)
    n = 1 << (heads.bit_length() - 1)
    powers = [-8.0 * i / n for i in range(1, n + 1)]
    powers += [-4.0 * i / n for i in range(1, 2 * (heads - n), 2)]
    return np.array([2.0**p for p in powers], np.float32)
