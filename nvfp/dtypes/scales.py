"""How a scale follows from the largest magnitude (amax): the three families, exactly.

E8M0: `e8m0_from_amax`, by comparing significands (never a float log2). float32: `fp32_from_amax`. Every other
scale format: `nvfp4_block_scale` and `nvfp4_multiplier`, NVFP4's steps with the maxima of the element and of
the scale format in place of 6 and 448, under the tensor's encode factor `s_enc` (1 without a tensor scale).

Each float32 operation here is one IEEE operation, in this order: the order is part of the formats.
Subnormals are never flushed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from nvfp.dtypes import elements as el
from nvfp.dtypes.codec import Codes, decode, encode
from nvfp.dtypes.conventions import PLAIN, Steps
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import ScaleRule
from nvfp.errors import ArgumentError, message

Float32 = npt.NDArray[np.float32]
FLT_MAX = np.float32(np.finfo(np.float32).max)
ONE = np.float32(1)
LEAST = np.float32(2.0**-149)  # in place of a divisor of 0


def e8m0_from_amax(
    amax: npt.ArrayLike, element: Element, rule: ScaleRule = "ceil", steps: Steps = PLAIN
) -> npt.NDArray[np.uint8]:
    """Return the E8M0 byte (value ``2**(byte - 127)``) for blocks whose largest magnitude is ``amax``.

    With ``amax = m * 2**k``, ``1 <= m < 2``, and the element's largest value ``M * 2**emax``:

    - ``"ceil"``: ``k - emax + (m > M)``, the smallest e with ``max * 2**e >= amax`` (NVIDIA).
    - ``"floor"``: ``k - emax`` (OCP MX 6.3; the largest elements may saturate).
    - ``"even"``: floor after rounding m up to 2 where the element's mantissa would, ``m >= 2 - 2**-(bits + 1)``.

    Args:
        amax: magnitudes >= 0, any shape, float32 or float64.
        element: the element format of the block.
        rule: one of the rules above.
        steps: of a convention: ``even_bits`` in place of the element's, ``zero_scale``, ``even_overflow``.

    Returns:
        uint8 bytes in the shape of ``amax``, within 0..254; amax 0 gives 0, inf 254, NaN 255.

    Raises:
        ArgumentError: an unknown rule.

    Example:
        >>> from nvfp.dtypes import elements
        >>> [int(e8m0_from_amax(3.75, elements.float8_e4m3fn, rule)) for rule in ("ceil", "floor")]
        [121, 120]
    """
    a = np.asarray(amax).astype(np.float64)
    half, k = np.frexp(np.where(np.isfinite(a), a, 1.0))
    m = 2 * half
    if rule == "ceil":
        carry = m > element.max / 2.0**element.emax
    elif rule == "floor":
        carry = np.zeros_like(m, dtype=bool)
    elif rule == "even":
        bits = element.top_mantissa_bits if steps.even_bits is None else steps.even_bits
        carry = m >= 2 - 2.0 ** -(bits + 1)
    else:
        raise ArgumentError(message("e8m0_from_amax", "rule 'ceil', 'floor' or 'even'", repr(rule), "pick one"))
    byte = np.clip(k.astype(np.int64) - 1 - element.emax + carry + 127, 0, 254)
    nothing = encode(steps.zero_scale, el.float8_e8m0fnu) if steps.zero_scale else 0
    byte = np.where(a == 0, nothing, np.where(np.isposinf(a), 254, byte))
    if rule == "even" and steps.even_overflow:
        byte = np.where(np.isfinite(a) & carry & (k == 128), 255, byte)
    return np.where(np.isnan(a), 255, byte).astype(np.uint8)


def fp32_from_amax(
    amax: npt.ArrayLike,
    element: Element,
    *,
    power_of_two: bool = False,
    epsilon: float = 0.0,
    overflow_value: np.floating | float = FLT_MAX,
) -> Float32:
    """Return the float32 *multiplier* ``max / amax`` of TE's current and block scaling (q = cast(x * multiplier)).

    1. amax below ``epsilon`` counts as epsilon; 2. amax 0, inf or NaN gives 1; 3. ``fl(max / amax)``; 4. inf
    becomes ``overflow_value``; 5. ``power_of_two`` clears the mantissa (rounds down to 2**k).
    The scale to store is ``fl(1 / multiplier)``.

    Args:
        amax: magnitudes, any shape.
        element: the element format.
        power_of_two: round the multiplier down to a power of two.
        epsilon: least amax.
        overflow_value: multiplier where ``max / amax`` overflows: the largest float32 per tensor, the
            largest finite value of the input dtype for blocks.

    Example:
        >>> from nvfp.dtypes import elements
        >>> hex(fp32_from_amax(2.625, elements.float8_e4m3fn).view("uint32"))
        '0x432aaaab'
    """
    a = np.asarray(amax, np.float32)
    a = np.where(a < np.float32(epsilon), np.float32(epsilon), a)
    usable = np.isfinite(a) & (a != 0)
    with np.errstate(over="ignore"):
        ratio = np.float32(element.max) / np.where(usable, a, ONE)
    ratio = np.where(np.isinf(ratio), np.float32(overflow_value), ratio)
    multiplier = np.where(usable, ratio, ONE).astype(np.float32)
    if power_of_two:
        return (multiplier.view(np.uint32) & np.uint32(0xFF800000)).view(np.float32)
    return multiplier


def inverse(multiplier: npt.ArrayLike) -> Float32:
    """Return ``fl(1 / multiplier)``, the decode factor that is stored."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(ONE / np.asarray(multiplier, np.float32), np.float32)


