"""cuBLASLt on the host: the calls of `nvmath.bindings.cublasLt` over NumPy memory, strict where the library is.

It reads operands by address through the layouts it was given, so that what the launcher says about
shapes, leading dimensions, batches, transpositions, alignments and attributes is checked by the numbers.
The rules are those of the cuBLASLt documentation and of the H200 measurements.
"""

from __future__ import annotations

import ctypes
from itertools import count
from typing import Any

import ml_dtypes
import numpy as np

DTYPES = {
    0: np.dtype(np.float32), 1: np.dtype(np.float64), 2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16),
    28: np.dtype(ml_dtypes.float8_e4m3fn), 29: np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
FP8 = (28, 29)
COMBINATIONS = {  # (A, B) -> (compute, scale type, D types)
    (0, 0): (68, 0, (0,)),
    (1, 1): (70, 1, (1,)),
    (2, 2): (68, 0, (2, 0)),
    (14, 14): (68, 0, (14, 0)),
    (28, 28): (68, 0, (14, 2, 0)),
    (28, 29): (68, 0, (14, 2, 0)),
    (29, 28): (68, 0, (14, 2, 0)),
}
SCALAR, VEC128, BLK128 = 0, 4, 5  # scale modes of FP8 operands on compute capability 9.0
SCALE_MODES = {(SCALAR, SCALAR), (VEC128, VEC128), (VEC128, BLK128), (BLK128, VEC128)}
# Widths in bytes, from cublasLt.h.
DESC_WIDTHS = {2: 4, 3: 4, 4: 4, 7: 4, 8: 8, 17: 8, 18: 8, 25: 1, 26: 4, 31: 4, 32: 4}
LAYOUT_WIDTHS = {5: 4, 6: 8}
PREFERENCE_WIDTHS = {1: 8, 3: 4, 5: 4, 6: 4, 7: 4, 8: 4}


