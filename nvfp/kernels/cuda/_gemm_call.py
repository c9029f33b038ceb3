"""`Call`: one kind of GEMM call, decided; it feeds, points, launches, and brings a staged result home."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from nvfp.kernels._gemm import Tail
from nvfp.kernels.cast import cast
from nvfp.kernels.cublaslt import typemap as tm
from nvfp.kernels.cublaslt.layout import Ints
from nvfp.kernels.cublaslt.plan import Plan, Pointers
from nvfp.kernels.cuda._memory import address
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.gemm import tensor_factors
from nvfp.kernels.operand import Operand

_UINT8, _FLOAT32 = np.dtype(np.uint8), np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class Call:
    """One kind of call, decided.

    Attributes:
        plan: what runs.
        make_x: brings the left operand into memory that cuBLASLt can address; None: it lies so already.
        make_w: likewise the right one.
        native: whether the operands hand over their scales.
        shape: of the result.
        dtype: of the result.
        columns: that are computed; those beyond the result's are dropped.
        staged: shape and dtype of a buffer that takes D in the result's place, or None.
        offsets: bytes from the start of x, w, y, one triple for each matmul.
        bias: dtype that the bias must be copied to for the epilogue; None: it is read where it lies, or not at all.
        accumulate: whether the result is added to.
        seed: whether the bias is put into the result beforehand.
        device_alpha: whether there is an alpha or a factor that is one per tensor.
        scales: native operands in blocks: what brings the scales of left and right operand into cuBLASLt's layout.
        kinds: keeps the formats alive whose identities stand in the key.
    """

    plan: Plan
    make_x: Callable[[Any], Any] | None
    make_w: Callable[[Any], Any] | None
    native: bool
    shape: Ints
    dtype: np.dtype
    columns: int
    staged: tuple[Ints, np.dtype] | None
    offsets: tuple[Ints, ...]
    bias: np.dtype | None
    accumulate: bool
    seed: bool
    device_alpha: bool
    scales: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None
    kinds: tuple[tm.Kind, tm.Kind]

    @property
    def plain(self) -> bool:
        """Whether the library reads and writes all memory where it lies, in one launch."""
        made = (self.make_x, self.make_w, self.staged, self.bias) != (None,) * 4
        return not (made or self.seed or self.device_alpha) and self.offsets == ((0, 0, 0),)

    def launch_plain(self, a: Any, b: Any, out: Any, at_x: int, at_w: int, at_bias: int, at_y: int) -> Any:
        """What a `plain` call without a tail comes to."""
        if out is None:
            out = cp.ndarray(self.shape, self.dtype)
            at_y = address(out)
        execute = self.plan.execute
        stream: int = cp.cuda.get_current_stream().ptr
        if not self.native:
            execute(at_x, at_w, at_y, stream, 0, at_bias)
        elif self.scales is None:
            execute(at_x, at_w, at_y, stream, 0, at_bias, address(a.scale), address(b.scale))
        else:
            x, w = self.scales[0](a), self.scales[1](b)  # named: their memory is held until the launch
            execute(at_x, at_w, at_y, stream, 0, at_bias, address(x), address(w))
        return out

    def __call__(
        self, a: Any, b: Any, bias: Any, out: Any, alpha: Any, at: tuple[int, int, int, int], tail: Tail | None = None
    ) -> Any:
        """Feed, launch, and bring a staged result home.

        Args:
            a: left operand.
            b: right operand.
            bias: or None.
            out: or None.
            alpha: or None.
            at: addresses of a, b, bias, out; 0 for none.
            tail: what the epilogue reads and writes.
        """
        at_x, at_w, at_bias, at_y = at
        # Arrays made here keep their names, and so their memory, until everything is enqueued.
        x = a if self.make_x is None else self.make_x(a)
        w = b if self.make_w is None else self.make_w(b)
        if x is not a:
            at_x = address(x)
        if w is not b:
            at_w = address(w)
        y, target, word = out, None, None
        if y is None:
            fp8 = tail is not None and tail.out_format is not None
            y = cp.ndarray(self.shape, _UINT8 if fp8 else self.dtype)
            at_y = address(y)
        if self.staged is not None or self.seed:
            target = self._prepared(y, bias)
            at_y = address(target)
        if self.device_alpha:
            word = self._alpha(a, b, alpha)
        if self.bias is not None:
            at_bias = address(bias := self._copied(bias, self.bias))
        at_alpha = 0 if word is None else address(word)
        if self.scales is not None:
            scales = self.scales[0](a), self.scales[1](b)
            x_scale, w_scale = address(scales[0]), address(scales[1])
        else:
            x_scale, w_scale = (address(a.scale), address(b.scale)) if self.native else (0, 0)
        at_bias = 0 if self.seed else at_bias
        stream: int = cp.cuda.get_current_stream().ptr
        if tail is not None:
            amax = None if tail.amax_out is None else cp.zeros((), _FLOAT32)
            more = _pointers(tail, amax)
            self.plan.execute(at_x, at_w, at_y, stream, at_alpha, at_bias, x_scale, w_scale, more)
            return y if tail.out_format is None else _operand(y, tail, amax)
        for dx, dw, dy in self.offsets:
            self.plan.execute(at_x + dx, at_w + dw, at_y + dy, stream, at_alpha, at_bias, x_scale, w_scale)
        if self.staged is not None:
            cast(target, self.dtype, out=y)
        return y

    def _prepared(self, y: Any, bias: Any) -> Any:
        """Return the result's columns of the memory that cuBLASLt writes, holding what the product is added to."""
        if self.staged is not None:
            read = self.accumulate or self.seed  # then dropped rows and columns must hold numbers, too
            buffer = (cp.zeros if read and self.staged[0] != self.shape else cp.ndarray)(*self.staged)
            target = buffer[..., : self.shape[-2], : self.shape[-1]]
            if self.accumulate:
                cast(y, target.dtype, out=target)
        else:
            target = y
        if self.seed and self.accumulate:
            elementwise("add", target, bias, dtype=target.dtype, out=target)
        elif self.seed:
            cast(cp.broadcast_to(bias, self.shape), target.dtype, out=target)
        return target

    def _alpha(self, a: Any, b: Any, alpha: Any) -> Any:
        """Return the product of alpha and the per-tensor factors as one word of the compute dtype."""
        words = () if alpha is None else (alpha,)
        for side in (a, b):
            if not self.native:
                words += tensor_factors(side)
            elif side.tensor_scale is not None:
                words += (side.tensor_scale,)
        compute = tm.NAMED[self.plan.problem.compute]
        word = reduce(lambda p, q: elementwise("multiply", p, q, dtype=compute), words)
        return word if word.dtype == compute else cast(word, compute)

    def _copied(self, bias: Any, dtype: np.dtype) -> Any:
        """Return the bias as the epilogue reads it, zeros behind it up to the columns that are computed."""
        if self.columns == bias.size:
            return cast(bias, dtype)
        padded = cp.zeros(self.columns, dtype)
        cast(bias, dtype, out=padded[: bias.size])
        return padded


def _pointers(tail: Tail, amax: Any | None) -> Pointers:
    """What the epilogue reads and writes besides the bias."""
    arrays = ((tm.AUX_POINTER, tail.aux), (tm.D_SCALE_POINTER, tail.out_scale), (tm.AMAX_D_POINTER, amax))
    return tuple((attribute, address(array)) for attribute, array in arrays if array is not None)


def _operand(codes: Any, tail: Tail, amax: Any | None) -> Operand:
    """The FP8 result with the inverse of the scale it was multiplied by; its amax goes into the word that asked."""
    assert tail.out_format is not None
    if amax is not None:
        elementwise("maximum", tail.amax_out, amax, out=tail.amax_out)
    scale = elementwise("reciprocal", tail.out_scale)
    shape = codes.shape
    return Operand(codes, scale, None, tail.out_format, shape, len(shape) - 1)
