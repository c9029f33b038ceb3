"""The exact quantize: `dtypes.block.quantize_exact` for each side, brought into the stored order of an Operand."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nvfp.dtypes.block import ExactBlocks, quantize_exact
from nvfp.dtypes.codec import Overflow
from nvfp.dtypes.formats import QuantDType
from nvfp.dtypes.packing import pack
from nvfp.dtypes.scale_layout import to_tiles128x4
from nvfp.kernels.operand import Operand, OperandPair, ScaleLayout


def quantize(
    x: npt.ArrayLike,
    fmt: QuantDType,
    *,
    axis: int = -1,
    row: bool = True,
    col: bool = False,
    scale: Any | None = None,
    amax: Any | None = None,
    tensor_scale: Any | None = None,
    amax_epsilon: float = 0.0,
    overflow: Overflow = "saturate",
    scale_layout: ScaleLayout = "plain",
) -> OperandPair:
    """The pair that `kernels.quantize.quantize` must give, as NumPy arrays without padding."""
    array = np.asarray(x)

    def side(which: int, block_axis: int) -> Operand:
        blocks = quantize_exact(
            array, fmt, axis=block_axis, scale=scale, amax=_of(amax, which), tensor_scale=_of(tensor_scale, which),
            amax_epsilon=amax_epsilon, overflow=overflow,
        )  # fmt: skip
        return _operand(blocks, fmt, block_axis, transposed=which == 1, layout=scale_layout)

    block_axis = axis % array.ndim if array.ndim else 0
    return OperandPair(side(0, block_axis) if row else None, side(1, 0) if col else None)


def _of(word: Any, which: int) -> Any:
    return word[which] if isinstance(word, tuple) else word


def _operand(blocks: ExactBlocks, fmt: QuantDType, axis: int, *, transposed: bool, layout: ScaleLayout) -> Operand:
    shape = blocks.codes.shape
    codes, scale, stored_axis = blocks.codes, blocks.scale, axis
    if transposed:
        codes = codes.T
        scale = scale if fmt.block is None else scale.T
        stored_axis = 1 - axis
    rows = codes.shape[0] if codes.ndim else 0
    codes = pack(codes, stored_axis) if fmt.element.packed else np.ascontiguousarray(codes)
    if layout == "tiles128x4":
        across = (fmt.block_shape or (1, 1))[0]
        scale = to_tiles128x4(np.repeat(scale, across, axis=0)[:rows])  # every row of a square block has its own copy
    return Operand(
        codes=codes, scale=np.ascontiguousarray(scale).reshape(scale.shape), tensor_scale=blocks.tensor_scale,
        format=fmt, shape=shape, axis=axis, transposed=transposed, scale_layout=layout,
    )  # fmt: skip