def s_enc(amax: npt.ArrayLike, element: Element, scale: Element, bound: float | None = None) -> Float32:
    """Return the tensor's encode factor ``min(fl(max_element * max_scale / A), FLT_MAX)``; 1 for A = 0 or not finite.

    ``bound`` stands in for max_scale (`QuantDType.scale_bound`).

    Example:
        >>> from nvfp.dtypes import elements as el
        >>> hex(s_enc(6.5, el.float4_e2m1fn, el.float8_e4m3fn).view("uint32"))
        '0x43cec4ec'
    """
    a = np.asarray(amax, np.float32)
    usable = np.isfinite(a) & (a != 0)
    with np.errstate(over="ignore"):
        factor = np.minimum(_largest(element, scale, bound) / np.where(usable, a, ONE), FLT_MAX)
    return np.where(usable, factor, ONE).astype(np.float32)


def s_enc_from_tensor_scale(tensor_scale: npt.ArrayLike) -> Float32:
    """Return the encode factor ``min(fl(1 / tensor_scale), FLT_MAX)``; 1 for a factor that is 0 or not finite."""
    t = np.asarray(tensor_scale, np.float32)
    usable = np.isfinite(t) & (t != 0)
    with np.errstate(over="ignore"):
        factor = np.minimum(ONE / np.where(usable, t, ONE), FLT_MAX)
    return np.where(usable, factor, ONE).astype(np.float32)


def tensor_scale_from_amax(
    amax: npt.ArrayLike, element: Element, scale: Element, bound: float | None = None
) -> Float32:
    """Return the stored decode factor ``fl(A / (max_element * max_scale))``; 0 for A = 0, 1 for A not finite.

    Example:
        >>> from nvfp.dtypes import elements as el
        >>> float(tensor_scale_from_amax(1344.0, el.float4_e2m1fn, el.float8_e4m3fn))
        0.5
    """
    a = np.asarray(amax, np.float32)
    with np.errstate(under="ignore", invalid="ignore"):
        factor = a / _largest(element, scale, bound)
    return np.where(np.isfinite(a), factor, ONE).astype(np.float32)


def nvfp4_block_scale(amax: npt.ArrayLike, encode_factor: npt.ArrayLike, element: Element, scale: Element) -> Codes:
    """Return the codes of the block scales, ``cast(min(fl(b * fl(S_enc * fl(1/max_element))), FLT_MAX))``.

    Args:
        amax: block maxima b, any shape.
        encode_factor: S_enc of the tensor (see `s_enc`).
        element: the element format (its maximum stands for NVFP4's 6).
        scale: the scale format; the cast saturates.

    Returns:
        Codes of ``scale.storage`` in the shape of ``amax``.

    Example:
        >>> from nvfp.dtypes import elements as el
        >>> factor = s_enc(6.5, el.float4_e2m1fn, el.float8_e4m3fn)
        >>> hex(nvfp4_block_scale(0.4375, factor, el.float4_e2m1fn, el.float8_e4m3fn))
        '0x5f'
    """
    with np.errstate(over="ignore", under="ignore"):
        per_element = np.asarray(encode_factor, np.float32) * (ONE / np.float32(element.max))
        wanted = np.minimum(np.asarray(amax, np.float32) * per_element, FLT_MAX)
    return encode(wanted, scale)


