"""Tables between nvfp and cuBLASLt: data types, compute types, scale modes, attributes, and which GEMM runs how.

Only data and pure functions: everything here is tested without a GPU.

Source: library_types.h, cublas_api.h and cublasLt.h of CUDA 13; cuBLAS documentation,
"cublasLtMatmul()" and "Narrow Precision Data Types Usage".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import ml_dtypes
import numpy as np

from nvfp.capability import Compute, GemmMode, expansion, gemm_mode
from nvfp.dtypes.formats import QuantDType

BFLOAT16, FLOAT16, FLOAT32, FLOAT64 = (np.dtype(t) for t in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64))
NAMED: dict[str, np.dtype] = {d.name: d for d in (BFLOAT16, FLOAT16, FLOAT32, FLOAT64)}

DATA_TYPE: dict[str, int] = {  # cudaDataType_t, by element or dense dtype name
    "float32": 0,
    "float64": 1,
    "float16": 2,
    "bfloat16": 14,
    "float8_e4m3fn": 28,
    "float8_e5m2": 29,
    "float4_e2m1fn": 33,
}
COMPUTE_TYPE: dict[str, int] = {"float32": 68, "float64": 70, "tf32": 77}  # cublasComputeType_t; 68 never uses TF32
SCALE_MODE: dict[str, int] = {  # cublasLtMatmulMatrixScale_t, by the names of `nvfp.capability.GEMM_MODES`
    "SCALAR_32F": 0,
    "VEC16_UE4M3": 1,
    "VEC32_UE8M0": 2,
    "OUTER_VEC_32F": 3,
    "VEC128_32F": 4,
    "BLK128x128_32F": 5,
}
OUTPUTS: dict[str, tuple[str, ...]] = {  # what D may be, by the type of A and B; float32 is always right after staging
    "float32": ("float32",),
    "float64": ("float64",),
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "float8_e4m3fn": ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"),
    "float8_e5m2": ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"),
    "float4_e2m1fn": ("bfloat16", "float16", "float32"),
}
NATIVE_PAIRS = {  # scale modes of the left and right operand that nvfp hands to cuBLASLt
    ("SCALAR_32F", "SCALAR_32F"),
    ("VEC128_32F", "VEC128_32F"),
    ("VEC128_32F", "BLK128x128_32F"),
    ("BLK128x128_32F", "VEC128_32F"),
    ("OUTER_VEC_32F", "OUTER_VEC_32F"),
    ("VEC32_UE8M0", "VEC32_UE8M0"),
    ("VEC16_UE4M3", "VEC16_UE4M3"),
}
K_UNIT = {"VEC32_UE8M0": 32, "VEC16_UE4M3": 32}  # elements that K is padded to: whole blocks, 16 bytes; else 16
OP_N, OP_T = 0, 1
EPILOGUE: dict[str, int] = {  # cublasLtEpilogue_t; + EPILOGUE_BIAS, + EPILOGUE_AUX
    "default": 1,
    "gelu": 32,
    "dgelu": 192,
}
EPILOGUE_BIAS, EPILOGUE_AUX = 4, 128
POINTER_HOST, POINTER_DEVICE = 0, 1


class Attribute(NamedTuple):
    """An attribute of a cuBLASLt object: its number and the NumPy type of its value (the width is part of the API)."""

    number: int
    type: str


# cublasLtMatmulDescAttributes_t
POINTER_MODE = Attribute(2, "i4")
TRANSA = Attribute(3, "i4")
TRANSB = Attribute(4, "i4")
EPILOGUE_KIND = Attribute(7, "u4")
BIAS_POINTER = Attribute(8, "i8")
A_SCALE_POINTER = Attribute(17, "i8")
B_SCALE_POINTER = Attribute(18, "i8")
AUX_POINTER = Attribute(11, "i8")
AUX_LD = Attribute(12, "i8")
D_SCALE_POINTER = Attribute(20, "i8")
AMAX_D_POINTER = Attribute(21, "i8")
FAST_ACCUM = Attribute(25, "i1")
BIAS_DATA_TYPE = Attribute(26, "i4")
A_SCALE_MODE = Attribute(31, "i4")
B_SCALE_MODE = Attribute(32, "i4")
# cublasLtMatrixLayoutAttribute_t
BATCH_COUNT = Attribute(5, "i4")
BATCH_STRIDE = Attribute(6, "i8")
# cublasLtMatmulPreferenceAttributes_t
MAX_WORKSPACE = Attribute(1, "u8")
REDUCTION_SCHEMES = Attribute(3, "u4")
MIN_ALIGNMENT_A, MIN_ALIGNMENT_B, MIN_ALIGNMENT_C, MIN_ALIGNMENT_D = (Attribute(n, "u4") for n in (5, 6, 7, 8))

HEURISTIC = np.dtype(  # cublasLtMatmulHeuristicResult_t
    [("algo", "<u8", (8,)), ("workspace", "<u8"), ("state", "<i4"), ("waves", "<f4"), ("reserved", "<i4", (4,))]
)

Kind = QuantDType | np.dtype  # what an operand is, apart from its shape: the row of an Operand, a dense array's dtype


@dataclass(frozen=True)
class Route:
    """How two operands are multiplied.

    Attributes:
        modes: the cuBLASLt modes that take left and right operand as they are; None when they are expanded.
        dtype: the dense dtype both are expanded or cast to; None when ``modes`` is set.
    """

    modes: tuple[GemmMode, GemmMode] | None
    dtype: np.dtype | None

    def __str__(self) -> str:
        if self.modes is None:
            return f"as {self.dtype}"
        left, right = (mode.name for mode in self.modes)
        return f"native {left}" if left == right else f"native {left} x {right}"


@lru_cache(maxsize=256)
def native_fp8(a: Kind, b: Kind, k: int | None = None) -> tuple[GemmMode, GemmMode] | None:
    """Return the modes of two FP8 operands with float32 scales that tensor cores of some chip multiply, or None.

    Pairs: per tensor with per tensor; 1 x 128 blocks with 1 x 128 or 128 x 128; one block over the whole of ``k``
    with its like. Not e5m2 with e5m2. The rule knows no chip: it decides the dtype of the bias, which must not
    differ between devices.
    """
    modes = _pair(a, b, k)
    return modes if modes is not None and modes[0].run and modes[1].run else None


def _pair(a: Kind, b: Kind, k: int | None) -> tuple[GemmMode, GemmMode] | None:
    if isinstance(a, np.dtype) or isinstance(b, np.dtype) or a.element.exponent_bits == b.element.exponent_bits == 5:
        return None
    left, right = gemm_mode(a, k), gemm_mode(b, k)
    if left is None or right is None or (left.name, right.name) not in NATIVE_PAIRS:
        return None
    return left, right


def bias_dtype(a: Kind, b: Kind, result: np.dtype, exact: bool = False, k: int | None = None) -> np.dtype:
    """Return the dtype that the bias is rounded to: the result's, or 16 bits beside native FP8 (as TE)."""
    return BFLOAT16 if result == FLOAT32 and not exact and native_fp8(a, b, k) else result


