"""float32 sine and cosine inside CPU kernels: the same operations as `cuda/include/trig.cuh`, so the same bits."""

from __future__ import annotations

import numpy as np

from nvfp.kernels.cpu._exp import fma
from nvfp.kernels.cpu._njit import bits_float, float_bits, inline

U = np.uint32
_FAR = np.float32(2.0**22)
_NAN = np.float32(np.nan)
_SHIFT = np.float32(12582912.0)  # 1.5 * 2**23: adding it rounds to an integer that sits in the low bits
_TWO_OVER_PI = np.float32(float.fromhex("0x1.45f306p-1"))
# pi/2 in three parts of 24 bits.
_P1 = np.float32(float.fromhex("0x1.921fb6p+0"))
_P2 = np.float32(float.fromhex("-0x1.777a5cp-25"))
_P3 = np.float32(float.fromhex("-0x1.ee59dap-50"))
# (sin(r) - r) / r**3 and (cos(r) - 1 + r**2 / 2) / r**4 in r**2 on |r| <= pi/4: relative errors below 2**-27.9 of
# the sine and 2**-33 of the cosine (Lawson's algorithm, float64).
_S0 = np.float32(float.fromhex("-0x1.555546p-3"))
_S1 = np.float32(float.fromhex("0x1.110736p-7"))
_S2 = np.float32(float.fromhex("-0x1.99422p-13"))
_C0 = np.float32(float.fromhex("0x1.55554ap-5"))
_C1 = np.float32(float.fromhex("-0x1.6c0c2ep-10"))
_C2 = np.float32(float.fromhex("0x1.99ea02p-16"))
_HALF, _ONE = np.float32(-0.5), np.float32(1.0)


@inline
def sincos32(x: np.float32) -> tuple[np.float32, np.float32]:
    """``(sin(x), cos(x))`` with an absolute error below 2**-23.7 for |x| <= 2**17, 2**-21.5 up to 2**22; NaN beyond."""
    x = x if abs(x) <= _FAR else _NAN
    shifted = fma(x, _TWO_OVER_PI, _SHIFT)
    n = shifted - _SHIFT
    k = U(float_bits(shifted))
    r = fma(n, -_P3, fma(n, -_P2, fma(n, -_P1, x)))
    z = r * r
    p = fma(fma(fma(_S2, z, _S1), z, _S0), z * r, r)
    q = fma(fma(fma(fma(_C2, z, _C1), z, _C0), z, _HALF), z, _ONE)
    turned = U(k & U(1)) != U(0)
    even, odd = (q, p) if turned else (p, q)
    sine = bits_float(U(float_bits(even) ^ U(U(k & U(2)) << U(30))))
    cosine = bits_float(U(float_bits(odd) ^ U(U(U(k + U(1)) & U(2)) << U(30))))
    return sine, cosine