def nvfp4_multiplier(scale_codes: npt.ArrayLike, encode_factor: npt.ArrayLike, scale: Element) -> Float32:
    """Return what elements are multiplied by, ``min(fl(1 / fl(s * fl(1 / S_enc))), FLT_MAX)``.

    A scale of 0 gives FLT_MAX: zeros stay zero, and what underflowed becomes the largest code over a zero scale (TE).

    Example:
        >>> import numpy as np
        >>> from nvfp.dtypes import elements as el
        >>> factor = s_enc(6.5, el.float4_e2m1fn, el.float8_e4m3fn)
        >>> hex(nvfp4_multiplier(np.uint8(0x7E), factor, el.float8_e4m3fn).view("uint32"))
        '0x3f6c4ec4'
    """
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        local = decode(scale_codes, scale).astype(np.float32) * inverse(encode_factor)
        return np.asarray(np.minimum(ONE / local, FLT_MAX), np.float32)


def divided_tensor_level(
    amax: npt.ArrayLike, tensor_scale: npt.ArrayLike | None, element: Element, scale: Element, steps: Steps
) -> tuple[Float32, Float32]:
    """Return (what a convention that divides derives its block scales from, the decode factor to store).

    - ``order="modelopt"``: g twice, ``g = fl(A / (max_element * max_scale))`` (1 where that is not finite);
    - ``order="compressed-tensors"``: ``G = fl(fl(1 / A) * (max_element * max_scale))`` (1 where that is not finite)
      and ``fl(1 / G)``.

    Args:
        amax: A, the amax of the tensor.
        tensor_scale: a decode factor to derive it from instead of A, or None.
        element: the element format.
        scale: the scale format.
        steps: the convention.

    Example:
        >>> from nvfp.dtypes import elements as el
        >>> order = Steps("compressed-tensors")
        >>> [float(f) for f in divided_tensor_level(1344.0, None, el.float4_e2m1fn, el.float8_e4m3fn, order)]
        [2.0, 0.5]
    """
    if steps.order == "modelopt":
        g = np.asarray(tensor_scale, np.float32) if tensor_scale is not None else None
        g = tensor_scale_from_amax(amax, element, scale) if g is None else g
        g = np.where(np.isfinite(g), g, ONE).astype(np.float32).reshape(())
        return g, g
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        if tensor_scale is None:
            factor = ONE / np.asarray(amax, np.float32) * _largest(element, scale)
        else:
            factor = ONE / np.asarray(tensor_scale, np.float32)
    factor = np.where(np.isfinite(factor), factor, ONE).astype(np.float32).reshape(())
    return factor, inverse(factor)


def divided_block_scale(
    amax: npt.ArrayLike, tensor: npt.ArrayLike, element: Element, scale: Element, steps: Steps
) -> Codes:
    """Return the codes of the block scales of a convention that divides.

    - ``order="modelopt"``: ``fl(b / fl(max_element * g))``, g the tensor's decode factor;
    - ``order="compressed-tensors"``: ``fl(G * fl(b / max_element))``, G its encode factor;

    at least ``steps.least_scale`` where above 0, cast (saturating); code 0 then stands for ``steps.zero_scale``.

    Args:
        amax: block maxima b, any shape.
        tensor: g, or G.
        element: the element format.
        scale: the scale format.
        steps: the convention.

    Example:
        >>> from nvfp.dtypes import elements as el
        >>> order = Steps("modelopt", zero_scale=1.0)
        >>> divided_block_scale([6.0, 0.0], 0.5, el.float4_e2m1fn, el.float8_e4m3fn, order).tolist()
        [64, 56]
    """
    b, whole, most = np.asarray(amax, np.float32), np.asarray(tensor, np.float32), np.float32(element.max)
    with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
        wanted = b / np.maximum(most * whole, LEAST) if steps.order == "modelopt" else whole * (b / most)
    wanted = np.where(wanted > 0, np.maximum(wanted, np.float32(steps.least_scale)), wanted)
    codes = encode(wanted, scale)
    return np.where(codes == 0, encode(steps.zero_scale, scale), codes).astype(codes.dtype)


def divisor(scale_codes: npt.ArrayLike, tensor: npt.ArrayLike, scale: Element, steps: Steps) -> Float32:
    """Return what elements are divided by: ``fl(s * g)`` (modelopt) or ``fl(s / G)`` (compressed-tensors), above 0.

    Example:
        >>> import numpy as np
        >>> from nvfp.dtypes import elements as el
        >>> float(divisor(np.uint8(64), 0.5, el.float8_e4m3fn, Steps("modelopt")))
        1.0
    """
    s, whole = decode(scale_codes, scale).astype(np.float32), np.asarray(tensor, np.float32)
    with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
        found = s * whole if steps.order == "modelopt" else s / whole
    return np.asarray(np.maximum(found, LEAST), np.float32)


def _largest(element: Element, scale: Element, bound: float | None = None) -> np.float32:
    return np.float32(element.max * (scale.max if bound is None else bound))