def epilogue_bias(element: str, d: str) -> np.dtype:
    """Return the type that cuBLASLt's epilogue takes a bias in: D's, but bfloat16 beside FP8 unless D is float16."""
    narrow = element.startswith(("float8", "float4"))
    return BFLOAT16 if narrow and d != "float16" and d != "float64" else NAMED[d]


def holds(dtype: np.dtype, kind: Kind) -> bool:
    """Whether every value of ``kind`` (without factors that are one per tensor) is exact in the dense ``dtype``.

    Example:
        >>> from nvfp.dtypes import formats
        >>> holds(FLOAT16, formats.nvfp4), holds(FLOAT16, formats.mxfp8), holds(BFLOAT16, FLOAT16)
        (True, False, False)
    """
    if isinstance(kind, np.dtype):
        return kind == dtype or dtype == FLOAT64 or (dtype == FLOAT32 and kind != FLOAT64)
    if dtype == FLOAT16:
        return _fits_half(kind)
    return dtype != BFLOAT16 or expansion(kind).name == "bfloat16"


def _fits_half(kind: QuantDType) -> bool:
    element, scale = kind.element, kind.scale
    if kind.block is None:
        return element.significand_bits <= 11 and element.max <= 65504 and element.smallest_subnormal >= 2.0**-24
    return (
        element.significand_bits + scale.significand_bits <= 11
        and element.max * scale.max <= 65504
        and element.smallest_subnormal * scale.smallest_subnormal >= 2.0**-24
    )


def route(
    a: Kind,
    b: Kind,
    compute: Compute,
    *,
    exact: bool = False,
    wide: bool = False,
    native: bool = True,
    k: int | None = None,
) -> Route:
    """Return how ``a @ b`` runs on a chip: natively, or through the narrowest dense dtype that holds both exactly.

    Args:
        a: row or dense dtype of the left operand.
        b: likewise of the right one.
        compute: compute capability.
        exact: expand Operands to float32 even where bfloat16 would do.
        wide: compute in float64.
        native: False leaves out the modes of narrow operands.
        k: length of the contraction, where it is known.

    Numerics:
        bfloat16 holds every format of at most 8 significand bits (element and block scale together)
        exactly inside its exponent range, float16 those that fit its range too; a partner of another
        dtype moves both to the first dtype that holds both.

    Example:
        >>> from nvfp.dtypes import formats
        >>> str(route(formats.fp8_e4m3, formats.fp8_e5m2, (9, 0))), str(route(formats.mxfp8, formats.nvfp4, (9, 0)))
        ('native SCALAR_32F', 'as bfloat16')
        >>> [str(route(fmt, FLOAT16, (9, 0))) for fmt in (formats.nvfp4, formats.mxfp8)]
        ['as float16', 'as float32']
    """
    modes = _pair(a, b, k) if native and not exact and not wide else None
    if modes is not None and all(mode.used and mode.on(compute) for mode in modes):
        return Route(modes, None)
    quantized = isinstance(a, QuantDType) or isinstance(b, QuantDType)
    narrow = () if exact and quantized else (BFLOAT16, FLOAT16)
    candidates = (FLOAT64,) if wide else (*narrow, FLOAT32, FLOAT64)
    return Route(None, next(d for d in candidates if holds(d, a) and holds(d, b)))
