"""`RotaryPositionEmbedding`: the angles of rotary position embedding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.convert import asarray
from nvfp.arrays.creation import on_device
from nvfp.arrays.functions._common import integer
from nvfp.errors import ArgumentError, message
from nvfp.nn._init import count
from nvfp.nn.module import Module

_KEPT = 8  # tables kept per module


class RotaryPositionEmbedding(Module):
    """Angles [L, 1, 1, R] for `nvfp.nn.functional.rope.rope` and ``rotary_pos_emb=`` of the attention layers.

    ``angle[l, i] = (l + offset) * base^(-2i / R)``; each angle stands twice: in both halves, or (interleaved)
    in neighbouring places.

    Args:
        dim: length of a head, D.
        rotary_percent: the part of D that is rotated: R = int(D * rotary_percent).
        seq_len_interpolation_factor: divides the positions; used together with the next argument.
        pretrained_max_position_embeddings: length that the model has learned; a longer sequence than this times
            the factor is squeezed into it.
        rotary_base: base of the angles.
        interleaved: angles for pairs of neighbours instead of halves.
        device: of the angles; the default device at the time of the call unless given.

    Raises:
        ArgumentError: an R that is odd or 0, or values out of range.

    Numerics: float32 steps as in TE, on the host, so every device has the same angles. Tables are kept: a
        second call with the same arguments copies nothing.

    Source: arXiv 2104.09864; position interpolation arXiv 2306.15595.

    Example:
        >>> import nvfp as nf
        >>> freqs = nf.nn.RotaryPositionEmbedding(4, device="cpu")(3)
        >>> freqs.shape, [round(a, 2) for a in freqs[2, 0, 0].tolist()]
        ((3, 1, 1, 4), [2.0, 0.02, 2.0, 0.02])
    """

    def __init__(
        self,
        dim: int,
        rotary_percent: float = 1.0,
        seq_len_interpolation_factor: float | None = None,
        pretrained_max_position_embeddings: int | None = None,
        rotary_base: float = 10000.0,
        interleaved: bool = False,
        *,
        device: Any = None,
    ) -> None:
        super().__init__()
        rotated = count("RotaryPositionEmbedding", "dim", dim)
        percent = _positive("rotary_percent", rotary_percent)
        if percent < 1:
            rotated = int(rotated * percent)
        if percent > 1 or rotated < 2 or rotated % 2:
            expected, got = "dim * rotary_percent even and at least 2", f"{dim} * {rotary_percent}"
            raise ArgumentError(message("RotaryPositionEmbedding", expected, got, "rotate an even part of the head"))
        self.dim, self.interleaved = rotated, bool(interleaved)
        self.rotary_base = _positive("rotary_base", rotary_base)
        self.seq_len_interpolation_factor = (
            None
            if seq_len_interpolation_factor is None
            else _positive("seq_len_interpolation_factor", seq_len_interpolation_factor)
        )
        self.pretrained_max_position_embeddings = (
            None
            if pretrained_max_position_embeddings is None
            else count(
                "RotaryPositionEmbedding", "pretrained_max_position_embeddings", pretrained_max_position_embeddings
            )
        )
        self._device = None if device is None else on_device(device)
        self._tables: dict[tuple[Any, ...], Array] = {}

    def forward(self, max_seq_len: int, offset: int = 0) -> Array:
        """Return the angles of positions ``offset`` to ``offset + max_seq_len - 1``, float32 [L, 1, 1, R].

        Args:
            max_seq_len: L.
            offset: first position.
        """
        length = count("RotaryPositionEmbedding", "max_seq_len", max_seq_len)
        first = integer("RotaryPositionEmbedding", "offset", offset)
        device = on_device(None) if self._device is None else self._device
        key = (length, first, str(device))
        kept = self._tables.get(key)
        if kept is None:
            kept = asarray(self._angles(length, first), device=device)
            while len(self._tables) >= _KEPT:
                self._tables.pop(next(iter(self._tables)))
            self._tables[key] = kept
        return kept.detach()

    def _angles(self, length: int, offset: int) -> np.ndarray:
        """TE's steps in float32."""
        exponent = np.arange(0, self.dim, 2, dtype=np.float32) / np.float32(self.dim)
        inverse = np.float32(1) / np.power(np.float64(self.rotary_base), exponent).astype(np.float32)
        positions = np.arange(length, dtype=np.float32) + np.float32(offset)
        learned, factor = self.pretrained_max_position_embeddings, self.seq_len_interpolation_factor
        if learned is not None and factor is not None:
            beyond = length > learned * factor
            positions = positions * np.float32(1 / (length / learned) if beyond else 1 / factor)
        angles = positions[:, None] * inverse
        twice = np.repeat(angles, 2, axis=1) if self.interleaved else np.concatenate((angles, angles), axis=1)
        return np.ascontiguousarray(twice.reshape(length, 1, 1, self.dim))

    def moved(self, device: Any = None) -> None:
        """Give the angles on the new device from now on."""
        if device is not None:
            self._device = on_device(device)
            self._tables.clear()

    def extra_repr(self) -> str:
        """Length, base, layout."""
        return f"{self.dim}, rotary_base={self.rotary_base:g}, interleaved={self.interleaved}"


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ArgumentError(message("RotaryPositionEmbedding", f"{name} > 0", repr(value), "pass a positive number"))
    return float(value)
