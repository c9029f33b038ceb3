"""`QuantizedArray`: codes, scales, format and axis in one immutable object."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from nvfp.arrays import blocks
from nvfp.arrays.array import Array, wrap
from nvfp.arrays.dlpack import take_in_codes
from nvfp.arrays.printing import format_values
from nvfp.arrays.registry import nf
from nvfp.arrays.storage import Storage
from nvfp.autograd.tape import Leaf, Node
from nvfp.dtypes.dense import as_dtype, float32, is_narrow
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import DTypeError, ShapeError, message
from nvfp.kernels._check import axis_index
from nvfp.kernels.operand import Operand, codes_shape, scale_shape


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
        dtype = _shown(q.format.element)
        return wrap(q.codes, dtype) if is_narrow(dtype) else wrap(q.codes.view(dtype))

    @property
    def scale(self) -> Array:
        """The block scales (decode factors) in logical axis order; shape () for one per tensor."""
        q = blocks.plain(self.operand)
        dtype = q.format.scale.dtype
        return wrap(q.scale, dtype) if is_narrow(dtype) else wrap(q.scale.view(dtype))

    @property
    def tensor_scale(self) -> Array | None:
        """The decode factor of the whole tensor (or one per row, in logical order); None for formats without one."""
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

        Example:
            >>> import nvfp as nf
            >>> q = nf.ones((2, 32), device="cpu").astype(nf.nvfp4)
            >>> p = nf.QuantizedArray.from_parts(q.codes, q.scale, q.dtype, tensor_scale=q.tensor_scale)
            >>> nf.array_equal(p, q)
            True
        """
        format = as_dtype(dtype)
        if not isinstance(format, QuantDType):
            raise DTypeError(message("from_parts", "a quantized dtype", format, "use nf.asarray for dense arrays"))
        codes = _codes(codes, format)
        raw_codes = _part("codes", codes, _shown(format.element), np.dtype(np.uint8))
        kept = float32 if format.scale_family == "float32" else format.scale.storage
        raw_scale = _part("scale", nf.asarray(scale, device=codes.device), format.scale.dtype, kept)
        if (tensor_scale is None) == format.tensor_scale:
            expected = "a tensor_scale" if format.tensor_scale else "no tensor_scale"
            raise DTypeError(
                message("from_parts", f"{expected} for {format}", tensor_scale, "pass what the format has")
            )
        word = None if tensor_scale is None else nf.asarray(tensor_scale, dtype=float32, device=codes.device).raw
        ndim = raw_codes.ndim
        if ndim == 0 and (format.block is not None or format.element.packed):
            raise ShapeError(message("from_parts", f"codes with an axis for {format}", "shape ()", "reshape them"))
        axis = axis_index("from_parts", axis, ndim) if ndim else 0
        if shape is not None and (len(shape) != ndim or not all(isinstance(n, int | np.integer) for n in shape)):
            raise ShapeError(message("from_parts", f"a shape of {ndim} lengths", shape, "leave it out, or correct it"))
        whole = _whole_shape(raw_codes.shape, axis, format, shape)
        expected_scale = scale_shape(format, whole, axis)
        if raw_scale.shape != expected_scale:
            do = "give one scale per block; lengths are rounded up"
            raise ShapeError(message("from_parts", f"scales of shape {expected_scale}", raw_scale.shape, do))
        rows = (*whole[:axis], *whole[axis + 1 :]) if format.per_row_tensor_scale else ()
        if word is not None and word.shape != rows:
            do = "pass one per row" if format.per_row_tensor_scale else "pass one per tensor"
            raise ShapeError(message("from_parts", f"a tensor_scale of shape {rows}", word.shape, do))
        return quantized(Operand(raw_codes, raw_scale, word, format, whole, axis))

    def __repr__(self) -> str:
        q = self.operand
        block = str(q.format.block).replace(" ", "")
        extras = [
            f"dtype={q.format.name}",
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

    def __reduce__(self) -> tuple[Any, ...]:
        q = blocks.plain(self.operand)
        raws = (q.codes, q.scale, q.tensor_scale)
        parts = tuple(None if raw is None else np.array(nf.asnumpy(wrap(raw)), order="C") for raw in raws)
        return _unpickled, (parts, q.format, q.shape, q.axis, str(self.device), self.is_parameter)

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


def _shown(element: Element) -> np.dtype:
    """The dtype that codes show: the element's, or uint8 for packed ones."""
    return np.dtype(np.uint8) if element.packed else element.dtype


def _codes(codes: Any, format: QuantDType) -> Array:
    """Codes as an Array; torch's packed 4-bit tensors, which no dense dtype of nvfp stands for, as their bytes."""
    if format.element.packed and not isinstance(codes, Array | np.ndarray) and hasattr(codes, "__dlpack_device__"):
        raw = take_in_codes(codes)
        if raw is not None:
            return wrap(raw)
    return nf.asarray(codes)


def _part(name: str, x: Array, dtype: np.dtype, raw_dtype: np.dtype) -> Any:
    if x.dtype not in (dtype, raw_dtype):
        expected = f"{name} as {raw_dtype}" + (f" or {dtype}" if dtype != raw_dtype else "")
        raise DTypeError(message("from_parts", expected, x.dtype, "pass codes, not values"))
    return x.raw if x.raw.dtype == raw_dtype else x.raw.view(raw_dtype)


def _whole_shape(
    codes: tuple[int, ...], axis: int, format: QuantDType, shape: tuple[int, ...] | None
) -> tuple[int, ...]:
    """The shape in elements; a given one must fit the codes."""
    if shape is None:
        return tuple(2 * n if format.element.packed and i == axis else n for i, n in enumerate(codes))
    stored = codes_shape(format, shape, axis)
    if stored != codes:
        raise ShapeError(
            message("from_parts", f"codes of shape {stored} for {shape}", codes, "pack two 4-bit codes per byte")
        )
    return tuple(shape)


def _unpickled(
    parts: tuple[Any, Any, Any], format: QuantDType, shape: tuple[int, ...], axis: int, device: str, is_parameter: bool
) -> Array:
    codes, scale, word = (None if part is None else nf.asarray(part, device=device).raw for part in parts)
    x = quantized(Operand(codes, scale, word, format, shape, axis))
    x.is_parameter = is_parameter
    return x
