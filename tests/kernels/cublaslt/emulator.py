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
    28: np.dtype(ml_dtypes.float8_e4m3fn), 29: np.dtype(ml_dtypes.float8_e5m2), 33: np.dtype(ml_dtypes.float4_e2m1fn),
}  # fmt: skip
FP8, FP4 = (28, 29), 33
COMBINATIONS = {  # (A, B) -> (compute, scale type, D types)
    (0, 0): (68, 0, (0,)),
    (1, 1): (70, 1, (1,)),
    (2, 2): (68, 0, (2, 0)),
    (14, 14): (68, 0, (14, 0)),
    (28, 28): (68, 0, (14, 2, 0, 28)),
    (28, 29): (68, 0, (14, 2, 0, 28, 29)),
    (29, 28): (68, 0, (14, 2, 0, 28, 29)),
    (33, 33): (68, 0, (14, 2, 0)),
}
SCALAR, VEC16, VEC32, OUTER, VEC128, BLK128 = 0, 1, 2, 3, 4, 5  # scale modes
SCALE_MODES = {  # by the major compute capability
    8: {(SCALAR, SCALAR)},
    9: {(SCALAR, SCALAR), (VEC128, VEC128), (VEC128, BLK128), (BLK128, VEC128), (OUTER, OUTER)},
    10: {(SCALAR, SCALAR), (VEC16, VEC16), (VEC32, VEC32)},
}
BIAS, GELU, DGELU, AUX = 4, 32, 64, 128  # bits of cublasLtEpilogue_t
# Widths in bytes, from cublasLt.h.
DESC_WIDTHS = {
    2: 4, 3: 4, 4: 4, 7: 4, 8: 8, 11: 8, 12: 8, 17: 8, 18: 8, 20: 8, 21: 8, 25: 1, 26: 4, 31: 4, 32: 4,
}  # fmt: skip
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
        refuse: what has no algorithm: ``"bias"``, ``"epilogue"``, ``"fp8"``, ``"all"``; ``"run"``:
            an epilogue that has an algorithm is refused when it runs.
        major: compute capability whose scale modes there are.
        proposed: how many algorithms there are for a problem.
        workspace: bytes that the algorithm asks for.
        objects: attributes of the objects that are alive, by handle.
        calls: sizes of every matmul.
    """

    cuBLASLtError = cuBLASLtError

    def __init__(self) -> None:
        self.refuse: tuple[str, ...] = ()
        self.major = 9
        self.proposed = 1
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
        """Propose algorithms: the alignments they need and their number, in place of cuBLASLt's opaque words."""
        assert handle in self.objects
        self._check(*(self.objects[x] for x in (desc, a, b, c, d)))
        chosen, n = self.objects[preference], min(wanted, self.proposed)
        record = np.zeros(n, [("algo", "<u8", (8,)), ("workspace", "<u8"), ("state", "<i4"), ("rest", "<i4", (5,))])
        record["algo"][:, :4] = [chosen[5], chosen[6], chosen[7], chosen[8]]
        record["algo"][:, 4] = np.arange(n)
        record["workspace"] = self.workspace
        assert record.itemsize == 96 and self.workspace <= chosen[1]
        ctypes.memmove(results, record.ctypes.data, record.nbytes)
        ctypes.memmove(found, np.array([n], np.int32).ctypes.data, 4)

    def _check(
        self, desc: dict[Any, int], a: dict[Any, int], b: dict[Any, int], c: dict[Any, int], d: dict[Any, int]
    ) -> None:
        pair = (a["type"], b["type"])
        narrow = pair[0] in FP8 or pair[0] == FP4
        if pair not in COMBINATIONS or "all" in self.refuse or ("fp8" in self.refuse and narrow):
            raise cuBLASLtError(15, f"types {pair}")
        compute, scale_type, outputs = COMBINATIONS[pair]
        allowed = (compute, 77) if pair == (0, 0) else (compute,)
        if desc["compute"] not in allowed or desc["scale_type"] != scale_type or d["type"] not in outputs:
            raise cuBLASLtError(15, f"{pair} to {d['type']} in {desc['compute']}")
        same = {k: v for k, v in c.items() if k != "type"} == {k: v for k, v in d.items() if k != "type"}
        if not same or c["type"] != (14 if d["type"] in FP8 else d["type"]):
            raise cuBLASLtError(7, f"C of type {c['type']} beside D of {d['type']}")
        batches = {x.get(5, 1) for x in (a, b, d)}
        if len(batches) != 1:
            raise cuBLASLtError(7, f"batch counts {batches}")
        self._check_epilogue(desc, pair, d)
        if narrow:
            self._check_narrow(desc, a, b, d)
        elif desc.get(25) or desc.get(17) or desc.get(18):
            raise cuBLASLtError(7, "fast accumulation or scales without FP8")

    def _check_epilogue(self, desc: dict[Any, int], pair: tuple[int, int], d: dict[Any, int]) -> None:
        kind = desc.get(7, 1)
        narrow = pair[0] in FP8 or pair[0] == FP4
        if kind not in (1, 4, 32, 36, 160, 164, 192):
            raise cuBLASLtError(7, f"epilogue {kind}")
        if "epilogue" in self.refuse and kind not in (1, 4):
            raise cuBLASLtError(15, f"epilogue {kind}")
        if kind & BIAS:
            bias = 14 if narrow and d["type"] != 2 else d["type"]
            if "bias" in self.refuse or desc.get(26) != bias:
                raise cuBLASLtError(15, f"bias of type {desc.get(26)}, wants {bias}")
        if kind & AUX:
            ld = desc.get(12, 0)
            if ld < d["rows"] or ld % 8 or not desc.get(11) or desc[11] % 16 or d["type"] in FP8:
                raise cuBLASLtError(15, f"aux at {desc.get(11)}, leading dimension {ld}")
        if (kind != 1 and kind != 4) and d.get(5, 1) > 1:
            raise cuBLASLtError(15, "epilogues of a batch")
        if d["type"] in FP8 and not desc.get(20):
            raise cuBLASLtError(7, "no scale for an FP8 D")
        if desc.get(21) and d["type"] not in FP8:
            raise cuBLASLtError(7, "amax without an FP8 D")

    def _check_narrow(self, desc: dict[Any, int], a: dict[Any, int], b: dict[Any, int], d: dict[Any, int]) -> None:
        if (desc[3], desc[4]) != (1, 0):
            raise cuBLASLtError(15, "FP8 needs A transposed and B not")
        size = DTYPES[d["type"]].itemsize
        unit = 32 if a["type"] == FP4 else 16
        sides = [v for x in (a, b) for v in (x["rows"], x["ld"], x.get(6, 0))]
        written = [v * size for v in (d["rows"], d["ld"], d.get(6, 0))]
        if any(x % unit for x in sides) or any(x % 16 for x in written):
            raise cuBLASLtError(15, f"FP8 dimensions {sides}, {written} are not multiples of 16 bytes")
        modes = desc.get(31, SCALAR), desc.get(32, SCALAR)
        if modes not in SCALE_MODES[self.major] or (modes[0] not in (SCALAR, OUTER) and desc.get(25)):
            raise cuBLASLtError(15, f"scale modes {modes}, fast accumulation {desc.get(25, 0)}")
        if (VEC16 in modes) != (a["type"] == FP4):
            raise cuBLASLtError(15, f"scale modes {modes} of type {a['type']}")
        if modes == (SCALAR, SCALAR):
            return
        if not (desc.get(17) and desc.get(18)):
            raise cuBLASLtError(7, "block scales without pointers")  # seen on an H200, by the heuristics too
        rounded = modes[0] in (VEC128, BLK128) and (d["rows"] % 4 or d["columns"] % 4)
        if rounded or d.get(5, 1) > 1 or d["type"] in FP8:
            raise cuBLASLtError(15, f"block scales and {d['rows']} x {d['columns']}, batch {d.get(5, 1)}")

    def matmul(
        self, handle: int, desc: int, alpha: int, a: int, la: int, b: int, lb: int, beta: int, c: int, lc: int,
        d: int, ld: int, algorithm: int, workspace: int, workspace_bytes: int, stream: int,
    ) -> None:  # fmt: skip
        fields, layouts = self.objects[desc], [self.objects[x] for x in (la, lb, ld)]
        self._check(fields, layouts[0], layouts[1], self.objects[lc], layouts[2])
        assert c == (0 if layouts[2]["type"] in FP8 else d)
        if "run" in self.refuse and fields.get(7, 1) not in (1, 4):
            raise cuBLASLtError(7, "what the heuristics did not say")
        assert workspace_bytes == self.workspace and bool(workspace) == bool(self.workspace)
        words = np.frombuffer(ctypes.string_at(algorithm, 64), np.uint64)
        for address, layout, need in zip((a, b, d), layouts, words[[0, 1, 3]], strict=True):
            assert address, "a null pointer"
            batch_bytes = layout.get(6, 0) * DTYPES[layout["type"]].itemsize
            unit = min(int(need), 16)  # NumPy's own memory is aligned to 16 only
            assert address % unit == 0 and batch_bytes % min(int(need), 256) == 0, (
                f"{address}, {batch_bytes} not aligned to {need}"
            )
        scalar = DTYPES[fields["scale_type"]]
        one, zero = (float(_memory(x, scalar.itemsize).view(scalar)[0]) for x in (alpha, beta))
        factors: list[Any] = [1.0, 1.0]
        if layouts[0]["type"] in (*FP8, FP4):
            factors = [_scales(fields[17 + i], fields.get(31 + i, SCALAR), layouts[i]) for i in range(2)]
        for i in range(layouts[0].get(5, 1)):
            left, right = (_matrix(x, layout, i).astype(np.float64) for x, layout in zip((a, b), layouts, strict=False))
            target = _matrix(d, layouts[2], i)
            with np.errstate(all="ignore"):
                left, right = left * factors[0], right * factors[1]
                value = one * ((left.T if fields[3] else left) @ (right.T if fields[4] else right))
                value = value + zero * target.astype(np.float64) if zero else value
                value = self._tail(fields, value, layouts[2])
                if target.dtype in (DTYPES[28], DTYPES[29]):
                    value = self._narrow(fields, value, target.dtype)
                target[...] = value.astype(np.float32).astype(target.dtype) if target.itemsize < 8 else value
        self.calls.append(
            {
                "stream": stream,
                "m": layouts[2]["rows"],
                "n": layouts[2]["columns"],
                "batch": layouts[0].get(5, 1),
                "epilogue": fields.get(7, 1),
                "algorithm": int(words[4]),
            }
        )

    @staticmethod
    def _tail(fields: dict[Any, int], value: np.ndarray, d: dict[Any, int]) -> np.ndarray:
        """The epilogue of alpha A B + beta C, [rows, columns] of column-major memory."""
        kind = fields.get(7, 1)
        if kind & BIAS:
            value = value + _vector(fields, d["rows"]).astype(np.float64)[:, None]
        if kind & AUX:
            aux = _matrix(fields[11], {**d, "ld": fields[12]}, 0)
        if kind & GELU and not kind & DGELU:
            if kind & AUX:
                aux[...] = value.astype(aux.dtype)
            return value * _gate(value)[0]
        if kind & DGELU:
            z = aux.astype(np.float64)
            s, slope = _gate(z)
            value = value * (s + z * slope)
        return value

    @staticmethod
    def _narrow(fields: dict[Any, int], value: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if fields.get(21):
            _memory(fields[21], 4).view(np.float32)[0] = np.abs(value).max()
        top = float(ml_dtypes.finfo(dtype).max)
        scaled = value * float(_memory(fields[20], 4).view(np.float32)[0])
        return np.asarray(np.clip(scaled, -top, top))


def _gate(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """gelu(x) = x s(x), the tanh form: s, and its derivative."""
    u = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    s = 0.5 * (1 + np.tanh(u))
    return s, 2 * s * (1 - s) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)


def _vector(fields: dict[Any, int], size: int) -> np.ndarray:
    """The bias, or where the bias gradient goes."""
    kind = DTYPES[fields[26]]
    return _memory(fields[8], size * kind.itemsize).view(kind)


def _memory(address: int, nbytes: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), np.uint8)


