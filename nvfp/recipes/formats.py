"""`Format`: which element formats the forward and the backward pass of a recipe use (TE's names)."""

from __future__ import annotations

from enum import Enum

from nvfp.dtypes.elements import Element, float4_e2m1fn, float8_e4m3fn, float8_e5m2


class Format(Enum):
    """Element formats of (forward operands, gradients).

    Members:
        E4M3: E4M3 in both passes.
        E5M2: E5M2 in both passes; every FP8 recipe refuses it, as TE does.
        HYBRID: E4M3 forward, E5M2 for gradients (more range, less precision).
        E2M1: FP4, for NVFP4 recipes only.

    Example:
        >>> Format.HYBRID.backward.name
        'float8_e5m2'
    """

    E4M3 = (float8_e4m3fn, float8_e4m3fn)
    E5M2 = (float8_e5m2, float8_e5m2)
    HYBRID = (float8_e4m3fn, float8_e5m2)
    E2M1 = (float4_e2m1fn, float4_e2m1fn)

    def __repr__(self) -> str:
        return f"Format.{self.name}"

    @property
    def forward(self) -> Element:
        """Element format of activations and weights."""
        return self.value[0]

    @property
    def backward(self) -> Element:
        """Element format of gradients."""
        return self.value[1]
