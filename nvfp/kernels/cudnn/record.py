"""`AttentionRecord`: one attention as a frozen, hashable, printable record; it keys the cache of plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from nvfp.errors import ArgumentError, ShapeError, message
from nvfp.kernels._attention import MASK_TYPES, NO_TERMS, Described, Terms
from nvfp.kernels._check import check_choice
from nvfp.kernels.cublaslt.layout import element_strides
from nvfp.kernels.cuda._memory import address

Strides = tuple[int, int, int, int]
UNIT = 16  # bytes to which cuDNN's kernels take addresses and the distances of rows, heads and batches


@dataclass(frozen=True, slots=True)
class AttentionRecord:
    """Everything that decides how cuDNN computes O = dropout(softmax(scale Q K^T + mask)) V and its gradients.

    Q is [batch, queries, heads, depth], K [batch, keys, groups, depth], V [batch, keys, groups, value_depth],
    O [batch, queries, heads, value_depth]; head h reads group h // (heads // groups).

    Attributes:
        batch: B.
        queries: length of the query sequence.
        keys: length of the key sequence.
        heads: query heads.
        groups: key and value heads; divides ``heads``.
        depth: D of Q and K.
        value_depth: D of V and O.
        dtype: name of the dtype of Q, K, V and O.
        q_strides: strides in elements over [batch, sequence, head, depth], as cuDNN sees Q.
        k_strides: likewise of K.
        v_strides: likewise of V.
        scale: factor of the scores.
        mask_type: the diagonal, and whether a mask array comes with each call.
        mask: (batch, heads) extents of the mask array, each 1 or full; None where there is none.
        window: (left, right) neighbours that a query sees on either side of the diagonal, -1 for all of them.
        dropout: probability to drop an attention weight.
        stats: whether a backward will follow (the forward then writes the logarithms of the row sums).
        deterministic: whether the backward repeats its bits.
        bottom_right: corner of a window where the mask type is not causal.
        bias: (batch, heads) extents of a bias, each 1 or full; None where there is none.
        bias_gradient: whether the backward gives that of the bias.
        sink: whether each head has an extra logit.
        lengths: whether entries have lengths, and places of their own.
        even: whether each entry then has as many queries as keys.

    Example:
        >>> strides = (128 * 3 * 256, 3 * 256, 64, 1)  # slices of one fused buffer [2, 128, 3, 4, 64]
        >>> print(AttentionRecord(2, 128, 128, 4, 4, 64, 64, "bfloat16", strides, strides, strides, 0.125, "causal"))
        O[2, 128, 4, 64] = Q[2, 128, 4, 64] K[2, 128, 4, 64] bfloat16, causal, scale 0.125
    """

    batch: int
    queries: int
    keys: int
    heads: int
    groups: int
    depth: int
    value_depth: int
    dtype: str
    q_strides: Strides
    k_strides: Strides
    v_strides: Strides
    scale: float
    mask_type: str = "no_mask"
    mask: tuple[int, int] | None = None
    window: tuple[int, int] | None = None
    dropout: float = 0.0
    stats: bool = True
    deterministic: bool = True
    bottom_right: bool = True
    bias: tuple[int, int] | None = None
    bias_gradient: bool = False
    sink: bool = False
    lengths: bool = False
    even: bool = False

    @property
    def packed(self) -> Literal["by head", "by part"] | None:
        """How Q, K and V lie side by side in rows of one buffer [B, L, (H + 2G) D], or None where they do not.

        ``"by head"``: each head's query, key, value (H = G); ``"by part"``: all queries, all keys, all values. The
        gradients are then written side by side likewise.

        Example:
            >>> strides = (128 * 768, 768, 64, 1)
            >>> AttentionRecord(2, 128, 128, 4, 4, 64, 64, "bfloat16", strides, strides, strides, 0.125).packed
            'by part'
        """
        row = (self.heads + 2 * self.groups) * self.depth
        parts = ((self.heads, self.q_strides), (self.groups, self.k_strides), (self.groups, self.v_strides))
        outer = (self.batch, self.queries * row), (self.queries, row)
        apart = any(n > 1 and s[axis] != wanted for _, s in parts for axis, (n, wanted) in enumerate(outer))
        if apart or self.lengths or self.heads == 1 or self.queries != self.keys or self.depth != self.value_depth:
            return None
        steps = {s[2] for n, s in parts if n > 1}
        if self.heads == self.groups and steps == {3 * self.depth}:
            return "by head"
        return "by part" if steps == {self.depth} else None

    @property
    def biased(self) -> bool:
        """Whether something is added to the scores: a bias, or the mask that travels as one."""
        return self.mask is not None or self.bias is not None

    @property
    def alignment(self) -> Literal["top_left", "bottom_right"]:
        """Which corner the diagonal starts from: bottom right also for a window without a causal mask (as TE).

        Both are one where queries and keys are equally many; that is called top left.
        """
        same = self.even if self.lengths else self.queries == self.keys
        if same or self.mask_type in ("causal", "padding_causal"):
            return "top_left"
        return "bottom_right" if self.bottom_right or "causal" in self.mask_type else "top_left"

    @property
    def band(self) -> tuple[int | None, int | None]:
        """(left, right) neighbours of the diagonal that a query sees, None for all of them.

        Example:
            >>> strides = (8, 8, 8, 1)
            >>> record = AttentionRecord(1, 9, 9, 1, 1, 8, 8, "float16", *(strides,) * 3, 1.0, "causal", window=(4, 4))
            >>> record.band
            (4, 0)
        """
        left, right = self.window or (-1, -1)
        if "causal" in self.mask_type:
            right = 0
        # A bound that reaches over the whole sequence is none: it would only keep cuDNN from its plainest kernel.
        return (
            None if left < 0 or left >= max(self.queries, self.keys) else left,
            None if right < 0 or right >= max(self.queries, self.keys) else right,
        )

    def of_batch(self, entries: int) -> AttentionRecord:
        """Return the record of so many entries of the batch.

        Example:
            >>> strides = (8, 8, 8, 1)
            >>> record = AttentionRecord(6, 9, 9, 1, 1, 8, 8, "float16", *(strides,) * 3, 1.0, "padding", (6, 1))
            >>> record.of_batch(2).batch, record.of_batch(2).mask
            (2, (2, 1))
        """
        mask, bias = (pair if pair is None or pair[0] == 1 else (entries, pair[1]) for pair in (self.mask, self.bias))
        return replace(self, batch=entries, mask=mask, bias=bias)

    def __str__(self) -> str:
        q = f"[{self.batch}, {self.queries}, {self.heads}, {self.depth}]"
        text = f"O[{self.batch}, {self.queries}, {self.heads}, {self.value_depth}] = Q{q}"
        text += f" K[{self.batch}, {self.keys}, {self.groups}, {self.depth}] {self.dtype}, {self.mask_type}"
        text += f" mask {self.mask}" if self.mask else ""
        text += f", window {self.window}" if self.window else ""
        text += f", scale {self.scale:g}" + (f", dropout {self.dropout:g}" if self.dropout else "")
        text += f", bias {self.bias}" if self.bias else ""
        text += (", sink" if self.sink else "") + (", lengths" if self.lengths else "")
        return text + ("" if self.stats else ", forward only")


def record_of(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask_type: str = "no_mask",
    mask: Any | None = None,
    window: tuple[int, int] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    stats: bool = True,
    deterministic: bool = True,
    bottom_right: bool = True,
    terms: Terms = NO_TERMS,
) -> AttentionRecord:
    """Return the record of an attention over raw arrays; nothing is run or copied.

    Args:
        q: [B, Lq, H, D], any strides; with starts of its entries [T, H, D].
        k: [B, Lk, G, D] or [Tk, G, D].
        v: [B, Lk, G, Dv] or [Tk, G, Dv].
        mask_type: a key of `nvfp.kernels.attention.MASK_TYPES`.
        mask: bool, True = masked out, broadcastable to [B, H, Lq, Lk]; required by the padding types and by
            ``"arbitrary"``, refused by the others and with lengths.
        window: (left, right), -1 unlimited.
        scale: default ``D ** -0.5``.
        dropout: probability.
        stats: whether a backward will follow.
        deterministic: False lets cuDNN add gradients of Q in any order, with a workspace linear in the lengths.
        bottom_right: corner of a window where the mask type is not causal.
        terms: bias, sink and lengths.

    Raises:
        ArgumentError: a mask type that is none, or a mask where none belongs, or none where one does.
        ShapeError: a mask that does not broadcast.
    """
    check_choice("attention", "mask_type", mask_type, tuple(MASK_TYPES))
    lengths = terms.lengths
    (heads, depth), (groups, value_depth) = q.shape[-2:], v.shape[-2:]
    if lengths is not None and lengths.q_starts is not None:
        batch, (queries, keys) = lengths.queries.shape[0], lengths.most
    else:
        batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    wanted = lengths is None and (mask_type == "arbitrary" or mask_type.startswith("padding"))
    if wanted != (mask is not None):
        got = f"{mask_type!r} {'without a mask' if mask is None else 'with a mask'}"
        raise ArgumentError(message("attention", "a mask with padding and arbitrary types only", got, "change either"))
    scale = max(depth, 1) ** -0.5 if scale is None else float(scale)
    return AttentionRecord(
        batch, queries, keys, heads, groups, depth, value_depth, q.dtype.name,
        placed_strides(q, queries), placed_strides(k, keys), placed_strides(v, keys), scale, mask_type,
        None if mask is None else mask_extents(mask.shape, (batch, heads, queries, keys)),
        window, float(dropout), stats, deterministic, bottom_right,
        None if terms.bias is None else (terms.bias.shape[0], terms.bias.shape[1]), stats and terms.bias is not None,
        terms.sink is not None, lengths is not None, lengths is not None and lengths.queries is lengths.keys,
    )  # fmt: skip


def mask_extents(shape: tuple[int, ...], full: tuple[int, int, int, int]) -> tuple[int, int]:
    """Return the extents of a mask's batch and head axes, each 1 or full.

    Example:
        >>> mask_extents((2, 1, 1, 9), (2, 4, 7, 9)), mask_extents((7, 9), (2, 4, 7, 9))
        ((2, 1), (1, 1))
    """
    padded = (1,) * (4 - len(shape)) + shape
    if len(padded) != 4 or any(n not in (1, m) for n, m in zip(padded, full)):
        raise ShapeError(message("attention", f"a mask that broadcasts to {full}", shape, "reshape it"))
    return padded[0], padded[1]


def placed_strides(x: Any, length: int) -> Strides:
    """Return the strides in which cuDNN sees an operand: of a packed one [T, H, D] with a batch axis of its own.

    Where its entries lie is said by offsets; so the stride of that axis does not depend on T, and neither do plans.
    """
    if x.ndim == 4:
        return seen_strides(x)
    full = Described((1, *x.shape), x.dtype) if isinstance(x, Described) else x[None]
    _, row, head, element = seen_strides(full)
    return max(length, 1) * row, row, head, element


def contiguous(shape: tuple[int, ...]) -> Strides:
    """Return the C-contiguous strides of a 4-d shape in elements.

    Example:
        >>> contiguous((2, 128, 4, 64))
        (32768, 256, 64, 1)
    """
    _, n, h, d = shape
    return n * h * d, h * d, d, 1


def addressable(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, at: int) -> bool:
    """Whether cuDNN can read an array [B, L, H, D] where it lies.

    Args:
        shape: of the array.
        strides: in elements.
        itemsize: bytes of an element.
        at: its address.

    Returns:
        True if the last axis is contiguous, no two elements share memory, and address and other strides are
        multiples of `UNIT` bytes.

    Example:
        >>> shape = (2, 128, 4, 64)
        >>> addressable(shape, (98304, 768, 64, 1), 2, 256), addressable(shape, (0, 768, 64, 1), 2, 256)
        (True, False)
    """
    if at % UNIT or strides[3] != 1 or any(s <= 0 or s * itemsize % UNIT for s in strides[:3]):
        return False
    reach = 1  # elements that the axes so far span: the next stride must step over them
    for n, s in sorted(zip(shape, strides), key=lambda pair: pair[1]):
        if n > 1 and s < reach:
            return False
        reach += (n - 1) * s
    return True


def own_strides(x: Any) -> Strides | None:
    """Return an array's strides in elements (of axes of length 1: the contiguous ones), None where there are none.

    Example:
        >>> import numpy as np
        >>> own_strides(np.zeros((1, 8, 4, 64), np.float16)[:, ::2])
        (1024, 512, 64, 1)
    """
    found = element_strides(x.strides, x.dtype.itemsize)
    if found is None:
        return None
    if 1 in x.shape:  # the stride of one element says nothing
        found = tuple(p if n == 1 else s for n, s, p in zip(x.shape, found, contiguous(x.shape)))
    return found[0], found[1], found[2], found[3]


def seen_strides(x: Any) -> Strides:
    """Return the strides in elements in which cuDNN sees an array: its own, or those of a contiguous copy."""
    own = own_strides(x)
    if own is not None and addressable(x.shape, own, x.dtype.itemsize, address(x)):
        return own
    return contiguous(x.shape)