class cuBLASLtError(Exception):
    """A status that is not 0."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(f"status {status}: {why}")
        self.status = status


class FakeLt:
    """What `binding` calls.

    Attributes:
        refuse: what has no algorithm: ``"bias"``, ``"fp8"``, ``"all"``.
        workspace: bytes that the algorithm asks for.
        objects: attributes of the objects that are alive, by handle.
        calls: sizes of every matmul.
    """

    cuBLASLtError = cuBLASLtError

    def __init__(self) -> None:
        self.refuse: tuple[str, ...] = ()
        self.workspace = 0
        self.objects: dict[int, dict[Any, int]] = {}
        self.calls: list[dict[str, int]] = []
        self._next = count(1)

    def _new(self, **fields: int) -> int:
        handle = next(self._next)
        self.objects[handle] = dict(fields)
        return handle

    def _store(self, target: int, attribute: int, address: int, size: int, widths: dict[int, int]) -> None:
        if widths.get(attribute) != size:
            raise cuBLASLtError(7, f"attribute {attribute} takes {widths.get(attribute)} bytes, got {size}")
        self.objects[target][attribute] = int.from_bytes(ctypes.string_at(address, size), "little", signed=True)

    def get_version(self) -> int:
        return 130100

    def create(self) -> int:
        return self._new()

    def matmul_desc_create(self, compute: int, scale_type: int) -> int:
        return self._new(compute=compute, scale_type=scale_type)

    def matmul_desc_set_attribute(self, desc: int, attribute: int, address: int, size: int) -> None:
        self._store(desc, attribute, address, size, DESC_WIDTHS)

    def matrix_layout_create(self, data_type: int, rows: int, columns: int, ld: int) -> int:
        if ld < rows:
            raise cuBLASLtError(7, f"leading dimension {ld} below {rows} rows")
        return self._new(type=data_type, rows=rows, columns=columns, ld=ld)

    def matrix_layout_set_attribute(self, layout: int, attribute: int, address: int, size: int) -> None:
        self._store(layout, attribute, address, size, LAYOUT_WIDTHS)

    def matmul_preference_create(self) -> int:
        return self._new()

    def matmul_preference_set_attribute(self, preference: int, attribute: int, address: int, size: int) -> None:
        self._store(preference, attribute, address, size, PREFERENCE_WIDTHS)

    def matmul_desc_destroy(self, handle: int) -> None:
        del self.objects[handle]

    matrix_layout_destroy = matmul_preference_destroy = matmul_desc_destroy

    def matmul_algo_get_heuristic(
        self,
        handle: int,
        desc: int,
        a: int,
        b: int,
        c: int,
        d: int,
        preference: int,
        wanted: int,
        results: int,
        found: int,
    ) -> None:
        """Propose one algorithm: the alignments it needs, in place of cuBLASLt's opaque words."""
        assert wanted == 1 and c == d and handle in self.objects
        self._check(*(self.objects[x] for x in (desc, a, b, d)))
        chosen = self.objects[preference]
        record = np.zeros(1, [("algo", "<u8", (8,)), ("workspace", "<u8"), ("state", "<i4"), ("rest", "<i4", (5,))])
        record["algo"][0, :4] = [chosen[5], chosen[6], chosen[7], chosen[8]]
        record["workspace"] = self.workspace
        assert record.nbytes == 96 and self.workspace <= chosen[1]
        ctypes.memmove(results, record.ctypes.data, 96)
        ctypes.memmove(found, np.ones(1, np.int32).ctypes.data, 4)

    def _check(self, desc: dict[Any, int], a: dict[Any, int], b: dict[Any, int], d: dict[Any, int]) -> None:
        pair = (a["type"], b["type"])
        if pair not in COMBINATIONS or "all" in self.refuse or ("fp8" in self.refuse and pair[0] in FP8):
            raise cuBLASLtError(15, f"types {pair}")
        compute, scale_type, outputs = COMBINATIONS[pair]
        if (desc["compute"], desc["scale_type"]) != (compute, scale_type) or d["type"] not in outputs:
            raise cuBLASLtError(15, f"{pair} to {d['type']} in {desc['compute']}")
        batches = {x.get(5, 1) for x in (a, b, d)}
        if len(batches) != 1:
            raise cuBLASLtError(7, f"batch counts {batches}")
        if desc.get(7, 1) == 4:
            bias = 14 if pair[0] in FP8 and d["type"] != 2 else d["type"]
            if "bias" in self.refuse or desc.get(26) != bias:
                raise cuBLASLtError(15, f"bias of type {desc.get(26)}, wants {bias}")
        if pair[0] in FP8:
            self._check_fp8(desc, a, b, d)
        elif desc.get(25) or desc.get(17) or desc.get(18):
            raise cuBLASLtError(7, "fast accumulation or scales without FP8")

    @staticmethod
    def _check_fp8(desc: dict[Any, int], a: dict[Any, int], b: dict[Any, int], d: dict[Any, int]) -> None:
        if (desc[3], desc[4]) != (1, 0):
            raise cuBLASLtError(15, "FP8 needs A transposed and B not")
        size = DTYPES[d["type"]].itemsize
        lengths = (
            a["rows"],
            b["rows"],
            a["ld"],
            b["ld"],
            a.get(6, 0),
            b.get(6, 0),
            *(d[x] * size for x in ("rows", "ld")),
        )
        if any(x % 16 for x in (*lengths, d.get(6, 0) * size)):
            raise cuBLASLtError(15, f"FP8 dimensions {lengths} are not multiples of 16 bytes")
        modes = desc.get(31, SCALAR), desc.get(32, SCALAR)
        if modes not in SCALE_MODES or (modes != (SCALAR, SCALAR) and desc.get(25)):
            raise cuBLASLtError(15, f"scale modes {modes}, fast accumulation {desc.get(25, 0)}")
        if modes != (SCALAR, SCALAR) and not (desc.get(17) and desc.get(18)):
            raise cuBLASLtError(7, "block scales without pointers")  # seen on an H200, by the heuristics too
        if modes != (SCALAR, SCALAR) and (d["rows"] % 4 or d["columns"] % 4 or d.get(5, 1) > 1):
            raise cuBLASLtError(15, f"block scales and {d['rows']} x {d['columns']}, batch {d.get(5, 1)}")

    def matmul(
        self, handle: int, desc: int, alpha: int, a: int, la: int, b: int, lb: int, beta: int, c: int, lc: int,
        d: int, ld: int, algorithm: int, workspace: int, workspace_bytes: int, stream: int,
    ) -> None:  # fmt: skip
        fields, layouts = self.objects[desc], [self.objects[x] for x in (la, lb, ld)]
        self._check(fields, *layouts)
        assert c == d and lc == ld
        assert workspace_bytes == self.workspace and bool(workspace) == bool(self.workspace)
        needs = np.frombuffer(ctypes.string_at(algorithm, 64), np.uint64)[[0, 1, 3]]
        for address, layout, need in zip((a, b, d), layouts, needs, strict=True):
            assert address, "a null pointer"
            batch_bytes = layout.get(6, 0) * DTYPES[layout["type"]].itemsize
            unit = min(int(need), 16)  # NumPy's own memory is aligned to 16 only
            assert address % unit == 0 and batch_bytes % min(int(need), 256) == 0, (
                f"{address}, {batch_bytes} not aligned to {need}"
            )
        scalar = DTYPES[fields["scale_type"]]
        one, zero = (float(_memory(x, scalar.itemsize).view(scalar)[0]) for x in (alpha, beta))
        factors: list[Any] = [1.0, 1.0]
        if fields["scale_type"] == 0 and layouts[0]["type"] in FP8:
            factors = [_scales(fields[17 + i], fields.get(31 + i, SCALAR), layouts[i]) for i in range(2)]
        bias = None
        if fields.get(7, 1) == 4:
            kind = DTYPES[fields[26]]
            bias = _memory(fields[8], layouts[2]["rows"] * kind.itemsize).view(kind).astype(np.float64)
        for i in range(layouts[0].get(5, 1)):
            left, right = (_matrix(x, layout, i).astype(np.float64) for x, layout in zip((a, b), layouts, strict=False))
            target = _matrix(d, layouts[2], i)
            with np.errstate(all="ignore"):
                left, right = left * factors[0], right * factors[1]
                value = one * ((left.T if fields[3] else left) @ (right.T if fields[4] else right))
                value = value + zero * target.astype(np.float64) if zero else value
                value = value if bias is None else value + bias[:, None]
                target[...] = value.astype(np.float32).astype(target.dtype) if target.itemsize < 8 else value
        self.calls.append(
            {"stream": stream, "m": layouts[2]["rows"], "n": layouts[2]["columns"], "batch": layouts[0].get(5, 1)}
        )


