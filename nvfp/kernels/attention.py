"""`attention` and `attention_vjp`: scaled dot-product attention with masks, grouped heads and dropout."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from nvfp.errors import ArgumentError, DTypeError, NotBuiltError, ShapeError, message
from nvfp.kernels._check import check_choice, check_factor
from nvfp.kernels._dense import check_computed
from nvfp.kernels._dispatch import Kind, backend as twin_of, module, place_like
from nvfp.kernels.dropout import check_probability, check_step
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.reduce import reduce
from nvfp.kernels.softmax import check_mask

# Mask type -> from which corner the causal diagonal starts.
MASK_TYPES: dict[str, str | None] = {
    "no_mask": None, "causal": "top_left", "causal_bottom_right": "bottom_right", "padding": None,
    "padding_causal": "top_left", "padding_causal_bottom_right": "bottom_right", "arbitrary": None,
}  # fmt: skip
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
    """

    mask_type: str
    scale: float
    window: Window | None = None
    dropout: float = 0.0
    key: int = 0
    ordinal: int = 0
    backend: str | None = None

    @property
    def causal(self) -> str | None:
        """From which corner the diagonal starts."""
        return MASK_TYPES[self.mask_type]


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """What `attention_vjp` needs beside the arrays of `attention`.

    Attributes:
        settings: of the call; its mask type describes ``mask``.
        backend: which one ran.
        mask: bool, broadcastable to [B, H, Lq, Lk], or None.
        stats: float32 [B, H, Lq], log-sum-exp of the scores (None where it is not kept; cuDNN: its own record).
        used: the int64 step word of the dropout mask, or None.
    """

    settings: Settings
    backend: str
    mask: Any | None
    stats: Any
    used: Any | None


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


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask_type: str = "causal",
    mask: Any | None = None,
    scale: float | None = None,
    window: Window | None = None,
    dropout: float = 0.0,
    key: int = 0,
    ordinal: int = 0,
    step: Any | None = None,
    backend: str | None = None,
) -> tuple[Any, Saved]:
    """Return ``dropout(softmax(scale q k^T, masked)) v`` for each batch entry and head, and what its gradient needs.

    Head h of q reads head ``h // (H / G)`` of k and v (grouped-query attention; G = 1 is multi-query).

    Args:
        q: [B, Lq, H, D] of float32, bfloat16 or float16; any strides (e.g. a slice of a fused buffer).
        k: [B, Lk, G, D], likewise.
        v: [B, Lk, G, Dv], likewise.
        mask_type: ``"no_mask"``; ``"causal"`` (query i sees the keys up to i), ``"causal_bottom_right"`` (up to
            ``i + Lk - Lq``), ``"padding"``, ``"padding_causal"``, ``"padding_causal_bottom_right"``, ``"arbitrary"``.
        mask: bool, True hides; with the last four types only. ``"arbitrary"``: broadcastable to [B, H, Lq, Lk].
            Padding: [B, 1, 1, Lk], the keys that are padding; or a pair of [B, 1, 1, Lq] and [B, 1, 1, Lk], where
            padded queries see nothing (and the bottom right corner is that of the entries that are no padding).
        scale: of the scores; ``D ** -0.5`` unless given.
        window: (left, right): sliding window around the diagonal, -1 unlimited. Only cuDNN has others than that.
        dropout: probability that a weight is dropped, 0 to 1; the others are divided by 1 - p.
        key: seed, as in `kernels.dropout.dropout`.
        ordinal: number of the call within its step, likewise.
        step: int64 word on the device, needed with dropout.
        backend: ``"cudnn"`` or ``"composed"`` (products and softmax) forces one; default: the first that can.

    Returns:
        ``(out, saved)``: out [B, Lq, H, Dv] of q's dtype, contiguous; saved for `attention_vjp`. A query that sees
        no key gives 0.

    Raises:
        DTypeError: dtypes that differ or are others, a mask that is not bool, a step that is no int64 word.
        ShapeError: shapes or a mask that do not fit, or G that does not divide H.
        ArgumentError: an unknown mask type or backend, a mask where none belongs or none where one does, a scale or
            a probability out of range, or a backend that cannot do it (the message says why).
        NotBuiltError: a window that no usable backend has.
        DeviceError: arrays on different devices.

    Numerics:
        Scores are float32 sums of products, softmax is float32. Composed on CUDA: weights are rounded to q's dtype
        before the second product, dropout (the bits of `kernels.dropout` at the row-major index of
        [B, H, Lq, Lk]) multiplies and rounds once more. CPU: weights stay float32. One rounding of the result.
        cuDNN: its own order of operations and its own dropout stream, from the step word and a hash of key and
        ordinal. Each backend repeats its bits. A NaN or inf in v may reach queries from which its key is hidden
        (0 times NaN is NaN): clear what padding holds.

    Source:
        TE features A5 (mask types, True = hidden, alignment); Vaswani et al.: Attention is all you need (2017).

    Example:
        >>> import numpy as np
        >>> q = np.zeros((1, 2, 1, 2), np.float32)
        >>> v = np.array([1.0, 3.0], np.float32).reshape(1, 2, 1, 1)
        >>> attention(q, q, v)[0].reshape(-1).tolist()
        [1.0, 2.0]
    """
    check_arrays(q, k, v)
    full = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    settings = check_settings(full, q.shape[3], mask_type, mask, scale, window, dropout, backend, key, ordinal)
    if dropout:
        check_step("attention", step)
    parts = mask if isinstance(mask, tuple) else (mask,)
    twin = twin_of("attention", q, k, v, step, *parts)
    if isinstance(mask, tuple):
        settings, mask = _joined(settings, mask, full)
    result: tuple[Any, Saved] = twin.attention(q, k, v, mask, step if dropout else None, settings)
    return result


