"""Checks of `kernels.attention`: what its arguments must be, and the settings that they amount to."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.errors import ArgumentError, DTypeError, NotBuiltError, ShapeError, message
from nvfp.kernels._attention import (
    BACKENDS,
    BIAS_TYPES,
    MASK_TYPES,
    SOFTMAX_TYPES,
    Lengths,
    Settings,
    Terms,
    Window,
)
from nvfp.kernels._check import check_choice, check_factor
from nvfp.kernels._dense import check_computed
from nvfp.kernels.dropout import check_probability
from nvfp.kernels.softmax import check_mask

Full = tuple[int, int, int, int]
_OP = "attention"
_FLOAT32, _INT32 = np.dtype(np.float32), np.dtype(np.int32)


def check_arrays(q: Any, k: Any, v: Any, lengths: Lengths | None = None) -> Full:
    """Return [B, H, Lq, Lk]; raise unless q, k and v (arrays, or anything with shape and dtype) fit together."""
    check_computed(_OP, "q", q)
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise DTypeError(message(_OP, f"{name} of q's dtype {q.dtype}", x.dtype, f"cast {name} first"))
    shapes = tuple(q.shape), tuple(k.shape), tuple(v.shape)
    axes = 3 if lengths is not None and lengths.q_starts is not None else 4
    fits = [len(s) for s in shapes] == [axes] * 3 and k.shape[:-1] == v.shape[:-1]
    if not fits or (axes == 4 and q.shape[0] != k.shape[0]) or q.shape[-1] != k.shape[-1]:
        queries, keys = ("B, Lq", "B, Lk") if axes == 4 else ("T", "Tk")
        wanted = f"q [{queries}, H, D], k [{keys}, G, D] and v [{keys}, G, Dv]"
        raise ShapeError(message(_OP, wanted, ", ".join(map(str, shapes)), "reshape to batch, length, head, D"))
    heads, groups = q.shape[-2], k.shape[-2]
    if heads % groups if groups else heads:
        got = f"{heads} heads of q and {groups} of k and v"
        raise ShapeError(message(_OP, "heads of k and v that divide those of q", got, "change either"))
    if lengths is not None and axes == 3:
        return (lengths.queries.shape[0], heads, *lengths.most)
    return q.shape[0], heads, q.shape[1], k.shape[1]


def check_settings(
    full: Full,
    depth: int,
    mask_type: str,
    mask: Any | None,
    scale: float | None = None,
    window: Window | None = None,
    dropout: float = 0.0,
    backend: str | None = None,
    key: int = 0,
    ordinal: int = 0,
    *,
    bottom_right: bool | None = None,
    bias_type: str = "no_bias",
    softmax_type: str = "vanilla",
    softcap: float = 0.0,
    max_logit: bool = False,
    deterministic: bool = True,
    lengths: Lengths | None = None,
) -> Settings:
    """Check everything but q, k, v and `Terms`, for scores of shape ``full`` [B, H, Lq, Lk]."""
    check_choice(_OP, "mask_type", mask_type, tuple(MASK_TYPES))
    check_choice(_OP, "bias_type", bias_type, BIAS_TYPES)
    check_choice(_OP, "softmax_type", softmax_type, SOFTMAX_TYPES)
    if backend is not None:
        check_choice(_OP, "backend", backend, BACKENDS)
    check_probability(_OP, dropout)
    _check_masks(full, mask_type, mask, lengths)
    factor = (depth**-0.5 if depth else 1.0) if scale is None else check_factor(_OP, "scale", scale)
    cap = check_factor(_OP, "softcap", softcap)
    if cap < 0:
        raise ArgumentError(message(_OP, "a softcap of at least 0", softcap, "pass 0 for none"))
    return Settings(
        mask_type, factor, _window(mask_type, window), float(dropout), key, ordinal, backend,
        bottom_right is None or bool(bottom_right), bias_type, softmax_type, cap, bool(max_logit),
        bool(deterministic),
    )  # fmt: skip


def _check_masks(full: Full, mask_type: str, mask: Any, lengths: Lengths | None) -> None:
    """Raise unless mask, lengths and mask type belong together."""
    padding = mask_type.startswith("padding")
    if lengths is not None:
        packed = lengths.q_starts is not None
        if mask is not None or mask_type == "arbitrary" or not (packed or padding):
            got = f"{mask_type!r}{'' if mask is None else ' and a mask'}"
            do = "drop the mask and name a padding type"
            raise ArgumentError(message(_OP, "a padding type without a mask for given lengths", got, do))
        return
    if (mask is not None) != (padding or mask_type == "arbitrary"):
        takes = [name for name in MASK_TYPES if name.startswith("padding") or name == "arbitrary"]
        named = f"drop it, or pass a mask type out of {', '.join(takes)}"
        do = "pass one (bool, True hides)" if mask is None else named
        got = "no mask" if mask is None else "a mask"
        raise ArgumentError(message(_OP, f"a mask that {mask_type!r} goes with", got, do))
    if isinstance(mask, tuple):
        if not padding or len(mask) != 2:
            do = "pass one mask, or the queries' and the keys' with a padding type"
            raise ArgumentError(message(_OP, "one mask", f"{len(mask)} with {mask_type!r}", do))
        for part, length in zip(mask, full[2:], strict=True):
            check_mask(_OP, part, (full[0], 1, 1, length))
    elif mask is not None:
        check_mask(_OP, mask, full)


def _window(mask_type: str, window: Window | None) -> Window | None:
    """Return a window that hides something, None where it does not."""
    if window is None:
        return None
    bounds = tuple(window) if isinstance(window, tuple | list) else ()
    if len(bounds) != 2 or not all(isinstance(n, int | np.integer) and n >= -1 for n in bounds):
        raise ArgumentError(message(_OP, "window bounds of at least -1", repr(window), "pass e.g. (128, 0)"))
    left, right = int(bounds[0]), int(bounds[1])
    return None if left == -1 and (right == -1 or MASK_TYPES[mask_type] is not None) else (left, right)


def check_terms(full: Full, settings: Settings, terms: Terms) -> None:
    """Raise unless bias, slopes, sink and lengths fit the scores and the settings."""
    batch, heads = full[:2]
    _belongs("bias", terms.bias, settings.bias_type in ("pre_scale_bias", "post_scale_bias"), settings.bias_type)
    _belongs("sink", terms.sink, settings.softmax_type == "learnable", settings.softmax_type)
    if terms.slopes is not None:
        _belongs("slopes", terms.slopes, settings.bias_type == "alibi", settings.bias_type)
        _check_words("slopes", terms.slopes, _FLOAT32, ((heads,), (batch, heads)))
    if terms.sink is not None:
        _check_words("sink", terms.sink, _FLOAT32, ((heads,),))
    if terms.bias is not None:
        check_computed(_OP, "bias", terms.bias)
        shape = tuple(terms.bias.shape)
        if len(shape) != 4 or shape[2:] != full[2:] or shape[0] not in (1, batch) or shape[1] not in (1, heads):
            wanted = f"a bias [1 or {batch}, 1 or {heads}, {full[2]}, {full[3]}]"
            raise ShapeError(message(_OP, wanted, shape, "reshape or repeat it"))
    for name, words in zip(Lengths._fields[:4], (terms.lengths or ())[:4], strict=False):
        if words is not None:
            _check_words(name, words, _INT32, ((batch,),))


def _belongs(name: str, x: Any, wanted: bool, kind: str) -> None:
    """Raise unless an array is there exactly where its type says so."""
    if (x is not None) != wanted:
        got = f"{'no ' if x is None else 'a '}{name} with {kind!r}"
        raise ArgumentError(message(_OP, f"{name} and its type together", got, "pass both, or neither"))


def _check_words(name: str, x: Any, dtype: np.dtype, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Raise unless a small array has its dtype and one of the shapes."""
    if getattr(x, "dtype", None) != dtype:
        raise DTypeError(message(_OP, f"{name} of {dtype}", getattr(x, "dtype", type(x).__name__), f"cast {name}"))
    if tuple(x.shape) not in shapes:
        raise ShapeError(message(_OP, f"{name} of shape {' or '.join(map(str, shapes))}", x.shape, "reshape it"))


def refuse_backend(settings: Settings, reasons: dict[str, str | None]) -> Exception:
    """Return the error for a call that no backend takes, or not the one that was asked for."""
    named = settings.backend
    text = "; ".join(f"{name}: {why}" for name, why in reasons.items() if why and named in (None, name))
    if named is None:
        return NotBuiltError(message(_OP, "a backend that can", text, "change what it names"))
    return ArgumentError(message(_OP, f"{named!r} to be able to", text, "leave backend out, or change that"))
