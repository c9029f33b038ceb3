"""Rows as ``-D`` macros: the numbers of an element and of a format, written once and part of the cache key."""

from __future__ import annotations

from functools import cache

import numpy as np

from nvfp.dtypes.codec import encode
from nvfp.dtypes.conventions import PLAIN, Order, Steps
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import QuantDType
from nvfp.kernels.cuda._loader import Defines


@cache
def element_define(macro: str, element: Element) -> Defines:
    """Return ``((macro, "bits,exponent,..."),)``, the template arguments of ``Format`` in ``encode.cuh``.

    Example:
        >>> from nvfp.dtypes.elements import float4_e2m1fn
        >>> element_define("ELEMENT", float4_e2m1fn)
        (('ELEMENT', '4,2,1,1,7,7,7,4'),)
    """
    flags = element.has_nan * 1 + element.has_inf * 2 + element.signed * 4 + element.integer * 8
    numbers = (
        element.bits, element.exponent_bits, element.mantissa_bits, element.bias,
        element.max_code, element.nan_code, element.overflow_code, flags,
    )  # fmt: skip
    return ((macro, ",".join(map(str, numbers))),)


_FAMILIES = {"float32": 0, "e8m0": 1, "two_level": 2}
_RULES = {"ceil": 0, "floor": 1, "even": 2}


@cache
def format_defines(fmt: QuantDType) -> Defines:
    """Return the macros of ``format.cuh`` but SATURATE, which belongs to a call.

    Example:
        >>> from nvfp.dtypes.formats import nvfp4
        >>> dict(format_defines(nvfp4))["FAMILY"]
        2
    """
    return (
        *element_define("ELEMENT", fmt.element),
        *element_define("SCALE", fmt.scale),
        ("FAMILY", _FAMILIES[fmt.scale_family]),
        ("SCALE_RULE", _RULES[fmt.scale_rule]),
        ("POWER_OF_TWO", int(fmt.power_of_two_scales)),
        ("NAN_BLOCK", int(fmt.nonfinite == "nan_block")),
        ("TENSOR_SCALE", int(fmt.tensor_scale)),
    )


_ORDERS: dict[Order, int] = {"nvfp": 0, "modelopt": 1, "compressed-tensors": 2}


@cache
def steps_define(fmt: QuantDType, steps: Steps) -> Defines:
    """Return the macro of what a convention changes; none where that is nothing.

    Example:
        >>> from nvfp.dtypes.conventions import apply_convention
        >>> from nvfp.dtypes.formats import nvfp4
        >>> steps_define(*apply_convention(nvfp4, "modelopt"))
        (('CONVENTION', '1,56,989855744,-1,0,0,1'),)
    """
    if steps == PLAIN:
        return ()
    zero = int(encode(steps.zero_scale, fmt.scale)) if steps.zero_scale else 0
    least = int(np.float32(steps.least_scale).view(np.uint32))
    even_bits = -1 if steps.even_bits is None else steps.even_bits
    flags = (int(steps.even_overflow), int(steps.symmetric), int(not steps.keep_minus_zero))
    return (("CONVENTION", ",".join(map(str, (_ORDERS[steps.order], zero, least, even_bits, *flags)))),)
