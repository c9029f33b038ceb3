"""`GemmProblem`: one GEMM as a frozen, hashable, printable record; it keys the cache of plans.

The record speaks row-major: Y [M, N] = X [M, K] W [K, N]. cuBLASLt is column-major, where the memory
of a row-major matrix is its transpose, so it is asked for Y^T = W^T X^T: its A is our W, its B is our X,
its m, n, k are our N, M, K. `GemmProblem.layouts` and `.attributes` hold that translation, nothing else does.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nvfp.kernels.cublaslt import typemap as tm


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix of a GEMM.

    Attributes:
        dtype: name, a key of `typemap.DATA_TYPE`.
        ld: distance of two stored rows, in elements.
        transposed: whether the last two axes are swapped in storage.
        stride: distance of two matrices of the batch, in elements.
        align: bytes to which every matrix of the batch is aligned (256 at most).
        scale: scale mode (a key of `typemap.SCALE_MODE`), or None.
    """

    dtype: str
    ld: int
    transposed: bool = False
    stride: int = 0
    align: int = 256
    scale: str | None = None

    def __str__(self) -> str:
        text = f"{self.dtype}{'^T' if self.transposed else ''} ld {self.ld}"
        text += f" scale {self.scale}" if self.scale else ""
        text += f" stride {self.stride}" if self.stride else ""
        return text + (f" align {self.align}" if self.align != 256 else "")


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """Everything that decides how cuBLASLt computes Y = f(alpha X W + beta Y + bias).

    Attributes:
        m: rows of X and Y.
        n: columns of W and Y.
        k: columns of X, rows of W.
        x: left operand.
        w: right operand.
        y: result, row-major.
        batch: matrices per call.
        bias: dtype name of the bias [N] that the epilogue adds, or None.
        accumulate: whether beta is 1 (else 0).
        fast_accumulation: FP8 on Ada and Hopper: keep partial sums in the tensor core.
        device_alpha: alpha and beta are read from device memory.
        compute: accumulation dtype, ``"float32"`` or ``"float64"``.
        tf32: factors of float32 are rounded to TF32.
        epilogue: f, a key of `typemap.EPILOGUE`.
        aux_ld: distance of two rows of the pre-activation that the epilogue reads or writes; 0 without one.
        amax: whether the largest magnitude of an FP8 Y is wanted.

    Example:
        >>> x, w, y = Matrix("bfloat16", 128), Matrix("bfloat16", 128, transposed=True), Matrix("float32", 32)
        >>> print(GemmProblem(64, 32, 128, x, w, y, accumulate=True))
        Y[64, 32] float32 ld 32 = X[64, 128] bfloat16 ld 128 @ W[128, 32] bfloat16^T ld 128, accumulate
    """

    m: int
    n: int
    k: int
    x: Matrix
    w: Matrix
    y: Matrix
    batch: int = 1
    bias: str | None = None
    accumulate: bool = False
    fast_accumulation: bool = False
    device_alpha: bool = False
    compute: str = "float32"
    tf32: bool = False
    epilogue: str = "default"
    aux_ld: int = 0
    amax: bool = False

    def layouts(self) -> tuple[tuple[int, int, int, int, int, int], ...]:
        """Return (data type, rows, columns, ld, batch, stride) of cuBLASLt's A, B, D and C (bfloat16 beside FP8)."""
        c = "bfloat16" if self.narrow else self.y.dtype
        sides = (
            (self.w, self.n, self.k, self.w.dtype),
            (self.x, self.k, self.m, self.x.dtype),
            (self.y, self.n, self.m, self.y.dtype),
            (self.y, self.n, self.m, c),
        )
        found = []
        for side, fast, slow, dtype in sides:  # column-major rows run along the axis that is contiguous
            rows, columns = (slow, fast) if side.transposed else (fast, slow)
            found.append((tm.DATA_TYPE[dtype], rows, columns, side.ld, self.batch, side.stride))
        return tuple(found)

    @property
    def narrow(self) -> bool:
        """Whether Y is FP8."""
        return self.y.dtype.startswith("float8")

    def attributes(self) -> tuple[tuple[tm.Attribute, int], ...]:
        """Return the constant attributes of the matmul descriptor (pointers are set at each call)."""
        found = [
            (tm.TRANSA, tm.OP_T if self.w.transposed else tm.OP_N),
            (tm.TRANSB, tm.OP_T if self.x.transposed else tm.OP_N),
        ]
        if self.device_alpha:
            found.append((tm.POINTER_MODE, tm.POINTER_DEVICE))
        epilogue = self._epilogue()
        if epilogue != tm.EPILOGUE["default"]:
            found.append((tm.EPILOGUE_KIND, epilogue))
        if self.bias is not None:
            found.append((tm.BIAS_DATA_TYPE, tm.DATA_TYPE[self.bias]))
        if self.aux_ld:
            found.append((tm.AUX_LD, self.aux_ld))
        if self.fast_accumulation:
            found.append((tm.FAST_ACCUM, 1))
        for attribute, side in ((tm.A_SCALE_MODE, self.w), (tm.B_SCALE_MODE, self.x)):
            if side.scale is not None and tm.SCALE_MODE[side.scale]:
                found.append((attribute, tm.SCALE_MODE[side.scale]))
        return tuple(found)

    def _epilogue(self) -> int:
        """cublasLtEpilogue_t: the function, and bits for a bias that is added and a pre-activation that is written."""
        number = tm.EPILOGUE[self.epilogue]
        if self.bias is not None:
            number = tm.EPILOGUE_BIAS + (0 if self.epilogue == "default" else number)
        return number + (tm.EPILOGUE_AUX if self.aux_ld and self.epilogue == "gelu" else 0)

    def needed_pointers(self) -> tuple[tm.Attribute, ...]:
        """Return the pointer attributes without which the heuristics refuse: block scales, and the epilogue's own."""
        sides = ((tm.A_SCALE_POINTER, self.w), (tm.B_SCALE_POINTER, self.x))
        found = [pointer for pointer, side in sides if side.scale is not None and tm.SCALE_MODE[side.scale]]
        if self.aux_ld:
            found.append(tm.AUX_POINTER)
        if self.narrow:
            found += [tm.D_SCALE_POINTER, *((tm.AMAX_D_POINTER,) if self.amax else ())]
        return tuple(found)

    @property
    def compute_types(self) -> tuple[int, int]:
        """cublasComputeType_t and the cudaDataType_t of alpha and beta."""
        return tm.COMPUTE_TYPE["tf32" if self.tf32 else self.compute], tm.DATA_TYPE[self.compute]

    def fields(self) -> dict[str, Any]:
        """Return the record as plain data, for files."""
        return asdict(self)

    def __str__(self) -> str:
        text = f"Y[{self.m}, {self.n}] {self.y} = X[{self.m}, {self.k}] {self.x} @ W[{self.k}, {self.n}] {self.w}"
        text += f", batch {self.batch}" if self.batch > 1 else ""
        text += f", {self.epilogue}" if self.epilogue != "default" else ""
        text += f", aux ld {self.aux_ld}" if self.aux_ld else ""
        text += f", + bias {self.bias}" if self.bias else ""
        flags = ("accumulate", "fast_accumulation", "device_alpha", "tf32", "amax")
        text += "".join(f", {flag}" for flag in flags if getattr(self, flag))
        return text + (f", in {self.compute}" if self.compute != "float32" else "")
