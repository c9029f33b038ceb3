"""Rows as ``-D`` macros: the numbers of an element and of a format, written once and part of the cache key."""

from __future__ import annotations

from functools import cache

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
