"""What the tests of DLPack share: dtypes that other libraries have, capsules and addresses."""

from __future__ import annotations

from typing import Any

DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool",
    "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
)  # fmt: skip


class Capsule:
    """A producer that hands out one capsule."""

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        return self.capsule


def flags(capsule: Any) -> int | None:
    """The flags of a versioned capsule (1: read-only, 2: copied), None for one from before 1.0."""
    from nvfp.arrays.dlpack import _versioned

    struct = _versioned(capsule)
    return None if struct is None else int(struct.flags)


def shares(a: Any, b: Any) -> bool:
    """Whether two Arrays begin at the same address."""
    first, second = (x.raw.ctypes.data if x.device.type == "cpu" else x.raw.data.ptr for x in (a, b))
    return bool(first == second)
