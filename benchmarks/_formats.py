"""The block formats along one axis that the CPU limits name, and what other libraries do for them on float32."""

from __future__ import annotations

from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from _harness import Rivals
from _timing import Call

from nvfp.dtypes import formats as f
from nvfp.dtypes.formats import QuantDType

ELEMENTS: dict[str, Any] = {"e4m3": ml_dtypes.float8_e4m3fn, "e2m1": ml_dtypes.float4_e2m1fn}


def lines(columns: int) -> dict[str, QuantDType]:
    """Return the rows by name; ``columns`` is the block of one scale per row."""
    return {
        "fp8, a scale per row": f.fp8_e4m3.replace(block=columns),
        "fp8_e4m3_b128": f.fp8_e4m3_b128,
        "mxfp8_e4m3": f.mxfp8_e4m3,
        "mxfp8_e5m2": f.mxfp8_e5m2,
        "mxfp6_e2m3": f.mxfp6_e2m3,
        "mxfp6_e3m2": f.mxfp6_e3m2,
        "mxfp4": f.mxfp4,
        "mxint8": f.mxint8,
        "nvfp4": f.nvfp4,
        "nvfp4, a tensor scale per row": f.nvfp4.replace(per_row_tensor_scale=True),
        "nvfp4 4-over-6 mae": f.nvfp4.replace(four_over_six="mae_256"),
        "nvfp4 4-over-6 mse": f.nvfp4.replace(four_over_six="mse_256"),
        "e3m2, 24, e5m2 scale": QuantDType("e3m2_b24", "float6_e3m2fn", 24, "float8_e5m2"),
        "int4, 32, bfloat16 scale": QuantDType("int4_b32", "int4", 32, "bfloat16"),
    }


def rivals(name: str, x: np.ndarray) -> Rivals:
    """Return what other libraries do for a format on the CPU: torchao, eager, and the bare cast of ml_dtypes."""
    found: dict[str, tuple[Any, str]] = {
        "fp8 current": (_tensorwise, "e4m3"),
        "mxfp8_e4m3": (_to_mx, "e4m3"),
        "nvfp4": (_nvfp4, "e2m1"),
    }
    if name not in found:
        return {}
    make, element = found[name]
    return {"torchao": partial(make, x), **bare_cast(x, element)}


def bare_cast(x: np.ndarray, element: str) -> Rivals:
    """Return ``astype`` of ml_dtypes."""
    return {"ml_dtypes astype": lambda: partial(x.astype, ELEMENTS[element])}


def _tensorwise(x: np.ndarray) -> Call:
    import torch
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
    from torchao.float8.float8_training_tensor import LinearMMConfig

    return partial(hp_tensor_to_float8_dynamic, torch.from_numpy(x), torch.float8_e4m3fn, LinearMMConfig())


def _to_mx(x: np.ndarray) -> Call:
    import torch
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    return partial(to_mx, torch.from_numpy(x), torch.float8_e4m3fn, 32)


def _nvfp4(x: np.ndarray) -> Call:
    import torch
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    t = torch.from_numpy(x)
    return lambda: nvfp4_quantize(t, 16, per_tensor_amax_to_scale(t.abs().max()))
