"""`weight_only_gemm`: a few rows of 16-bit activations times narrow weights that were packed once (decoding)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels._check import FLOAT32, FLOATS, check_format, check_out
from nvfp.kernels._dispatch import backend, kind_of
from nvfp.kernels._weight_only import tiling
from nvfp.kernels.cast import cast
from nvfp.kernels.dequantize import check_shapes, plain_scales
from nvfp.kernels.gemm import gemm
from nvfp.kernels.operand import Operand

HALVES = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
PASS = 16  # rows of x that one reading of the weights serves
_LOOPED = 64  # rows up to which reading the weights again is less work than expanding them


@dataclass(frozen=True, eq=False, slots=True)
class PackedWeight:
    """A weight [N, K] as `weight_only_gemm` reads it: the same bytes on every device.

    Attributes:
        codes: uint8 [tiles of 16 rows, units of 32 or 64 columns, 512]; see `kernels._weight_only`.
        scale: block scales in the order of the codes, as the format stores them; without blocks the one scale.
        factor: float32 [16 * tiles]: all factors that are one per tensor or per row; NaN where a code or scale of the
            row is NaN.
        tensor_scale: the operand's.
        format: the row that says what the codes mean.
        shape: (N, K).
        operand: the weight as it came, where its format has no packed form; then there are no packed arrays.
    """

    codes: Any | None
    scale: Any | None
    factor: Any | None
    tensor_scale: Any | None
    format: QuantDType
    shape: tuple[int, ...]
    operand: Operand | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads of it."""
        if self.operand is not None:
            return self.operand.nbytes
        return sum(int(array.nbytes) for array in self.arrays())

    def arrays(self) -> tuple[Any, ...]:
        """The raw arrays that are present."""
        if self.operand is not None:
            return self.operand.arrays()
        return tuple(a for a in (self.codes, self.scale, self.factor, self.tensor_scale) if a is not None)


def prepack(operand: Operand) -> PackedWeight:
    """Bring a quantized weight into the order that `weight_only_gemm` reads, once.

    Args:
        operand: [N, K], blocks and packed codes along K, any storage order and scale layout. Packed are E2M1, E4M3 and
            E5M2 elements: without blocks; in blocks (1-D or 2-D) of a multiple of 32 along K (4-bit codes: 32 or a
            multiple of 64) under any scale; E2M1 and E4M3 also in blocks of 8 and 16 under E4M3 scales. A weight of any
            other format, or with blocks along N, is kept as it is, and `weight_only_gemm` expands it at each call.

    Returns:
        A record of new arrays (but the tensor scale) on the operand's device, of the operand's size with N and K filled
        up to 16 rows and 32 (64) columns, and 4 bytes per row.

    Raises:
        ShapeError: not two axes.
        ArgumentError: a rotated operand: activations would have to be rotated, too.

    Numerics:
        Codes and scales only change places: `unpack` gives them back.

    Example:
        >>> import numpy as np
        >>> from nvfp.dtypes.formats import nvfp4
        >>> from nvfp.kernels.quantize import quantize
        >>> prepack(quantize(np.ones((20, 100), np.float32), nvfp4).row).codes.shape
        (2, 2, 512)
    """
    if len(operand.shape) != 2:
        raise ShapeError(message("prepack", "a weight [N, K]", operand.shape, "reshape it before quantizing"))
    if operand.rotation != "none":
        raise ArgumentError(message("prepack", "an operand that is not rotated", operand.rotation, "quantize without"))
    check_format("prepack", operand.format)
    row = tiling(operand.format)
    along_k = operand.axis == 1 or not (operand.format.element.packed or operand.format.block)
    if row is None or not along_k or 0 in operand.shape:
        return PackedWeight(None, None, None, operand.tensor_scale, operand.format, operand.shape, operand)
    plain = plain_scales(operand)
    check_shapes("prepack", plain)
    found: PackedWeight = backend("weight_only_gemm", operand).prepack(plain)
    return found


def unpack(packed: PackedWeight) -> Operand:
    """Return the weight that `prepack` was given: equal codes and scales, stored [N, K], scales plain.

    Example:
        >>> import numpy as np
        >>> from nvfp.dtypes.formats import mxfp8
        >>> from nvfp.kernels.quantize import quantize
        >>> w = quantize(np.ones((20, 100), np.float32), mxfp8).row
        >>> bool((unpack(prepack(w)).codes == w.codes).all())
        True
    """
    if packed.operand is not None:
        return packed.operand
    found: Operand = backend("weight_only_gemm", packed.codes).unpack(packed)
    return found


