"""What `Module.load_state_dict` makes of names and values."""

from __future__ import annotations

from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.convert import asarray
from nvfp.arrays.quantized import QuantizedArray
from nvfp.dtypes.dense import float32

# First part of the names of `Module.extra_state`: state that is no parameter.
_EXTRA = ("scaling", "dropout")


def loaded(value: Any, p: Array) -> Array:
    """A saved value as the parameter takes it: in its dtype; dense values for a quantized one stay dense."""
    if isinstance(p, QuantizedArray) and getattr(value, "dtype", None) != p.dtype:
        return asarray(value, dtype=float32, device=p.device)
    return asarray(value, dtype=p.dtype, device=p.device)


def extra_name(key: str) -> tuple[str, str]:
    """Split ``"block.fc1.scaling.forward.scale"`` into the module's name and its own part ("" if there is none)."""
    parts = key.split(".")
    at = max((i for i, part in enumerate(parts[:-1]) if part in _EXTRA), default=len(parts))
    return ".".join(parts[:at]), ".".join(parts[at:])


def remedy(missing: list[str], unknown: list[str]) -> str:
    """What to do about names that differ; ``weight`` on one side and ``query_weight`` on the other has a reason."""
    for parts, wholes in ((missing, unknown), (unknown, missing)):
        for key in parts:
            prefix, dot, name = key.rpartition(".")
            if f"{prefix}{dot}{name.rpartition('_')[2]}" in wholes:
                return "make the module as the saved one: with the same fuse_qkv_params (or parameters_split)"
    return "pass strict=False to load what fits"
