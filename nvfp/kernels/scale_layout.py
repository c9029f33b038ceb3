"""`scale_layout`: block scales between the plain matrix and the order tensor cores read."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp.dtypes.scale_layout import k_major128_shape, tiles128x4_size
from nvfp.errors import DTypeError, ShapeError, message
from nvfp.kernels._check import check_choice, check_out
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared
from nvfp.kernels.operand import ScaleLayout

_UINT8, _FLOAT32 = np.dtype(np.uint8), np.dtype(np.float32)


@prepared
def scale_layout(
    scale: Any, layout: ScaleLayout, *, inverse_shape: tuple[int, int] | None = None, out: Any | None = None
) -> Any:
    """Return block scales in another layout.

    ``tiles128x4``: scale (r, c) of a matrix with C columns lies at byte
    ``((r // 128) * ceil(C / 4) + c // 4) * 512 + (r % 32) * 16 + (r % 128) // 32 * 4 + c % 4``;
    the rest of the buffer is 0. ``k_major128``, for float32 scales: the transpose [C, R rounded up to 4], the
    rest of each row 0 (of 128 x 128 blocks, whose layout is that of the transpose, pass ``scale.T``).

    Args:
        scale: raw array: the matrix [R, C] (any strides) of uint8 for ``layout="tiles128x4"``, of float32 for
            ``layout="k_major128"``; for ``layout="plain"`` the flat contiguous uint8 buffer of tiles.
        layout: the layout wanted. From ``k_major128`` back it is a view: `dtypes.from_k_major128`.
        inverse_shape: (R, C) of the matrix, for ``layout="plain"`` only.
        out: where to write, of the result's shape.

    Returns:
        uint8: flat [ceil(R / 128) * ceil(C / 4) * 512], or [R, C] for ``layout="plain"``; float32
        [C, ceil(R / 4) * 4] for ``layout="k_major128"``.

    Raises:
        DTypeError: scales that are not uint8 (for ``k_major128`` float32).
        ShapeError: not a matrix, or a buffer that does not belong to ``inverse_shape``.

    Numerics:
        Bytes are moved, padding is never read. CPU and CUDA give the same bytes.

    Source:
        The scale layouts of cuBLASLt's block-scaled matmuls (block scaling factors layouts).

    Example:
        >>> import numpy as np
        >>> tiles = scale_layout(np.full((128, 8), 7, np.uint8), "tiles128x4")
        >>> tiles.shape, scale_layout(tiles, "plain", inverse_shape=(128, 8)).shape
        ((1024,), (128, 8))
    """
    check_choice("scale_layout", "layout", layout, ("plain", "tiles128x4", "k_major128"))
    dtype = _FLOAT32 if layout == "k_major128" else _UINT8
    if scale.dtype != dtype:
        expected = "float32 scales for k_major128" if dtype == _FLOAT32 else "uint8 scale codes"
        raise DTypeError(message("scale_layout", expected, scale.dtype, "pass scales of that dtype"))
    shape: tuple[int, ...]
    if layout == "plain":
        if inverse_shape is None:
            raise ShapeError(message("scale_layout", "inverse_shape with layout='plain'", None, "pass (rows, columns)"))
        shape, wanted = inverse_shape, (tiles128x4_size(inverse_shape),)
        if scale.shape != wanted:
            expected = f"a buffer of {wanted[0]} bytes for {inverse_shape}"
            raise ShapeError(message("scale_layout", expected, scale.shape, "pass the matching shape"))
    else:
        if scale.ndim != 2 or inverse_shape is not None:
            got = f"{scale.shape}, {inverse_shape}"
            raise ShapeError(message("scale_layout", "a matrix and no inverse_shape", got, "pass scales [R, C]"))
        shape = k_major128_shape(scale.shape) if dtype == _FLOAT32 else (tiles128x4_size(scale.shape),)
    check_out("scale_layout", out, shape, dtype)
    return backend("scale_layout", scale, out).scale_layout(scale, layout, inverse_shape=inverse_shape, out=out)
