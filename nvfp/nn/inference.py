"""`InferenceParams`: keys and values of earlier tokens, kept per layer, in one piece per sequence or in pages."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.convert import asarray
from nvfp.arrays.creation import empty, on_device
from nvfp.arrays.functions._common import array
from nvfp.arrays.functions.indexing import take
from nvfp.arrays.functions.shape import reshape, swapaxes
from nvfp.autograd.tape import needs_grad
from nvfp.dtypes.dense import as_dtype, bfloat16
from nvfp.errors import ArgumentError, CacheFullError, DTypeError, GradientError, ShapeError, StateError, message
from nvfp.kernels._dense import contiguous
from nvfp.kernels.attention_decode import attention_append, attention_decode
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.embedding import embedding
from nvfp.nn._cached import Owners, Pages, capturing, decode_mask
from nvfp.nn._init import count
from nvfp.nn.functional.attention import attention
from nvfp.nn.functional.rope import rope, rope_of_rows

_NAME = "InferenceParams"


class InferenceParams:
    """The state of a generation: which sequences run, and each layer's keys and values of their tokens.

    One step: ``pre_step({sequence: new tokens, ...})``, then the model with ``inference_params=``. Row b of the batch
    is the b-th sequence named; rows with fewer tokens than others are padded behind. A sequence that is not named any
    more is finished and its memory goes to others; a name that is new starts a sequence. Attention adds the new keys
    and values to those kept and lets each token see its sequence up to itself.

    Args:
        max_batch_size: sequences at a time.
        max_sequence_length: tokens of a sequence, old and new.
        num_heads_kv: G, heads of keys and values.
        head_dim_k: D.
        dtype: of what is kept, that of the attention's input: float32, bfloat16 or float16.
        head_dim_v: Dv; D unless given.
        is_paged: keep pages of ``page_size`` tokens, given out as sequences grow. Otherwise every sequence has room for
            ``max_sequence_length`` tokens.
        total_num_pages: of each layer; as many as all sequences at full length need, unless given.
        page_size: tokens of a page.
        device: where; the default device unless given.

    Attributes:
        sequences: name -> tokens, of those that run, in the order of the batch.
        batch_size: how many.

    Raises:
        ArgumentError: a value out of range.
        DTypeError: another dtype.

    Numerics: see `nvfp.kernels.attention_decode`. The first tokens of sequences that all start in one step run through
        the attention backend that a call without cache takes, so they have its bits.

    Source: TE features A5 (KV cache).

    Example:
        >>> import nvfp as nf
        >>> layer = nf.nn.MultiheadAttention(8, 2, device="cpu").eval()
        >>> cache = nf.nn.InferenceParams(1, 16, 2, 4, dtype=nf.float32, device="cpu")
        >>> x = nf.random.default_rng(0, device="cpu").normal(size=(1, 4, 8), dtype=nf.float32)
        >>> with nf.no_grad():
        ...     cache.pre_step({"a": 3})
        ...     _ = layer(x[:, :3], inference_params=cache)
        ...     cache.pre_step({"a": 1})
        ...     last = layer(x[:, 3:], inference_params=cache)
        ...     nf.abs(last - layer(x)[:, 3:]).max().item() < 1e-6, cache.sequences
        (True, {'a': 4})
    """

    def __init__(
        self,
        max_batch_size: int,
        max_sequence_length: int,
        num_heads_kv: int,
        head_dim_k: int,
        dtype: Any = bfloat16,
        head_dim_v: int | None = None,
        is_paged: bool = False,
        total_num_pages: int | None = None,
        page_size: int | None = None,
        *,
        device: Any = None,
    ) -> None:
        self.max_batch_size = count(_NAME, "max_batch_size", max_batch_size)
        self.max_sequence_length = count(_NAME, "max_sequence_length", max_sequence_length)
        self.num_heads_kv = count(_NAME, "num_heads_kv", num_heads_kv)
        self.head_dim_k = count(_NAME, "head_dim_k", head_dim_k)
        self.head_dim_v = self.head_dim_k if head_dim_v is None else count(_NAME, "head_dim_v", head_dim_v)
        self.dtype = as_dtype(dtype)
        if getattr(self.dtype, "name", None) not in ("float32", "bfloat16", "float16"):
            raise DTypeError(message(_NAME, "float32, bfloat16 or float16", dtype, "keep the dtype of the layer"))
        self.is_paged, self.device = bool(is_paged), on_device(device)
        if not is_paged and (page_size is not None or total_num_pages is not None):
            got = f"page_size={page_size}, total_num_pages={total_num_pages}"
            raise ArgumentError(message(_NAME, "is_paged=True with pages", got, "pass is_paged=True"))
        if is_paged and page_size is None:
            raise ArgumentError(message(_NAME, "page_size with is_paged=True", None, "pass e.g. 64"))
        self.page_size = count(_NAME, "page_size", page_size) if page_size is not None else self.max_sequence_length
        each = -(-self.max_sequence_length // self.page_size)
        pages = self.max_batch_size * each if total_num_pages is None else total_num_pages
        self.total_num_pages = count(_NAME, "total_num_pages", pages)
        self._pages = Pages(self.total_num_pages, self.page_size)
        self._layers: dict[Hashable, tuple[Array, Array]] = {}
        self._owners = Owners()
        self.sequences: dict[Hashable, int] = {}
        self._fresh: list[int] = []
        # Lengths before the step, new tokens, and the pages of each row: one piece of memory, written once per step.
        rows = self.max_batch_size
        self._words = asarray(np.zeros(rows * (2 + each), np.int32), device=self.device)
        self._steps = asarray(np.arange(self.max_sequence_length, dtype=np.int32), device=self.device)
        self._name_words()

    def _name_words(self) -> None:
        """Views of the words: all that a step reads is what `_write` wrote."""
        raw, rows = self._words.raw, self.max_batch_size
        self._starts, self._new, self._table = raw[:rows], raw[rows : 2 * rows], raw[2 * rows :].reshape(rows, -1)

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in self.__dict__.items() if name not in ("_starts", "_new", "_table")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._name_words()  # a copy's own, not copies of the views

    @property
    def batch_size(self) -> int:
        """How many sequences run."""
        return len(self.sequences)

    def reset(self) -> None:
        """Forget all sequences; memory of layers stays."""
        self.sequences, self._fresh = {}, []
        self._pages = Pages(self.total_num_pages, self.page_size)
        self._write([])

    def pre_step(self, step_dict: Mapping[Hashable, int]) -> None:
        """Say which sequences take part in the next step, each with how many new tokens.

        Args:
            step_dict: name of a sequence -> its new tokens, at least 1, in the order of the batch.

        Raises:
            CacheFullError: more sequences, tokens of a sequence or pages than there is room for; nothing has changed
                then, so a caller may take some out and try again.
            ArgumentError: a number of tokens below 1.
        """
        lengths, fresh = {}, []
        if len(step_dict) > self.max_batch_size:
            do = "take fewer, or raise max_batch_size"
            raise CacheFullError(message(_NAME, f"at most {self.max_batch_size} sequences", len(step_dict), do))
        for name, given in step_dict.items():
            new = count(_NAME, f"new tokens of {name!r}", given)
            lengths[name] = self.sequences.get(name, 0) + new
            if lengths[name] > self.max_sequence_length:
                do = "end the sequence, or raise max_sequence_length"
                expected = f"at most {self.max_sequence_length} tokens of {name!r}"
                raise CacheFullError(message(_NAME, expected, lengths[name], do))
            fresh.append(new)
        self._pages.hold(lengths)  # raises before it changes anything
        starts = [self.sequences.get(name, 0) for name in lengths]
        self.sequences, self._fresh = lengths, fresh
        self._write(starts)

    def _write(self, starts: list[int]) -> None:
        """Bring lengths and pages to the device, at their fixed addresses."""
        rows = self.max_batch_size
        words = np.zeros(self._words.size, np.int32)
        words[: len(starts)] = starts
        words[rows : rows + len(starts)] = self._fresh
        table = words[2 * rows :].reshape(rows, -1)
        for row, name in zip(table, self.sequences, strict=False):
            pages = self._pages.of[name]
            row[: len(pages)] = pages
        self._words.storage.write_(asarray(words, device=self.device).raw)

    def allocate_memory(self, layer_number: Hashable) -> None:
        """Make a layer's memory: keys [pages, page size, G, D] and values [.., Dv]. Attention does so at first use.

        Args:
            layer_number: the layer.
        """
        if layer_number not in self._layers:
            shape = self.total_num_pages, self.page_size, self.num_heads_kv
            options: dict[str, Any] = {"dtype": self.dtype, "device": self.device}
            self._layers[layer_number] = (
                empty((*shape, self.head_dim_k), **options), empty((*shape, self.head_dim_v), **options)
            )  # fmt: skip

    def step(self, layer_number: Hashable, new_k: Array, new_v: Array, qkv_format: str = "bshd") -> tuple[Array, Array]:
        """Add the step's keys and values to what a layer keeps; attention with ``inference_params=`` does so itself.

        Args:
            layer_number: the layer.
            new_k: [B, L, G, D] (``"sbhd"``: [L, B, G, D]); row b holds the new tokens of the b-th sequence first.
            new_v: [B, L, G, Dv], likewise.
            qkv_format: ``"bshd"`` or ``"sbhd"``.

        Returns:
            The layer's whole memory, keys [pages, page size, G, D] and values [.., Dv].

        Raises:
            StateError: no sequence runs.
            ShapeError: fewer rows or tokens than `pre_step` was told, or other heads.
            DTypeError: another dtype than the cache's.
            GradientError: keys or values that gradients are wanted of.
        """
        k, v = array(_NAME, new_k), array(_NAME, new_v)
        if qkv_format not in ("bshd", "sbhd"):
            raise ArgumentError(
                message(_NAME, "'bshd' or 'sbhd'", repr(qkv_format), "bring the arrays into that order")
            )
        if qkv_format == "sbhd":
            k, v = swapaxes(k, 0, 1), swapaxes(v, 0, 1)
        self._check(k)
        if needs_grad(k, v):
            do = "run the model inside nf.no_grad()"
            raise GradientError(message(_NAME, "no gradients through a cache", "arrays that want them", do))
        self.allocate_memory(layer_number)
        keys, values = self._layers[layer_number]
        raw_k, raw_v = _rows(k.raw), _rows(v.raw)
        attention_append(raw_k, raw_v, keys.raw, values.raw, self._table, self._starts, self._new)
        keys.storage.touch()
        values.storage.touch()
        return keys, values

    def attend(
        self, layer: Any, q: Array, k: Array, v: Array, *, attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None, softmax_scale: float | None = None,
    ) -> Array:  # fmt: skip
        """Return attention of the step's queries over all tokens of their sequences, the step's among them.

        Args:
            layer: the module that asks; its ``layer_number`` names the memory (without one the module itself does).
            q: [B, L, H, D].
            k: [B, L, G, D].
            v: [B, L, G, Dv].
            attn_mask_type: ``"causal"`` and its kin (each token sees its sequence up to itself), ``"no_mask"`` or
                ``"padding"`` (all its tokens).
            window_size: (left, right): ``left`` earlier tokens are seen, -1 all.
            softmax_scale: ``D ** -0.5`` unless given.

        Returns:
            [B, L, H, Dv]; rows and tokens beyond those of `pre_step` hold no meaning.

        Raises:
            ArgumentError: a mask type that needs a mask, or two modules with one layer number.
            NotBuiltError: a window to the right.
            StateError: as `step`; so are ShapeError, DTypeError and GradientError.
        """
        causal, left = decode_mask(attn_mask_type, window_size)
        key = self._owners.key(layer)
        if needs_grad(q):
            do = "run the model inside nf.no_grad()"
            raise GradientError(message(_NAME, "no gradients through a cache", "queries that want them", do))
        keys, values = self.step(key, k, v)
        length = q.shape[1]
        plain = causal or all(n == length for n in self._fresh)
        if length > 1 and plain and self._all_new() and not capturing(q.raw):
            kind, seen = ("causal", 0) if causal else ("no_mask", -1)
            window = None if left < 0 else (left, seen)
            y: Array = attention(q, k, v, attn_mask_type=kind, window_size=window, softmax_scale=softmax_scale)
            return y
        return wrap(
            attention_decode(
                _rows(q.raw), keys.raw, values.raw, self._table, self._starts, self._new,
                causal=causal, left=left, scale=softmax_scale,
            )
        )  # fmt: skip

    def rotate(
        self, query: Array, key: Array, q_freqs: Array, k_freqs: Array, *, interleaved: bool = False
    ) -> tuple[Array, Array]:
        """Rotate the heads of a step by the angles of the places that their tokens have in their sequences.

        Args:
            query: [B, L, H, D].
            key: [B, L, G, D].
            q_freqs: angles of `RotaryPositionEmbedding` for at least ``max_sequence_length`` positions.
            k_freqs: likewise, for the keys; the same array costs one look-up.
            interleaved: as in `nvfp.nn.functional.rope.rope`.

        Returns:
            Both, rotated.

        Raises:
            ShapeError: too few angles, or arrays that do not fit the step.
            StateError: no sequence runs.
            DTypeError: another dtype than the cache's.
        """
        self._check_angles(query, q_freqs)
        self._check_angles(key, k_freqs)
        if query.shape[1] > 1 and self._all_new() and not capturing(query.raw):  # the places are 0, 1, ..
            return rope(query, q_freqs, interleaved=interleaved), rope(key, k_freqs, interleaved=interleaved)
        of_query = self._angles(query, q_freqs)
        of_key = of_query if k_freqs is q_freqs else self._angles(key, k_freqs)
        return (
            rope_of_rows(query, of_query, interleaved=interleaved),
            rope_of_rows(key, of_key, interleaved=interleaved),
        )

    def _check_angles(self, x: Array, freqs: Array) -> None:
        self._check(x)
        most = self.max_sequence_length
        if freqs.shape[0] < most or x.shape[1] > most:
            got = f"{freqs.shape[0]} and {x.shape[1]}"
            do = "make them for max_sequence_length"
            raise ShapeError(message(_NAME, f"angles of {most} positions and no more tokens", got, do))

    def _angles(self, x: Array, freqs: Array) -> Array:
        """The angles of each token of x [B, L, H, D], in rows [B L, R]."""
        freqs = array(_NAME, freqs)
        batch, length = x.shape[:2]
        places = self._starts[:batch]
        if length > 1:
            places = elementwise("add", places.reshape(batch, 1), self._steps.raw[:length].reshape(1, length))
            places = elementwise("minimum", places, self.max_sequence_length - 1)  # padding behind the new tokens
        return wrap(embedding(freqs.raw.reshape(freqs.shape[0], freqs.shape[-1]), places.reshape(-1)))

    def get_seqlens_pre_step(self) -> Array:
        """Return how many tokens each row held before this step, int32 [max_batch_size]."""
        return self._words[: self.max_batch_size]

    @property
    def page_table(self) -> Array:
        """The pages of each row, int32 [max_batch_size, pages of a sequence]; behind a row's last page stands 0."""
        return reshape(self._words[2 * self.max_batch_size :], self._table.shape)

    def convert_paged_to_nonpaged(self, layer_number: Hashable) -> tuple[Array, Array]:
        """Return copies of what a layer keeps, keys [batch_size, max length, G, D] and values, in order.

        Args:
            layer_number: the layer.

        Raises:
            StateError: a layer that keeps nothing.
        """
        if layer_number not in self._layers:
            do = "run the layer first, or name another one"
            raise StateError(message(_NAME, f"a layer out of {list(self._layers)}", repr(layer_number), do))
        ids = reshape(self.page_table[: self.batch_size], (-1,))
        found = []
        for kept in self._layers[layer_number]:
            pages = take(kept, ids, axis=0)
            found.append(reshape(pages, (self.batch_size, self._table.shape[1] * self.page_size, *kept.shape[2:])))
        return found[0], found[1]

    def _check(self, x: Array) -> None:
        if not self.sequences:
            raise StateError(message(_NAME, "sequences that run", "none", "call pre_step first"))
        most = max(self._fresh)
        if x.ndim != 4 or not self.batch_size <= x.shape[0] <= self.max_batch_size or x.shape[1] < most:
            expected = f"[B, L, heads, size] with B from {self.batch_size} to {self.max_batch_size} and L >= {most}"
            raise ShapeError(message(_NAME, expected, x.shape, "give each sequence of pre_step a row"))
        if x.raw.dtype != self.dtype:
            raise DTypeError(message(_NAME, f"{self.dtype}, as the cache", x.dtype, "make the cache with that dtype"))

    def _all_new(self) -> bool:
        return list(self.sequences.values()) == self._fresh

    def __repr__(self) -> str:
        pages = f", pages={self.total_num_pages} of {self.page_size}" if self.is_paged else ""
        return (
            f"InferenceParams(max_batch_size={self.max_batch_size}, max_sequence_length={self.max_sequence_length}, "
            f"num_heads_kv={self.num_heads_kv}, head_dim_k={self.head_dim_k}, head_dim_v={self.head_dim_v}, "
            f"dtype={self.dtype}{pages}, sequences={self.sequences})"
        )


def _rows(raw: Any) -> Any:
    """The array, or a copy of it, with a contiguous last axis."""
    return raw if raw.strides[-1] == raw.dtype.itemsize else contiguous(raw)


def check_cache(layer: str, cache: Any) -> InferenceParams:
    """Return an `InferenceParams`; raise if it is none."""
    if not isinstance(cache, InferenceParams):
        do = "make one with nf.nn.InferenceParams(...)"
        raise ArgumentError(message(layer, "inference_params as an InferenceParams", type(cache).__name__, do))
    return cache
