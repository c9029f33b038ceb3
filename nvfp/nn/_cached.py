"""What `InferenceParams` stands on: pages that are given out and taken back, and the masks that a cache knows."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any
from weakref import ref

import numpy as np

from nvfp.errors import ArgumentError, CacheFullError, NotBuiltError, message
from nvfp.kernels.attention import MASK_TYPES
from nvfp.optional import need


class Pages:
    """Which sequence holds which pages.

    Attributes:
        of: sequence -> its pages, in the order of its tokens.

    Example:
        >>> pages = Pages(4, 10)
        >>> pages.hold({"a": 15, "b": 3})
        >>> pages.hold({"b": 12})
        >>> pages.of, len(pages.free)
        ({'b': [2, 0]}, 2)
    """

    def __init__(self, total: int, size: int) -> None:
        self.size = size
        self.of: dict[Hashable, list[int]] = {}
        self.free = list(range(total - 1, -1, -1))  # the last one goes out first

    def hold(self, lengths: Mapping[Hashable, int]) -> None:
        """Give every sequence the pages for its length, and take back those of sequences that are not named.

        Raises:
            CacheFullError: too few pages; nothing has changed.
        """
        wanted = {name: -(-length // self.size) for name, length in lengths.items()}
        ended = [name for name in self.of if name not in lengths]
        room = len(self.free) + sum(len(self.of[name]) for name in ended)
        more = sum(pages - len(self.of.get(name, ())) for name, pages in wanted.items())
        if more > room:
            do = "end a sequence, or raise total_num_pages"
            raise CacheFullError(message("InferenceParams", f"{more} free pages", room, do))
        for name in ended:
            self.free += reversed(self.of.pop(name))
        for name, pages in wanted.items():
            held = self.of.setdefault(name, [])
            held += [self.free.pop() for _ in range(pages - len(held))]


class Owners:
    """Which layer a name of kept memory belongs to; a layer that is gone leaves its name free."""

    def __init__(self) -> None:
        self._of: dict[Hashable, Any] = {}

    def key(self, layer: Any) -> Hashable:
        """Return the name of a layer's memory: its ``layer_number``, or one of its own.

        Raises:
            ArgumentError: another layer of that number lives.
        """
        number: Hashable = getattr(layer, "layer_number", None)
        key = id(layer) if number is None else number
        owner = self._of.setdefault(key, ref(layer))()
        if owner is None:
            self._of[key] = ref(layer)
        elif owner is not layer:
            do = "give every layer its own layer_number, or none of them one"
            got = f"two with layer_number={number!r}"
            raise ArgumentError(message("InferenceParams", "one layer of a number", got, do))
        return key


def decode_mask(mask_type: str, window: tuple[int, int] | None) -> tuple[bool, int]:
    """Return (causal, earlier tokens that are seen or -1) of an attention over a cache.

    Args:
        mask_type: of `nvfp.kernels.attention.MASK_TYPES`; corners mean the same here, as the cache ends with the step.
        window: (left, right), or None.

    Raises:
        ArgumentError: a mask type that needs a mask.
        NotBuiltError: a window to the right.
    """
    if mask_type not in MASK_TYPES or mask_type == "arbitrary":
        takes = ", ".join(name for name in MASK_TYPES if name != "arbitrary")
        do = "which tokens there are is known from pre_step"
        raise ArgumentError(message("InferenceParams", f"a mask type out of {takes}", repr(mask_type), do))
    causal = MASK_TYPES[mask_type] is not None
    left, right = (-1, -1) if window is None else window
    if right != -1 and not (causal and right == 0):
        got = f"window_size={window}"
        raise NotBuiltError(message("InferenceParams", "a window to the left alone", got, "pass (left, -1)"))
    return causal, int(left)


def capturing(raw: Any) -> bool:
    """Whether the current stream records a CUDA graph (never for a NumPy array)."""
    if type(raw) is np.ndarray:
        return False
    return bool(need("cupy", extra="cuda13").cuda.get_current_stream().is_capturing())
