"""float32 exp and sigmoid inside CPU kernels: the same operations as `cuda/include/exp.cuh`, so the same bits.

They are straight-line code (no calls, no branches), which LLVM turns into vector instructions; libm's
``expf`` would cost ten times as much per element and give other bits than the GPU's.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from nvfp.kernels.cpu._njit import bits_float, float_bits, inline

_I32 = numba.int32
_LOG2E = np.float32(1.4426950408889634)
_SHIFT = np.float32(12582912.0)  # 1.5 * 2**23: adding it rounds to an integer that sits in the low bits
_SHIFT_BITS = np.int32(0x4B400000)
# ln 2 in two parts; the first has few enough bits that n * _LN2_HIGH is exact.
_LN2_HIGH = np.float32(0.693145751953125)
_LN2_LOW = np.float32(1.428606765330187e-06)
# (exp(r) - 1 - r) / r**2 on |r| <= ln(2)/2: relative error of exp below 2**-28 (Lawson's algorithm, float64).
_C0 = np.float32(float.fromhex("0x1.fffffcp-2"))
_C1 = np.float32(float.fromhex("0x1.555492p-3"))
_C2 = np.float32(float.fromhex("0x1.5558f2p-5"))
_C3 = np.float32(float.fromhex("0x1.1239e2p-7"))
_C4 = np.float32(float.fromhex("0x1.6a2434p-10"))
_LOWEST, _HIGHEST = np.float32(-104.0), np.float32(89.0)  # beyond: 0 and inf
_ONE, _ZERO = np.float32(1.0), np.float32(0.0)
_SIGN_OFF = np.uint32(0x7FFFFFFF)


@intrinsic
def _fused(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fma(*args)

    f = numba.float32
    return f(f, f, f), codegen


@intrinsic
def _power_bits(typingctx: Any, k: Any) -> Any:
    """The bits of 2**k for a normal result: (k + 127) << 23, in 32 bits."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        return builder.shl(builder.add(args[0], ir.Constant(i32, 127)), ir.Constant(i32, 23))

    return numba.uint32(numba.int32), codegen


@inline
def fma(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """``a * b + c`` with one rounding."""
    return _fused(np.float32(a), np.float32(b), np.float32(c))  # type: ignore[no-any-return]


@inline
def exp32(x: np.float32) -> np.float32:
    """``exp(x)`` within 0.6 ulp; subnormal results kept, NaN stays NaN."""
    x = _LOWEST if x < _LOWEST else x
    x = _HIGHEST if x > _HIGHEST else x
    shifted = fma(x, _LOG2E, _SHIFT)
    n = shifted - _SHIFT
    k = _I32(_I32(float_bits(shifted)) - _SHIFT_BITS)
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    q = fma(fma(fma(fma(_C4, r, _C3), r, _C2), r, _C1), r, _C0)
    p = fma(r * r, q, r) + _ONE
    half = _I32(k >> _I32(1))  # two factors: 2**k itself may be subnormal or too large
    y: np.float32 = (p * bits_float(_power_bits(half))) * bits_float(_power_bits(_I32(k - half)))
    return y


@inline
def sigmoid_parts(z: np.float32) -> tuple[np.float32, np.float32]:
    """``(e, 1 + e)`` with ``e = exp(-|z|)``: sigmoid(z) = (1 if z >= 0 else e) / (1 + e), and never inf / inf."""
    e = exp32(-bits_float(float_bits(z) & _SIGN_OFF))
    return e, _ONE + e


@inline
def sigmoid32(z: np.float32) -> np.float32:
    """``1 / (1 + exp(-z))`` within 2 ulp, also where it is small."""
    e, total = sigmoid_parts(z)
    return (e if z < _ZERO else _ONE) / total
