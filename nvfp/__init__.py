"""NumPy for narrow floats: ``import nvfp as nf``.

The table of contents is here and in `_contents.py`, every public name of the root by the room it comes from.
Devices and dtypes are there at once; arrays and what stands on them load at the first use of one of their names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nvfp.device import (
    Device as Device,
    cuda_problem as cuda_problem,
    default_device as default_device,
    devices as devices,
    set_default_device as set_default_device,
    use_device as use_device,
)
from nvfp.dtypes.casting import can_cast as can_cast
from nvfp.dtypes.dense import (
    bfloat16 as bfloat16,
    bool as bool,
    complex64 as complex64,
    complex128 as complex128,
    float4_e2m1fn as float4_e2m1fn,
    float6_e2m3fn as float6_e2m3fn,
    float6_e3m2fn as float6_e3m2fn,
    float8_e4m3fn as float8_e4m3fn,
    float8_e5m2 as float8_e5m2,
    float8_e8m0fnu as float8_e8m0fnu,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    uint8 as uint8,
    uint16 as uint16,
    uint32 as uint32,
    uint64 as uint64,
)
from nvfp.dtypes.finfo import finfo as finfo, iinfo as iinfo, isdtype as isdtype
from nvfp.dtypes.formats import (
    QuantDType as QuantDType,
    fp8_e4m3 as fp8_e4m3,
    fp8_e4m3_b128 as fp8_e4m3_b128,
    fp8_e5m2 as fp8_e5m2,
    mxfp4 as mxfp4,
    mxfp6_e2m3 as mxfp6_e2m3,
    mxfp6_e3m2 as mxfp6_e3m2,
    mxfp8 as mxfp8,
    mxfp8_e4m3 as mxfp8_e4m3,
    mxfp8_e5m2 as mxfp8_e5m2,
    mxint8 as mxint8,
    nvfp4 as nvfp4,
)
from nvfp.dtypes.promotion import result_type as result_type

__version__ = "0.1.0"
__array_api_version__ = "2025.12"  # of the array API standard

if TYPE_CHECKING:
    from nvfp._contents import *  # noqa: F403
else:
    # The functions below use no builtin whose name is also one of nvfp's (any, all, max, ...).

    def __getattr__(name: str) -> Any:
        # Names of Python's own protocols are not late names: asking for one loads nothing.
        info = "__array_namespace_info__"
        if name.startswith("_") and name not in ("__all__", info):
            raise AttributeError(f"module 'nvfp' has no attribute {name!r}")
        found = vars(import_module("nvfp._contents"))
        late = {n: v for n, v in found.items() if n == info or not n.startswith("_")}
        late.pop("annotations", None)
        globals().update(late)
        if name == "__all__":
            return __dir__()
        if name not in late:
            raise import_module("nvfp.arrays.habits").unknown(name)
        return late[name]

    def __dir__() -> list[str]:
        hidden = ("import_module", "annotations", "TYPE_CHECKING", "Any")
        shown = ("__version__", "__array_api_version__", "__array_namespace_info__")
        __getattr__("newaxis")
        return sorted(n for n in globals() if n not in hidden and (n in shown or not n.startswith("_")))
