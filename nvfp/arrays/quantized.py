"""`QuantizedArray`: codes, scales, format and axis in one immutable object."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from nvfp.arrays import blocks
from nvfp.arrays.array import Array, wrap
from nvfp.arrays.parts import operand_of, shown
from nvfp.arrays.printing import format_values
from nvfp.arrays.registry import nf
from nvfp.arrays.storage import QuantizedStorage, Storage
from nvfp.autograd.tape import Leaf, Node
from nvfp.dtypes.dense import float32, is_narrow
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import DTypeError, message
from nvfp.kernels.operand import Operand


class QuantizedArray(Array):
    """An array of a quantized dtype. Make one with ``x.astype(nf.mxfp8)``, `nf.quantize` or `from_parts`.

    Values are ``code * scale[block] * tensor_scale``. Operations that move whole blocks (transpose,
    slices on block borders, indices, flip, roll and repeat on other axes, reshape that keeps the block
    axis, concat, stack and tile of whole blocks, broadcast) act on codes and scales, so
    ``asarray(op(q)) == op(asarray(q))`` exactly; one that would cut a block raises `BlockIndexError` or
    `ShapeError`. Products (`nf.matmul`) compute on the codes. Every other function computes on the
    dequantized values and gives a dense result. Immutable.

    Attributes:
        dtype: the `QuantDType`.
        operand: codes and scales as kernels see them.
        axis: where blocks lie.

    Example:
        >>> import nvfp as nf
        >>> q = nf.ones((4, 64), device="cpu").astype(nf.mxfp8)
        >>> q.shape, q.codes.shape, q.scale.shape, q.axis, q[1:3, 32:].shape, q.nbytes
        ((4, 64), (4, 64), (4, 2), 1, (2, 32), 264)
    """

    __slots__ = ()

    @property
    def operand(self) -> Operand:
        """The plain record of codes and scales that kernels take."""
        return self.raw  # type: ignore[no-any-return]

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes, in elements."""
        return self.operand.shape

    @property
    def axis(self) -> int:
        """The axis along which blocks lie and 4-bit codes are packed, counted from the front."""
        return self.operand.axis

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.operand.nbytes

    @property
    def itemsize(self) -> int:
        """Not defined: raises, as elements share bytes and scales."""
        raise DTypeError(
            message("itemsize", "a dense array", self.dtype, "use q.nbytes or nf.finfo(q.dtype).bits_per_value")
        )

    @property
    def codes(self) -> Array:
        """The codes in logical axis order: the element dtype, or uint8 with two 4-bit codes per byte along `axis`."""
        q = blocks.plain(self.operand)
        dtype = shown(q.format.element)
        return wrap(q.codes, dtype) if is_narrow(dtype) else wrap(q.codes.view(dtype))

    @property
    def scale(self) -> Array:
        """The block scales (decode factors) in logical axis order; shape () for one per tensor."""
        q = blocks.plain(self.operand)
        dtype = q.format.scale.dtype
        return wrap(q.scale, dtype) if is_narrow(dtype) else wrap(q.scale.view(dtype))

    @property
    def tensor_scale(self) -> Array | None:
        """The decode factor of the whole tensor (of each row: the shape without `axis`), or None without one."""
        word = blocks.plain(self.operand).tensor_scale
        return None if word is None else wrap(word)

    @staticmethod
    def from_parts(
        codes: Any,
        scale: Any,
        dtype: Any,
        *,
        axis: int = -1,
        tensor_scale: Any = None,
        shape: tuple[int, ...] | None = None,
    ) -> QuantizedArray:
        """Make a quantized array of given codes and scales, in logical axis order.

        Args:
            codes: uint8 codes (or the element dtype); 4-bit codes two per byte along ``axis``, low nibble first.
                Any of the three may be another library's tensor (DLPack), torch's ``float4_e2m1fn_x2`` too.
            scale: block scales in the scale dtype or as its codes (uint8, uint16; float32 for float32 scales);
                decode factors.
            dtype: a quantized dtype.
            axis: the block axis.
            tensor_scale: float32 decode factor, for formats that have one (one per row: the shape without ``axis``).
            shape: in elements; by default read from ``codes`` (packed: an even length).

        Raises:
            ShapeError: shapes that do not belong together.
            DTypeError: dtypes that are not the format's, or a tensor scale missing or too many.
            DeviceError: Arrays on different devices.
            ArgumentError: a negative or infinite scale, NaN for formats without NaN blocks, codes wider than the
                element (read on the CPU; on CUDA only with ``NVFP_DEBUG=1``, as reading waits for the GPU).

        Numerics:
            No bit is changed: ``from_parts(q.codes, q.scale, q.dtype, axis=q.axis, tensor_scale=q.tensor_scale,
            shape=q.shape)`` is ``q``. Memory is shared with what needs no copy.

        Example:
            >>> import nvfp as nf
            >>> q = nf.ones((2, 32), device="cpu").astype(nf.nvfp4)
            >>> p = nf.QuantizedArray.from_parts(q.codes, q.scale, q.dtype, tensor_scale=q.tensor_scale)
            >>> nf.array_equal(p, q)
            True
        """
        operand = operand_of(codes, scale, dtype, axis=axis, tensor_scale=tensor_scale, shape=shape)
        return quantized(operand)

    def requantize(self, dtype: Any = None, *, axis: int | None = None, **options: Any) -> QuantizedArray:
        """Quantize the values anew: another block axis, another quantized dtype; lossy. See `nf.requantize`."""
        again: Any = nf.requantize(self, dtype, axis=axis, **options)
        return again  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        q = self.operand
        block = str(q.format.block).replace(" ", "")
        extras = [
            f"dtype={q.format}",
            "one scale" if q.format.block is None else f"block={block} on axis {q.axis}",
        ]
        extras += [f"device='{self.device}'"] if self.device.type != "cpu" else []
        extras += ["requires_grad=True"] if self.requires_grad else []
        name = "nf.QuantizedArray("
        return f"{name}{', '.join((format_values(np.asarray(self), name), *extras))})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(
                message("asarray", "copy=None or True for a quantized array", "copy=False", "let it dequantize")
            )
        values: np.ndarray = nf.asnumpy(self)  # type: ignore[assignment]
        return values if dtype is None else values.astype(dtype)

    def __dlpack__(self, **kwargs: Any) -> NoReturn:
        do = "export q.codes and q.scale"
        raise BufferError(message("dlpack", "one buffer", f"{self.dtype} in two or three", do))

    def get_high_precision_init_val(self) -> Array | None:
        """The values that a quantized parameter was made from, on the CPU, where they have been kept (TE's name).

        See `nf.quantized_model_init`; None for other arrays, and after `clear_high_precision_init_val`.
        """
        return getattr(self._storage, "initial", None)

    def clear_high_precision_init_val(self) -> None:
        """Forget the first values of a quantized parameter."""
        if self.get_high_precision_init_val() is not None:
            self._storage.initial = None  # type: ignore[union-attr]

    def __reduce__(self) -> tuple[Any, ...]:
        q = blocks.plain(self.operand)
        raws = (q.codes, q.scale, q.tensor_scale)
        parts = tuple(None if raw is None else np.array(nf.asnumpy(wrap(raw)), order="C") for raw in raws)
        kept = (self._storage.dtype, self._storage.amax_epsilon) if type(self._storage) is QuantizedStorage else None
        flags = (self.is_parameter, type(self._node) is Leaf, kept)
        return _unpickled, (parts, q.format, q.shape, q.axis, str(self.device), *flags)

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        self._refuse("setitem")

    def _assign(self, value: Array, op: str) -> NoReturn:
        self._refuse(op)

    def _refuse(self, op: str) -> NoReturn:
        do = "write into q.astype(nf.float32) and quantize again"
        raise DTypeError(message(op, "a dense array", f"{self.dtype}, which is immutable", do))

    def _scalar(self, op: str) -> NoReturn:
        raise DTypeError(message(op, "a dense 0-d array", self.dtype, "dequantize with q.astype(nf.float32) first"))

    def _real(self, op: str) -> NoReturn:
        self._scalar(op)

    def __index__(self) -> NoReturn:
        self._scalar("index")

    @property
    def _differentiable(self) -> bool:
        return False  # a constant, or the straight-through result of a dense array

    @property
    def _trainable(self) -> bool:
        return type(self._storage) is QuantizedStorage  # a parameter of `nf.quantized_model_init`

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedArray:
        make, parts = self.__reduce__()
        made: QuantizedArray = make(*parts)
        memo[id(self)] = made
        return made

    def _own(self) -> QuantizedArray:
        copied: Any = nf.copy(self.detach())
        return copied  # type: ignore[no-any-return]

    def _on(self, function: Callable[[Any], Any]) -> Operand:
        """The operand with ``function`` applied to each of its raw arrays."""
        q = self.operand
        word = None if q.tensor_scale is None else function(q.tensor_scale)
        return dataclasses.replace(
            q, codes=function(q.codes), scale=function(q.scale), tensor_scale=word, padded_rows=0
        )


