"""Scores of the composed attention: what is done to products before the softmax, and to its gradient behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nvfp.kernels._attention import Settings, Terms
from nvfp.kernels._attention_mask import distances, joined, outside, padding
from nvfp.kernels.cast import cast
from nvfp.kernels.cuda._dense import FLOAT32
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.reduce import reduce


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """Everything that hides keys, and how far they lie from the diagonal.

    Attributes:
        mask: bool, broadcastable to [B, H, Lq, Lk], or None.
        causal: corner of the diagonal that the softmax stem draws itself, or None.
        far: float32 [1 or B, 1, Lq, Lk], minus the distance of ALiBi, or None.
    """

    mask: Any | None
    causal: str | None
    far: Any | None


def whole(settings: Settings, mask: Any, terms: Terms, full: tuple[int, int, int, int], like: Any) -> Whole:
    """Return what hides keys from queries, made of mask, lengths, window and diagonal."""
    if terms.lengths is not None:
        mask = joined(padding(terms.lengths, full))
    (left, right), causal, far = settings.band, settings.causal, None
    if terms.ahead is None and causal is not None:
        right = -1  # the softmax draws it
    else:
        causal = None
    if left >= 0 or right >= 0 or settings.bias_type == "alibi":
        ahead: Any = terms.ahead
        if ahead is None:
            ahead = full[3] - full[2] if settings.corner == "bottom_right" else 0
        steps = distances(full, ahead, like)
        mask = outside(steps, (left, right), mask)
        if settings.bias_type == "alibi":
            far = elementwise("multiply", elementwise("abs", steps), -1.0, dtype=FLOAT32)
    return Whole(mask, causal, far)


def of(x: Any | None, part: slice) -> Any | None:
    """A part of the batch of what may be shared by it."""
    return x if x is None or x.ndim < 4 or x.shape[0] == 1 else x[part]


def bent(scores: Any, settings: Settings, terms: Terms, all_: Whole, part: slice, keep: bool) -> tuple[Any, Any | None]:
    """Return products [B, H, Lq, Lk] as scores, written in their place, and tanh of the softcap if it is kept."""
    bias, tanh = of(terms.bias, part), None
    if settings.bias_type == "pre_scale_bias":
        elementwise("add", scores, bias, out=scores)
    if settings.softcap:
        elementwise("multiply", scores, settings.scale / settings.softcap, out=scores)
        tanh = elementwise("tanh", scores, out=scores)
        scores = elementwise("multiply", tanh, settings.softcap, out=None if keep else scores)
    if settings.bias_type == "post_scale_bias" and not settings.softcap:
        elementwise("multiply_add", scores, settings.scale, bias, out=scores)
    elif settings.bias_type == "post_scale_bias":
        elementwise("add", scores, bias, out=scores)
    elif not settings.softcap:
        elementwise("multiply", scores, settings.scale, out=scores)
    if all_.far is not None:
        steep: Any = terms.slopes
        slopes = steep[:, None, None] if steep.ndim == 1 else steep[part, :, None, None]
        elementwise("multiply_add", of(all_.far, part), slopes, scores, out=scores)
    return scores, tanh if keep else None


def straightened(ds: Any, settings: Settings, tanh: Any | None, bias: BiasGradient | None, dtype: Any) -> Any:
    """Return the gradient of scores as that of products, in ``dtype``; both arguments are written over."""
    before = settings.bias_type == "pre_scale_bias"
    if bias is not None and not before:
        bias.add(ds)
    if tanh is not None:
        elementwise("square", tanh, out=tanh)
        elementwise("subtract", 1.0, tanh, out=tanh)
        elementwise("multiply", ds, tanh, out=ds)
    if bias is not None and before:
        bias.add(ds)
    return elementwise("multiply", ds, settings.scale, dtype=dtype, out=ds if dtype == ds.dtype else None)


class BiasGradient:
    """The gradient of a bias, summed over the axes that it repeats, part of the batch by part.

    Args:
        bias: [1 or B, 1 or H, Lq, Lk].
    """

    def __init__(self, bias: Any) -> None:
        self.bias = bias
        self.parts: list[Any] = []

    def add(self, ds: Any) -> None:
        """Add the gradient of the scores of the next part of the batch."""
        axes = tuple(axis for axis in (0, 1) if self.bias.shape[axis] == 1 and ds.shape[axis] != 1)
        part = reduce("sum", ds, axis=axes, keepdims=True, dtype=FLOAT32) if axes else cast(ds, FLOAT32)
        if self.parts and self.bias.shape[0] == 1:
            elementwise("add", self.parts[0], part, out=self.parts[0])
        else:
            self.parts.append(part)

    def result(self, scale: float) -> Any:
        """Return the gradient in the bias's dtype, multiplied by what comes behind the bias."""
        out = cp.empty(self.bias.shape, self.bias.dtype)
        at = 0
        for part in self.parts:
            elementwise("multiply", part, scale, out=out[at : at + part.shape[0]])
            at += part.shape[0]
        return out
