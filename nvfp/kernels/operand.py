"""`Operand`: the only carrier of codes and scales below `nf.QuantizedArray`.

An Operand is a plain frozen record of raw NumPy or CuPy arrays; nothing re-derives its format from
array dtypes. Codes and scales are kept in *stored* order: with ``transposed`` the last two logical
axes are swapped in storage, which is how the column copies of a GEMM operand are kept (blocks and
the contraction then run along the last stored axis).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from nvfp.dtypes.formats import QuantDType

ScaleLayout = Literal["plain", "tiles128x4", "k_major128"]
Rotation = Literal["none", "rht16"]


def codes_shape(fmt: QuantDType, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Return the shape of the codes of an array of ``shape`` (stored order), blocked along ``axis``.

    Example:
        >>> from nvfp.dtypes.formats import nvfp4
        >>> codes_shape(nvfp4, (3, 33), 1)
        (3, 17)
    """
    if not fmt.element.packed:
        return shape
    return (*shape[:axis], -(-shape[axis] // 2), *shape[axis + 1 :])


def scale_shape(fmt: QuantDType, shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Return the shape of the plain scales of an array of ``shape`` (stored order), blocked along ``axis``.

    Example:
        >>> from nvfp.dtypes.formats import mxfp8, nvfp4
        >>> scale_shape(mxfp8, (3, 33), 1), scale_shape(nvfp4.replace(block=(16, 16)), (20, 33), 0)
        ((3, 2), (2, 3))
    """
    if fmt.block_shape is None:
        return ()
    across, along = fmt.block_shape
    lengths = list(shape)
    lengths[axis] = -(-lengths[axis] // along)
    if across > 1:
        other = 2 * len(shape) - 3 - axis
        lengths[other] = -(-lengths[other] // across)
    return tuple(lengths)


@dataclass(frozen=True, eq=False, slots=True)
class Operand:
    """Codes and scales of one quantized array.

    Attributes:
        codes: uint8, stored order, one code per byte; 4-bit codes are packed two per byte along the
            block axis (low nibble first, ``ceil(n / 2)`` bytes). May be a strided view whose leading
            dimension is padded for the GEMM.
        scale: block scales in stored order (``ceil`` of every blocked length), as the unsigned
            codes of the scale format, or float32 when that is the scale format. Shape ``()`` for
            one scale per tensor. Always the *decode* factor.
        tensor_scale: float32 decode factor, shape ``()``, or None; one per row: stored shape without the block axis.
        format: the row that says what the codes mean.
        shape: logical shape.
        axis: logical block axis, non-negative. 4-bit codes are packed along it. For square blocks
            the other blocked axis is the other one of the last two.
        transposed: whether storage has the last two logical axes swapped.
        padded_rows: rows allocated behind ``codes`` (0: as many as it shows).
        scale_layout: ``"plain"`` or a GEMM-ready layout (see `kernels.scale_layout`).
        rotation: ``"rht16"`` when the values were rotated before quantization.
    """

    codes: Any
    scale: Any
    tensor_scale: Any | None
    format: QuantDType
    shape: tuple[int, ...]
    axis: int
    transposed: bool = False
    padded_rows: int = 0
    scale_layout: ScaleLayout = "plain"
    rotation: Rotation = "none"

    def __init__(
        self,
        codes: Any,
        scale: Any,
        tensor_scale: Any | None,
        format: QuantDType,
        shape: tuple[int, ...],
        axis: int,
        transposed: bool = False,
        padded_rows: int = 0,
        scale_layout: ScaleLayout = "plain",
        rotation: Rotation = "none",
    ) -> None:
        # Every quantize and GEMM makes some: what a frozen dataclass generates takes twice as long.
        _codes(self, codes)
        _scale(self, scale)
        _tensor_scale(self, tensor_scale)
        _format(self, format)
        _shape(self, shape)
        _axis(self, axis)
        _transposed(self, transposed)
        _padded_rows(self, padded_rows)
        _scale_layout(self, scale_layout)
        _rotation(self, rotation)

    @property
    def T(self) -> Operand:
        """The transposed operand (last two logical axes swapped) over the same storage."""
        shape, axis, n = self.shape, self.axis, len(self.shape)
        axis = n - 2 if axis == n - 1 else n - 1 if axis == n - 2 else axis
        # Every GEMM of a Linear takes one: written out, it costs a fifth of dataclasses.replace.
        return Operand(
            self.codes, self.scale, self.tensor_scale, self.format, (*shape[:-2], shape[-1], shape[-2]), axis,
            not self.transposed, self.padded_rows, self.scale_layout, self.rotation,
        )  # fmt: skip

    @property
    def stored_axis(self) -> int:
        """The block axis counted in stored order."""
        n = len(self.shape)
        return {n - 1: n - 2, n - 2: n - 1}.get(self.axis, self.axis) if self.transposed else self.axis

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Logical lengths in stored order (unpacked)."""
        return (*self.shape[:-2], self.shape[-1], self.shape[-2]) if self.transposed else self.shape

    @property
    def leading_dimension(self) -> int:
        """Distance of two stored rows, in codes."""
        return int(self.codes.strides[-2]) * (2 if self.format.element.packed else 1)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales (padding not counted)."""
        extra = 0 if self.tensor_scale is None else self.tensor_scale.nbytes
        return int(self.codes.nbytes + self.scale.nbytes + extra)

    def arrays(self) -> tuple[Any, ...]:
        """The raw arrays that are present, for device checks and memory listings."""
        return tuple(a for a in (self.codes, self.scale, self.tensor_scale) if a is not None)


_codes, _scale, _tensor_scale, _format, _shape, _axis, _transposed, _padded_rows, _scale_layout, _rotation = (
    getattr(Operand, field.name).__set__ for field in fields(Operand)
)


@dataclass(slots=True, eq=False)
class OperandPair:
    """The row copy (blocks along the last axis) and the column copy (along the first) of a matrix.

    A missing side is made on demand by `side`: by ``make`` (a callable that quantizes the
    high-precision tensor again), or by byte transpose where that is exact; else it raises.
    A side that a recipe leaves in high precision is a raw array of the matrix instead. ``bias_grad``: the column sums
    of the matrix, where `quantize` was asked for them.
    """

    row: Operand | Any | None
    col: Operand | Any | None
    make: Callable[[Literal["row", "col"]], Operand | Any] | None = None
    bias_grad: Any | None = None

    def side(self, which: Literal["row", "col"]) -> Operand | Any:
        """Return the row or column copy, making it if it can be made exactly."""
        have = self.row if which == "row" else self.col
        if have is None:
            from nvfp.kernels.quantize import other_side  # the contract owns the rule

            have = other_side(self, which)
            if which == "row":
                self.row = have
            else:
                self.col = have
        return have