def weight_only_gemm(
    x: Any, packed: PackedWeight, *, bias: Any | None = None, out: Any | None = None, dtype: np.dtype | None = None
) -> Any:
    """Return ``x @ w.T + bias`` for a prepacked narrow weight w, reading its bytes once for up to 16 rows of x.

    Args:
        x: [M, K], bfloat16 or float16, any strides.
        packed: of w [N, K], from `prepack`.
        bias: [N], a float dtype; first rounded to the dtype of the result, as `gemm` does.
        out: [M, N], where to write; its dtype is the result's.
        dtype: of the result: bfloat16, float16 or float32. Default: that of ``out``, else of ``x``.

    Returns:
        [M, N] of ``dtype``, C-contiguous unless ``out`` is given.

    Raises:
        ShapeError: a shape that does not fit.
        DTypeError: an x that is no 16-bit float, or another result dtype.
        DeviceError: arrays on different devices.

    Numerics:
        Products are exact and summed in float32, in an order that M, N, K and the device fix: the same call gives the
        same bits again. Codes become numbers of x's dtype, exactly. Scales of blocks of 8 and 16 multiply them there
        (E2M1 and E4M3 times E4M3 have at most 8 significant bits: exact); other block scales multiply the float32 sum
        of 32 columns. Factors that are one per tensor or row multiply the sum last, then the bias is added, in float32;
        one rounding to ``dtype``. A row of w with a NaN code or scale gives NaN. More than 16 rows of x are taken 16 at
        a time, more than 64 by `gemm` on the unpacked weight, as is a weight that `prepack` kept as it is.
        CPU: codes times block scales in float32, then NumPy's BLAS.

    Example:
        >>> import numpy as np
        >>> from nvfp.dtypes.formats import nvfp4
        >>> from nvfp.kernels.quantize import quantize
        >>> w = prepack(quantize(np.full((3, 32), 0.5, np.float32), nvfp4).row)
        >>> weight_only_gemm(np.ones((1, 32), np.float16), w).tolist()
        [[16.0, 16.0, 16.0]]
    """
    dtype = _check(x, packed, bias, out, dtype)
    m, n = x.shape[0], packed.shape[0]
    if packed.operand is not None or m > _LOOPED or m == 0:
        return gemm(x, unpack(packed).T, bias=bias, out=out, dtype=dtype)
    if bias is not None and bias.dtype != dtype:
        bias = cast(bias, dtype)
    twin = backend("weight_only_gemm", x, packed.codes, bias, out)
    if m <= PASS:
        return twin.weight_only_gemm(x, packed, bias=bias, out=out, dtype=dtype)
    if out is None:
        out = twin.empty((m, n), dtype)
    for top in range(0, m, PASS):
        rows = slice(top, top + PASS)
        twin.weight_only_gemm(x[rows], packed, bias=bias, out=out[rows], dtype=dtype)
    return out


def _check(x: Any, packed: PackedWeight, bias: Any | None, out: Any | None, dtype: np.dtype | None) -> np.dtype:
    """Check everything that needs no device and return the result's dtype."""
    n, k = packed.shape
    kind_of(x)
    if len(x.shape) != 2 or x.shape[1] != k:
        raise ShapeError(message("weight_only_gemm", f"x of shape (M, {k})", x.shape, "reshape it to two axes"))
    if x.dtype not in HALVES:
        raise DTypeError(message("weight_only_gemm", "bfloat16 or float16 activations", x.dtype, "cast x, or use gemm"))
    if dtype is None:
        dtype = x.dtype if out is None else out.dtype
    if dtype not in HALVES and dtype != FLOAT32:
        raise DTypeError(message("weight_only_gemm", "bfloat16, float16 or float32 results", dtype, "choose one"))
    check_out("weight_only_gemm", out, (x.shape[0], n), dtype)
    if bias is not None and bias.shape != (n,):
        raise ShapeError(
            message("weight_only_gemm", f"a bias of shape ({n},)", bias.shape, "give one value per row of w")
        )
    if bias is not None and bias.dtype not in FLOATS:
        raise DTypeError(message("weight_only_gemm", "a float bias", bias.dtype, "cast it with x.astype"))
    return dtype
