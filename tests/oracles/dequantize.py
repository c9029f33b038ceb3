"""The exact dequantize: an Operand of NumPy arrays, unpacked into logical order for `dtypes.block.dequantize_exact`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nvfp.dtypes.block import ExactBlocks, dequantize_exact
from nvfp.dtypes.packing import unpack
from nvfp.dtypes.scale_layout import from_tiles128x4
from nvfp.kernels.operand import Operand


def dequantize(operand: Operand, dtype: npt.DTypeLike, *, tensor_factors: bool = True) -> np.ndarray:
    """The values that `kernels.dequantize.dequantize` must give."""
    return dequantize_exact(
        logical_blocks(operand), operand.format, operand.shape, operand.axis, dtype, tensor_factors=tensor_factors
    )


def logical_blocks(operand: Operand) -> ExactBlocks:
    """Codes (unpacked) and plain scales of ``operand`` in logical order."""
    fmt, codes, scale = operand.format, np.asarray(operand.codes), np.asarray(operand.scale)
    if fmt.element.packed:
        codes = unpack(codes, operand.stored_shape[operand.stored_axis], operand.stored_axis)
    if operand.scale_layout == "tiles128x4":
        across, along = fmt.block_shape or (1, 1)
        rows, length = operand.stored_shape
        scale = from_tiles128x4(scale, (rows, -(-length // along)))[::across]
    if operand.transposed:
        codes = codes.swapaxes(-1, -2)
        scale = scale if fmt.block is None else scale.swapaxes(-1, -2)
    return ExactBlocks(codes, scale, None if operand.tensor_scale is None else np.asarray(operand.tensor_scale))