def _scales(address: int, mode: int, layout: dict[Any, int]) -> Any:
    """What every element of an FP8 operand [K, rows] is multiplied by."""
    k, rows = layout["rows"], layout["columns"]
    steps = -(-k // 128)
    if mode == SCALAR:
        return float(_memory(address, 4).view(np.float32)[0])
    assert address % 16 == 0, "block scales start at multiples of 16 bytes"
    if mode == OUTER:
        return _memory(address, 4 * rows).view(np.float32)[None].astype(np.float64)
    if mode in (VEC16, VEC32):
        return _tiled(address, *((16, 28) if mode == VEC16 else (32, 0)), k, rows)
    if mode == VEC128:
        table = _memory(address, 4 * steps * rows).view(np.float32).reshape(steps, rows)
        return np.repeat(table, 128, axis=0)[:k].astype(np.float64)
    pitch, blocks = -(-steps // 4) * 4, -(-rows // 128)
    table = _memory(address, 4 * blocks * pitch).view(np.float32).reshape(blocks, pitch)[:, :steps]
    return np.repeat(np.repeat(table.T, 128, axis=0)[:k], 128, axis=1)[:, :rows].astype(np.float64)


def _tiled(address: int, block: int, element: int, k: int, rows: int) -> np.ndarray:
    """Scales in tiles of 128 x 4, [K, rows]: the documentation's formula."""
    steps = -(-k // block)
    wide = -(-steps // 4) * 4
    buffer = _memory(address, -(-rows // 128) * 128 * wide)
    r, c = np.arange(rows)[:, None], np.arange(steps)[None]
    tile = (c // 4 * 4 + r // 128 * wide) * 128  # (sf_inner + sf_outer * sf_inner_dim) * 128, sf_outer in tiles
    codes = buffer[tile + r % 32 * 16 + r % 128 // 32 * 4 + c % 4]
    value = codes.view(DTYPES[element]).astype(np.float64) if element else np.exp2(codes.astype(np.float64) - 127)
    return np.repeat(value, block, axis=1)[:, :k].T


def _matrix(address: int, layout: dict[Any, int], index: int) -> np.ndarray:
    """Matrix ``index`` of a batch as a writeable view [rows, columns] of column-major memory."""
    dtype, rows, columns, ld = DTYPES[layout["type"]], layout["rows"], layout["columns"], layout["ld"]
    if layout["type"] == FP4:
        packed = _memory(address, ((columns - 1) * ld + rows) // 2)
        codes = np.ndarray((rows // 2, columns), np.uint8, packed, strides=(1, ld // 2))
        both = np.stack([codes & 15, codes >> 4], axis=1).reshape(rows, columns)
        return both.view(dtype)
    start = address + index * layout.get(6, 0) * dtype.itemsize
    memory = _memory(start, ((columns - 1) * ld + rows) * dtype.itemsize)
    return np.ndarray((rows, columns), dtype, memory, strides=(dtype.itemsize, ld * dtype.itemsize))