def attention_vjp(dout: Any, q: Any, k: Any, v: Any, out: Any, saved: Saved) -> tuple[Any, Any, Any]:
    """Return the gradients of `attention` for q, k and v.

    With P the weights, Z the dropout factors (1 without dropout): ``dv = (P Z)^T dout``,
    ``dS = P (Z dout v^T - sum_keys P Z dout v^T)``, ``dq = scale dS k``, ``dk = scale dS^T q``; dk and dv are summed
    over the heads of their group.

    Args:
        dout: gradient of the result, of its shape and dtype; any strides.
        q: as given to `attention`.
        k: as given to `attention`.
        v: as given to `attention`.
        out: what `attention` returned.
        saved: likewise.

    Returns:
        ``(dq, dk, dv)`` of the shapes and dtype of q, k and v: contiguous, or views of one new buffer where q, k and v
        are slices of one and cuDNN runs. A query without keys has no part in them.

    Raises:
        ShapeError: dout of another shape.
        DTypeError: dout of another dtype.
        DeviceError: arrays on different devices.

    Numerics:
        P is computed again, not kept. Products are float32 sums, rounded once (composed on CUDA: also P and dS).
        Groups are summed in a fixed order. Each backend repeats its bits.

    Source:
        Dao et al.: FlashAttention (2022), appendix B.

    Example:
        >>> import numpy as np
        >>> q = np.zeros((1, 2, 1, 2), np.float32)
        >>> v = np.array([1.0, 3.0], np.float32).reshape(1, 2, 1, 1)
        >>> out, saved = attention(q, q, v)
        >>> attention_vjp(np.ones_like(out), q, q, v, out, saved)[2].reshape(-1).tolist()
        [1.5, 0.5]
    """
    if dout.shape != out.shape:
        raise ShapeError(message("attention_vjp", f"dout of shape {out.shape}", dout.shape, "pass out's gradient"))
    if dout.dtype != out.dtype:
        raise DTypeError(message("attention_vjp", f"dout of {out.dtype}", dout.dtype, "cast dout first"))
    twin = twin_of("attention", dout, q, k, v, out)
    result: tuple[Any, Any, Any] = twin.attention_vjp(dout, q, k, v, out, saved)
    return result


def reasons(q: Any, k: Any, v: Any, mask: Any | None, settings: Settings, kind: Kind) -> dict[str, str | None]:
    """Return for each backend of a device kind why it cannot run a call, None if it can; the first that can runs.

    Args:
        q: raw array or `Described`.
        k: likewise.
        v: likewise.
        mask: likewise, one mask or None.
        settings: from `check_settings`.
        kind: ``"cpu"`` or ``"cuda"``.
    """
    found: dict[str, str | None] = module("attention", kind).reasons(q, k, v, mask, settings)
    return found


def check_arrays(q: Any, k: Any, v: Any) -> None:
    """Raise unless q, k and v (arrays, or anything with shape and dtype) fit together."""
    check_computed("attention", "q", q)
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise DTypeError(message("attention", f"{name} of q's dtype {q.dtype}", x.dtype, f"cast {name} first"))
    shapes = q.shape, k.shape, v.shape
    fits = [len(s) for s in shapes] == [4, 4, 4] and k.shape[:3] == v.shape[:3] and q.shape[0] == k.shape[0]
    if not fits or q.shape[3] != k.shape[3]:
        wanted = "q [B, Lq, H, D], k [B, Lk, G, D] and v [B, Lk, G, Dv]"
        raise ShapeError(message("attention", wanted, ", ".join(map(str, shapes)), "reshape to batch, length, head, D"))
    heads, groups = q.shape[2], k.shape[2]
    if heads % groups if groups else heads:
        got = f"{heads} heads of q and {groups} of k and v"
        raise ShapeError(message("attention", "heads of k and v that divide those of q", got, "change either"))


