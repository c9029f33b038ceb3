"""The last layer and its loss in one: softmax cross-entropy of ``x W^T + b``, in chunks of rows.

Logits exist for one chunk at a time. Forward computes a chunk's logits and losses, turns the logits in place into
their gradient, and adds up what x, W and b get from it; backward then only multiplies by the gradient of the loss.
So the three products run once each, as without chunks. With ``recompute`` (and with ``reduction="none"``, where the
factor differs from row to row) forward keeps the log-sum-exp alone and backward makes the logits again: a third more
arithmetic, and no float32 sums [T, K] and [V, K] wait between the two.

Forward and backward of 16384 tokens, V = 50304, bfloat16, on an H200: time, and peak memory above weights and input.

                                          K = 768                 K = 2048
    logits and loss apart                 6.6 ms, 3046 MiB        15.8 ms, 2884 MiB
    in chunks of 64 MiB                   10.2 ms, 195 MiB        24.0 ms, 521 MiB
    in chunks of 256 MiB                  7.9 ms, 294 MiB         16.6 ms, 521 MiB
    in chunks of 512 MiB (the default)    7.0 ms, 491 MiB         16.8 ms, 654 MiB
    256 MiB with ``recompute``            9.8 ms, 294 MiB         23.4 ms, 521 MiB

The peak, in backward, is the same with and without ``recompute`` (what waits until then is 195 and 521 MiB without, and
nothing with it), so the gradient is made in forward unless asked otherwise. Each chunk reads and writes the float32
sums of W once: 8 V K bytes beside 6 V K operations per row, so a chunk should have some thousand rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.creation import empty_raw
from nvfp.arrays.functions._common import array
from nvfp.autograd.tape import needs_grad, record
from nvfp.device import Device
from nvfp.errors import ArgumentError, DeviceError, DTypeError, ShapeError, message
from nvfp.kernels._dense import contiguous, indices
from nvfp.kernels.bias_grad import bias_grad
from nvfp.kernels.cast import cast
from nvfp.kernels.cross_entropy import cross_entropy_reduce, cross_entropy_rows, cross_entropy_vjp
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.gemm import gemm
from nvfp.nn.functional._checks import check_operands
from nvfp.nn.functional._matrix import matrix
from nvfp.recipes.context import current_region

CHUNK_BYTES = 1 << 29
_OP = "linear_cross_entropy"
_FLOAT32 = np.dtype(np.float32)


def linear_cross_entropy(
    x: Array,
    weight: Array,
    targets: Array,
    bias: Array | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    chunk_bytes: int = CHUNK_BYTES,
    recompute: bool = False,
) -> Array:
    """Return ``cross_entropy(x W^T + b, targets)`` without ever holding all logits.

    Args:
        x: [..., K], float32/bfloat16/float16.
        weight: [V, K], of x's dtype (under `nf.autocast` any dense one: it is cast to x's).
        targets: integers [...], as for `nf.nn.cross_entropy`.
        bias: [V] or None.
        ignore_index: rows with this target give 0 and no gradient.
        label_smoothing: s in 0..1.
        reduction: ``"mean"`` over the rows that count, ``"sum"`` or ``"none"``.
        chunk_bytes: most bytes that the logits of a chunk may take, at least one row. A chunk has as many rows as
            fit, rounded down to a power of two.
        recompute: make the logits again in backward, see the head of this file; same bits.

    Returns:
        float32: a scalar, or [...] for ``"none"``. If every target is ignored the mean is 0.

    Raises:
        DTypeError: x or weight of another dtype, dtypes that differ outside autocast, targets that are no integers.
        ShapeError: shapes that do not fit, or no class.
        ArgumentError: ``chunk_bytes`` that is no positive int, or what `nf.nn.cross_entropy` refuses.
        DeviceError: arrays on different devices.
        IndexError: on the CPU, a target out of range. On CUDA its loss is NaN and it gets no gradient.

    Numerics: the head computes in the dtype of x, whatever recipe is in force. Logits are rounded to it once, as those
        of `linear`; losses as `nf.nn.cross_entropy`. The gradient of the logits is rounded to x's dtype before its
        factor (dloss, over the number of rows for ``"mean"``) comes on, so that small factors lose nothing in float16;
        sums over all chunks are float32, in order, rounded once after the factor. Repeats its bits; another chunk
        size may give others.

    Example:
        >>> import nvfp as nf
        >>> from nvfp.nn.functional.linear_cross_entropy import linear_cross_entropy
        >>> x, w = nf.ones((3, 4), device="cpu"), nf.zeros((2, 4), device="cpu")
        >>> round(linear_cross_entropy(x, w, nf.asarray([0, 1, -100], device="cpu")).item(), 6)
        0.693147
    """
    x, weight, targets = (array(_OP, a) for a in (x, weight, targets))
    bias = None if bias is None else array(_OP, bias)
    _check(x, weight, targets, bias, chunk_bytes)
    dense = weight.raw if weight.dtype == x.dtype else cast(weight.raw, x.raw.dtype)
    problem = _Problem(
        matrix(x.raw), dense, indices(_OP, "targets", targets.raw).reshape(-1), None if bias is None else bias.raw,
        ignore_index, label_smoothing, chunk_bytes,
    )  # fmt: skip
    inputs = x, weight, bias
    needs = tuple(needs_grad(a) for a in inputs)
    each = reduction == "none"
    at_once = any(needs) and not each and not recompute
    losses, lse, sums = problem.forward(needs if at_once else (False, False, False))
    loss, factor = cross_entropy_reduce(losses, problem.ids, ignore_index=ignore_index, reduction=reduction)
    forms = tuple(None if a is None else (a.shape, a.raw.dtype) for a in inputs)
    if sums is not None:  # x and W have done their part
        node = record(_OP, inputs, _scaled_vjp, saved=(sums, factor, forms))
    else:
        node = record(_OP, inputs, _again_vjp, saved=(problem, lse, None if each else factor, forms, *inputs, targets))
    return wrap(loss.reshape(targets.shape) if each else loss, node=node)


@dataclass(slots=True)
class _Sums:
    """Gradients that grow chunk by chunk: dx [T, K], dW [V, K] and db [V] in float32, each or None."""

    dx: Any
    dw: Any
    db: Any

    def add(self, dlogits: Any, x: Any, weight: Any, first: int, last: int) -> None:
        """Add what the rows ``first .. last - 1`` give."""
        if self.dx is not None:
            gemm(dlogits, weight, out=self.dx[first:last])
        if self.dw is not None:
            gemm(dlogits.T, x[first:last], out=self.dw, accumulate=first > 0)
        if self.db is not None and first == 0:
            bias_grad(dlogits, dtype=_FLOAT32, out=self.db)
        elif self.db is not None:
            elementwise("add", self.db, bias_grad(dlogits, dtype=_FLOAT32), out=self.db)


@dataclass(slots=True)
class _Problem:
    """The raw arrays of one call: x [T, K], W [V, K], targets [T]."""

    x: Any
    weight: Any
    ids: Any
    bias: Any
    ignore: int
    smoothing: float
    chunk_bytes: int

    @property
    def device(self) -> Device:
        return wrap(self.x).device

    def chunks(self) -> list[tuple[int, int]]:
        """(first row, behind the last) of each chunk; at least one, which writes what is summed."""
        rows = len(self.x)
        fit = max(1, self.chunk_bytes // (self.weight.shape[0] * self.x.dtype.itemsize))
        step = 1 << (fit.bit_length() - 1)
        return [(a, min(a + step, rows)) for a in range(0, max(1, rows), step)]

    def empty(self, *shape: int, dtype: np.dtype = _FLOAT32) -> Any:
        return empty_raw(shape, dtype, self.device)

    def sums(self, needs: tuple[bool, ...]) -> _Sums | None:
        """Room for the gradients that are wanted; None where none is."""
        if not any(needs):
            return None
        shapes = self.x.shape, self.weight.shape, self.weight.shape[:1]
        return _Sums(*(self.empty(*shape) if needed else None for shape, needed in zip(shapes, needs, strict=True)))

    def forward(self, needs: tuple[bool, ...]) -> tuple[Any, Any, _Sums | None]:
        """Losses and log-sum-exp of all rows; with ``needs`` also the gradients of the sum of the losses."""
        rows = len(self.x)
        losses, lse, sums = self.empty(rows), self.empty(rows), self.sums(needs)
        one = None if sums is None else self.one()
        for first, last, logits in self.logits():
            ids, part = self.ids[first:last], lse[first:last]
            cross_entropy_rows(logits, ids, losses[first:last], part, **self.options)
            if sums is not None:
                self.turn(logits, ids, part, one, one)
                sums.add(logits, self.x, self.weight, first, last)
        return losses, lse, sums

    def backward(self, lse: Any, each: Any, needs: tuple[bool, ...]) -> _Sums:
        """The gradients from logits that are made again; ``each``: factor of every row, or None."""
        sums, one = self.sums(needs), self.one()
        assert sums is not None, "a rule runs only where a gradient is wanted"
        for first, last, logits in self.logits():
            factor = one if each is None else each[first:last]
            self.turn(logits, self.ids[first:last], lse[first:last], one, factor)
            sums.add(logits, self.x, self.weight, first, last)
        return sums

    def logits(self) -> Any:
        """Yield (first row, behind the last, logits) of each chunk, all in the same memory."""
        room = None
        for first, last in self.chunks():
            room = self.empty(last - first, self.weight.shape[0], dtype=self.x.dtype) if room is None else room
            yield first, last, gemm(self.x[first:last], self.weight.T, bias=self.bias, out=room[: last - first])

    @property
    def options(self) -> dict[str, Any]:
        return {"ignore_index": self.ignore, "label_smoothing": self.smoothing}

    def turn(self, logits: Any, ids: Any, lse: Any, weight: Any, dloss: Any) -> None:
        """Logits to their gradient, in place."""
        cross_entropy_vjp(logits, ids, lse, weight, dloss, **self.options, out=logits)

    def one(self) -> Any:
        """The word 1 on the device."""
        return cross_entropy_reduce(self.empty(0), self.ids[:0], reduction="none")[1]


def _scaled_vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    sums, factor, forms = saved
    return _finished(sums, elementwise("multiply", dy.raw, factor), forms, needs)


def _again_vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    problem, lse, factor, forms, *_ = saved
    if factor is not None:
        return _finished(problem.backward(lse, None, needs), elementwise("multiply", dy.raw, factor), forms, needs)
    each = contiguous(dy.raw).reshape(-1)
    return _finished(problem.backward(lse, each, needs), None, forms, needs)


def _finished(sums: _Sums, scale: Any, forms: tuple[Any, ...], needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    """The sums times the word ``scale`` (None: as they are), in the inputs' dtypes."""
    found: list[Array | None] = []
    for grown, form, needed in zip((sums.dx, sums.dw, sums.db), forms, needs, strict=True):
        if not needed:
            found.append(None)
            continue
        shape, dtype = form
        y = cast(grown, dtype) if scale is None else elementwise("multiply", grown, scale, dtype=dtype)
        found.append(wrap(y.reshape(shape)))
    return tuple(found)


def _check(x: Array, weight: Array, targets: Array, bias: Array | None, chunk_bytes: int) -> None:
    check_operands(x, weight, bias, quantized=current_region() is not None)
    if x.shape[:-1] != targets.shape:
        got = f"{x.shape} and {targets.shape}"
        raise ShapeError(message(_OP, "x [..., K] and targets [...]", got, "drop or add axes"))
    if weight.shape[0] == 0:
        raise ShapeError(message(_OP, "at least one class", weight.shape, "pass a weight [V, K] with V > 0"))
    if x.raw.dtype.itemsize > 4:
        raise DTypeError(message(_OP, "float32, bfloat16 or float16", x.dtype, "cast x with .astype first"))
    if isinstance(chunk_bytes, bool) or not isinstance(chunk_bytes, int | np.integer) or chunk_bytes < 1:
        do = "pass a positive int, e.g. 1 << 29"
        raise ArgumentError(message(_OP, "chunk_bytes in whole bytes", repr(chunk_bytes), do))
    for name, other in (("weight", weight), ("targets", targets), ("bias", bias)):
        if other is not None and other.device != x.device:
            do = "move one with .to_device(...)"
            raise DeviceError(message(_OP, f"{name} on {x.device}", other.device, do))