def quantized(operand: Operand, node: Node | Leaf | None = None, storage: Storage | None = None) -> QuantizedArray:
    """Return a QuantizedArray over an operand that is unrotated and has plain scales.

    Args:
        operand: codes and scales.
        node: what made it.
        storage: of the array whose memory it may share; None for memory of its own.
    """
    x = object.__new__(QuantizedArray)
    x.raw, x.dtype, x._storage = operand, operand.format, storage
    x._node, x._index, x.is_parameter = node, 0, False
    return x


def dense_dtype(x: Array) -> Any:
    """Return the dtype that gradients of an Array have: its own, or the one a quantized parameter was made from.

    Args:
        x: dense, or quantized (float32 where it does not say).
    """
    if not isinstance(x, QuantizedArray):
        return x.dtype
    return getattr(x._storage, "dtype", float32)


def _unpickled(
    parts: tuple[Any, Any, Any],
    format: QuantDType,
    shape: tuple[int, ...],
    axis: int,
    device: str,
    is_parameter: bool,
    requires_grad: bool = False,
    kept: tuple[Any, float] | None = None,
) -> Array:
    codes, scale, word = (None if part is None else nf.asarray(part, device=device).raw for part in parts)
    operand = Operand(codes, scale, word, format, shape, axis)
    storage = None if kept is None else QuantizedStorage(operand, *kept)
    x = quantized(operand, Leaf(shape) if requires_grad else None, storage)
    x.is_parameter = is_parameter
    return x
