"""`attention_append` and `attention_decode`: attention over keys and values kept in pages from step to step."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.errors import ArgumentError, DTypeError, NotBuiltError, ShapeError, message
from nvfp.kernels._check import check_factor
from nvfp.kernels._dense import check_computed
from nvfp.kernels._dispatch import backend

MOST_DEPTH = 512  # elements of a head
_INT32 = np.dtype(np.int32)


def attention_append(k: Any, v: Any, k_cache: Any, v_cache: Any, table: Any, starts: Any, fresh: Any) -> None:
    """Write new keys and values behind those that a cache of pages holds.

    Token i < fresh[b] of batch entry b goes to position ``p = starts[b] + i`` of its sequence: into line ``p % S`` of
    page ``table[b, p // S]``. A cache that is not paged has one page per sequence.

    Args:
        k: raw array [B, L, G, D] of float32, bfloat16 or float16; the last axis contiguous.
        v: [B, L, G, Dv] of the same dtype, likewise.
        k_cache: [P, S, G, D] of the same dtype, C-contiguous: P pages of S tokens; written.
        v_cache: [P, S, G, Dv], likewise.
        table: int32 [B', M], C-contiguous, B' >= B: the pages of each sequence, in order.
        starts: int32 [B'], tokens that each sequence holds already.
        fresh: int32 [B'], tokens that are new; what k and v hold beyond is not read.

    Raises:
        DTypeError: dtypes that differ or are others.
        ShapeError: shapes that do not fit.
        DeviceError: arrays on different devices.

    Numerics: copies bits. Values of ``table``, ``starts`` and ``fresh`` are trusted: the caller,
        `nf.nn.InferenceParams`, checks them on the host. No page may stand in the table for two sequences.

    Example:
        >>> import numpy as np
        >>> cache, new = np.zeros((2, 2, 1, 1), np.float32), np.ones((1, 1, 1, 1), np.float32)
        >>> word = np.ones(1, np.int32)
        >>> attention_append(new, new, cache, cache.copy(), np.array([[1, 0]], np.int32), word, word)
        >>> cache.ravel().tolist()
        [0.0, 0.0, 0.0, 1.0]
    """
    op = "attention_append"
    _check_cache(op, "k", k, k_cache, v_cache, table, starts, fresh)
    if v.dtype != k.dtype or v.ndim != 4 or v.shape[:3] != k.shape[:3] or v.shape[3] != v_cache.shape[3]:
        expected, got = f"v as {k.dtype} {(*k.shape[:3], v_cache.shape[3])}", f"{v.dtype} {v.shape}"
        raise ShapeError(message(op, expected, got, "pass keys and values of one projection"))
    if k.shape[2] != k_cache.shape[2]:
        expected, got = f"{k_cache.shape[2]} heads of keys and values, as the cache", k.shape[2]
        raise ShapeError(message(op, expected, got, "make the cache with num_heads_kv of the layer"))
    backend("attention_decode", k, v, k_cache, v_cache, table, starts, fresh).attention_append(
        k, v, k_cache, v_cache, table, starts, fresh
    )


def attention_decode(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    table: Any,
    starts: Any,
    fresh: Any,
    *,
    causal: bool = True,
    left: int = -1,
    scale: float | None = None,
) -> Any:
    """Return ``softmax(scale q k^T) v`` of new queries over the keys and values that a cache of pages holds.

    Query i of batch entry b is token ``starts[b] + i`` of its sequence. It sees the tokens up to itself, or with
    ``causal=False`` all ``starts[b] + fresh[b]`` of them; with ``left >= 0`` only the last ``left`` before itself.
    Queries from ``fresh[b]`` on give 0. Head h of q reads head ``h // (H / G)`` of the cache.

    Args:
        q: raw array [B, Lq, H, D] of float32, bfloat16 or float16; the last axis contiguous. D at most 512.
        k_cache: as for `attention_append`, which has been called before.
        v_cache: likewise; Dv at most 512.
        table: likewise.
        starts: likewise.
        fresh: likewise.
        causal: hide later tokens.
        left: how many earlier tokens are seen; -1: all.
        scale: of the scores; ``D ** -0.5`` unless given.

    Returns:
        [B, Lq, H, Dv] of q's dtype, contiguous.

    Raises:
        DTypeError: dtypes that differ or are others.
        ShapeError: shapes that do not fit.
        ArgumentError: ``left`` below -1, or a scale that is no finite number.
        NotBuiltError: heads of more than 512 elements.
        DeviceError: arrays on different devices.

    Numerics:
        float32 throughout, one rounding. CUDA: products of 16 elements per thread, sums of exp and outputs per team of
        threads, then in fixed trees; the number of parts follows from the shapes alone, so each call repeats its bits.
        A NaN among the hidden keys and values does not matter: they are not read.

    Source:
        Milakov, Gimelshein: Online normalizer calculation for softmax (2018); Kwon et al.: PagedAttention (2023).

    Example:
        >>> import numpy as np
        >>> keys, word = np.zeros((1, 4, 1, 1), np.float32), np.full(1, 2, np.int32)
        >>> values = np.arange(1.0, 5.0, dtype=np.float32).reshape(1, 4, 1, 1)
        >>> q, table, one = np.ones((1, 1, 1, 1), np.float32), np.zeros((1, 1), np.int32), np.ones(1, np.int32)
        >>> attention_decode(q, keys, values, table, word, one).item()
        2.0
    """
    op = "attention_decode"
    _check_cache(op, "q", q, k_cache, v_cache, table, starts, fresh)
    heads, groups = q.shape[2], k_cache.shape[2]
    if heads % groups if groups else heads:
        got = f"{heads} heads of q and {groups} of the cache"
        raise ShapeError(message(op, "heads of the cache that divide those of q", got, "change either"))
    deepest = max(q.shape[3], v_cache.shape[3])
    if deepest > MOST_DEPTH:
        raise NotBuiltError(message(op, f"heads of at most {MOST_DEPTH} elements", deepest, "use more heads"))
    if isinstance(left, bool) or not isinstance(left, int | np.integer) or left < -1:
        raise ArgumentError(message(op, "left of at least -1", repr(left), "pass e.g. 128, or -1 for all"))
    factor = max(1, q.shape[3]) ** -0.5 if scale is None else check_factor(op, "scale", scale)
    return backend("attention_decode", q, k_cache, v_cache, table, starts, fresh).attention_decode(
        q, k_cache, v_cache, table, starts, fresh, causal=bool(causal), left=int(left), scale=factor
    )


def _check_cache(op: str, name: str, x: Any, k_cache: Any, v_cache: Any, table: Any, starts: Any, fresh: Any) -> None:
    check_computed(op, name, x)
    if k_cache.dtype != x.dtype or v_cache.dtype != x.dtype:
        got = f"{name} {x.dtype}, caches {k_cache.dtype} and {v_cache.dtype}"
        raise DTypeError(message(op, "one dtype", got, "make the cache with the dtype of the layer's input"))
    if x.ndim != 4 or k_cache.ndim != 4 or v_cache.ndim != 4 or k_cache.shape[:3] != v_cache.shape[:3]:
        got = f"{x.shape}, {k_cache.shape} and {v_cache.shape}"
        do = "reshape to batch, token, head, element"
        raise ShapeError(message(op, f"{name} [B, L, H, D] and caches [P, S, G, D]", got, do))
    if x.shape[3] != k_cache.shape[3]:
        raise ShapeError(message(op, f"heads of {k_cache.shape[3]} elements", x.shape, "make the cache for this layer"))
    if x.size and x.shape[3] > 1 and x.strides[3] != x.dtype.itemsize:
        raise ShapeError(message(op, f"a contiguous last axis of {name}", x.strides, "copy it first"))
    if not (k_cache.flags.c_contiguous and v_cache.flags.c_contiguous and table.flags.c_contiguous):
        raise ShapeError(message(op, "contiguous caches and table", "strides", "pass them as they were made"))
    words = (table, starts, fresh)
    fits = table.ndim == 2 and starts.ndim == fresh.ndim == 1 and all(len(w) >= x.shape[0] for w in words)
    if not fits or any(w.dtype != _INT32 for w in words):
        got = ", ".join(f"{w.dtype} {w.shape}" for w in words)
        expected = f"table int32 [B', M], starts and fresh int32 [B'], B' >= {x.shape[0]}"
        raise ShapeError(message(op, expected, got, "pass those of nf.nn.InferenceParams"))