def _memory(address: int, nbytes: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), np.uint8)


def _scales(address: int, mode: int, layout: dict[Any, int]) -> Any:
    """What every element of an FP8 operand [K, rows] is multiplied by."""
    k, rows = layout["rows"], layout["columns"]
    steps = -(-k // 128)
    if mode == SCALAR:
        return float(_memory(address, 4).view(np.float32)[0])
    assert address % 16 == 0, "block scales start at multiples of 16 bytes"
    if mode == VEC128:
        table = _memory(address, 4 * steps * rows).view(np.float32).reshape(steps, rows)
        return np.repeat(table, 128, axis=0)[:k].astype(np.float64)
    pitch, blocks = -(-steps // 4) * 4, -(-rows // 128)
    table = _memory(address, 4 * blocks * pitch).view(np.float32).reshape(blocks, pitch)[:, :steps]
    return np.repeat(np.repeat(table.T, 128, axis=0)[:k], 128, axis=1)[:, :rows].astype(np.float64)


def _matrix(address: int, layout: dict[Any, int], index: int) -> np.ndarray:
    """Matrix ``index`` of a batch as a writeable view [rows, columns] of column-major memory."""
    dtype, rows, columns, ld = DTYPES[layout["type"]], layout["rows"], layout["columns"], layout["ld"]
    start = address + index * layout.get(6, 0) * dtype.itemsize
    memory = _memory(start, ((columns - 1) * ld + rows) * dtype.itemsize)
    return np.ndarray((rows, columns), dtype, memory, strides=(dtype.itemsize, ld * dtype.itemsize))