def check_settings(
    full: tuple[int, int, int, int], depth: int, mask_type: str, mask: Any | None, scale: float | None,
    window: Window | None, dropout: float, backend: str | None, key: int = 0, ordinal: int = 0,
) -> Settings:  # fmt: skip
    """Check everything but q, k and v, for scores of shape ``full`` [B, H, Lq, Lk]."""
    check_choice("attention", "mask_type", mask_type, tuple(MASK_TYPES))
    if backend is not None:
        check_choice("attention", "backend", backend, BACKENDS)
    check_probability("attention", dropout)
    padding = mask_type.startswith("padding")
    if (mask is not None) != (padding or mask_type == "arbitrary"):
        takes = [name for name in MASK_TYPES if name.startswith("padding") or name == "arbitrary"]
        named = f"drop it, or pass a mask type out of {', '.join(takes)}"
        do = "pass one (bool, True hides)" if mask is None else named
        got = "no mask" if mask is None else "a mask"
        raise ArgumentError(message("attention", f"a mask that {mask_type!r} goes with", got, do))
    if isinstance(mask, tuple):
        pair = ((full[0], 1, 1, full[2]), (full[0], 1, 1, full[3]))
        if not padding or len(mask) != 2:
            do = "pass one mask, or the queries' and the keys' with a padding type"
            raise ArgumentError(message("attention", "one mask", f"{len(mask)} with {mask_type!r}", do))
        for part, shape in zip(mask, pair, strict=True):
            check_mask("attention", part, shape)
    elif mask is not None:
        check_mask("attention", mask, full)
    factor = (depth**-0.5 if depth else 1.0) if scale is None else check_factor("attention", "scale", scale)
    return Settings(mask_type, factor, _window(mask_type, window), float(dropout), key, ordinal, backend)


def _window(mask_type: str, window: Window | None) -> Window | None:
    """Return a window that hides something, None where it does not."""
    if window is None:
        return None
    bounds = tuple(window) if isinstance(window, tuple | list) else ()
    if len(bounds) != 2 or not all(isinstance(n, int | np.integer) and n >= -1 for n in bounds):
        raise ArgumentError(message("attention", "window bounds of at least -1", repr(window), "pass e.g. (128, 0)"))
    left, right = int(bounds[0]), int(bounds[1])
    return None if left == -1 and (right == -1 or MASK_TYPES[mask_type] is not None) else (left, right)


def no_windows(settings: Settings) -> str | None:
    """Why the composition cannot do it."""
    return None if settings.window is None else f"the sliding window {settings.window} is not built"


def refuse_backend(settings: Settings, reasons: dict[str, str | None]) -> Exception:
    """Return the error for a call that no backend takes, or not the one that was asked for."""
    named = settings.backend
    text = "; ".join(f"{name}: {why}" for name, why in reasons.items() if why and named in (None, name))
    if named is None:
        return NotBuiltError(message("attention", "a backend that can", text, "leave the window out"))
    return ArgumentError(message("attention", f"{named!r} to be able to", text, "leave backend out, or change that"))


def joined(settings: Settings) -> Settings:
    """Return the settings of a call whose pair of masks became one; the bottom right corner is then in the mask."""
    return replace(settings, mask_type="arbitrary") if settings.causal == "bottom_right" else settings


def _joined(settings: Settings, pair: tuple[Any, Any], full: tuple[int, int, int, int]) -> tuple[Settings, Any]:
    """One mask [B, 1, Lq, Lk] of padded queries and padded keys, and the settings that go with it."""
    bool_ = np.dtype(np.bool_)
    queries, keys = (part.reshape((1,) * (4 - part.ndim) + part.shape) for part in pair)
    mask = elementwise("logical_or", queries.swapaxes(-1, -2), keys, dtype=bool_)
    if settings.causal != "bottom_right":
        return joined(settings), mask
    # The corner is that of what is no padding, different for each batch entry: key j is hidden from query i if
    # j - i > (keys that count) - (queries that count).
    int32 = np.dtype(np.int32)
    counts = [
        reduce("sum", elementwise("logical_not", part, dtype=bool_), axis=-1, keepdims=True, dtype=int32)
        for part, n in ((queries, full[2]), (keys, full[3]))
    ]
    ahead = elementwise("subtract", counts[1], counts[0], dtype=int32)
    distances = elementwise("subtract", _positions(full[3], mask), _positions(full[2], mask)[:, None], dtype=int32)
    later = elementwise("greater", distances, ahead, dtype=bool_)
    return joined(settings), elementwise("logical_or", mask, later, dtype=bool_)


_counted: dict[tuple[str, int], Any] = {}


def _positions(n: int, like: Any) -> Any:
    """Return 0 .. n - 1 as int32 on the device of ``like``.

    Kept, by powers of two: a CUDA graph being captured cannot copy from the host, and one that was reads the address.
    """
    place = str(like.device), 1 << max(0, n - 1).bit_length()
    found = _counted.get(place)
    if found is None:
        found = _counted.setdefault(place, place_like(np.arange(place[1], dtype=np.int32), like))
    return found[:n]
