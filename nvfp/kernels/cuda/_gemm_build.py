"""How a kind of GEMM call is decided: which problem cuBLASLt gets, how operands reach it, where the result goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Any

import numpy as np

from nvfp.device import Device
from nvfp.kernels._gemm import Tail
from nvfp.kernels.cublaslt import typemap as tm
from nvfp.kernels.cublaslt.binding import Unsupported
from nvfp.kernels.cublaslt.feed import (
    UNIT,
    Feed,
    block_scales,
    blocks_fit,
    codes_feed,
    dense_feed,
    expanded_feed,
)
from nvfp.kernels.cublaslt.layout import (
    Batch,
    Ints,
    alignment,
    contiguous_strides,
    element_strides,
    matrix_order,
    merge_batch,
    round_up,
)
from nvfp.kernels.cublaslt.plan import plan_for
from nvfp.kernels.cublaslt.problem import GemmProblem, Matrix
from nvfp.kernels.cuda._gemm_call import Call
from nvfp.kernels.cuda._memory import address
from nvfp.kernels.gemm import accumulation_dtype, kind
from nvfp.kernels.operand import Operand

_ROUNDED_ROWS = ("VEC128_32F", "BLK128x128_32F")  # scale modes that want rows of the product in multiples of 4


@dataclass(frozen=True, slots=True)
class Wanted:
    """The arguments of a call, and its device."""

    a: Any
    b: Any
    bias: Any | None
    out: Any | None
    dtype: np.dtype
    device_alpha: bool
    accumulate: bool
    fast_accumulation: bool
    exact: bool
    tf32: bool
    tail: Tail | None
    device: int

    @property
    def batch(self) -> Ints:
        """Batch axes of the result."""
        return np.broadcast_shapes(self.a.shape[:-2], self.b.shape[:-2])

    @property
    def shape(self) -> Ints:
        """Of the result."""
        return (*self.batch, self.a.shape[-2], self.b.shape[-1])

    @property
    def written(self) -> np.dtype:
        """The dtype of what is delivered: FP8 codes have that of their element."""
        fmt = None if self.tail is None else self.tail.out_format
        return self.dtype if fmt is None else fmt.element.dtype


@dataclass(frozen=True, slots=True)
class Target:
    """The memory that cuBLASLt writes.

    Attributes:
        dtype: of D.
        ld: distance of its rows.
        strides: of its batch axes, in elements.
        align: bytes to which its matrices are aligned.
        staged: None when it is the result itself; else the shape of a buffer of its own, whose leading rows and
            columns become the result (another dtype, a padded M or N, or an ``out`` that cuBLASLt cannot address).
    """

    dtype: np.dtype
    ld: int
    strides: Ints
    align: int
    staged: Ints | None


def build(wanted: Wanted, native: bool, seed: bool) -> Call:
    """Decide a kind of call.

    Args:
        wanted: an example of it.
        native: whether narrow operands may go in as they are.
        seed: put the bias into the result beforehand and add the product to it.

    Raises:
        Unsupported: cuBLASLt has no algorithm for it.
    """
    a, b = wanted.a, wanted.b
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    wide = accumulation_dtype(a, b, wanted.dtype)
    capability = Device(f"cuda:{wanted.device}").compute_capability or (0, 0)
    native = native and blocks_fit(a, True) and blocks_fit(b, False)
    float64 = wide == tm.FLOAT64
    route = tm.route(kind(a), kind(b), capability, exact=wanted.exact, wide=float64, native=native, k=k)
    modes = (None, None) if route.modes is None else tuple(mode.name for mode in route.modes)
    native = route.modes is not None  # from here on: whether codes go in as they are
    unit = tm.K_UNIT.get(modes[0] or "", UNIT)
    element = a.format.element.name if route.dtype is None else route.dtype.name
    d = wanted.written if wanted.written.name in tm.OUTPUTS[element] else wide
    if (seed or wanted.accumulate) and d.itemsize < wide.itemsize:
        d = wide  # with beta = 1 cuBLASLt rounds the product to a 16-bit D before it adds C (seen on an H200)
    columns = round_up(n, UNIT // d.itemsize) if native else n
    lines = round_up(m, 4) if modes[0] in _ROUNDED_ROWS else m
    if route.dtype is None:
        x, w = codes_feed(a, True, lines, unit), codes_feed(b, False, columns, unit)
    else:
        x, w = _feed(a, route.dtype), _feed(b, route.dtype)
    y = _target(wanted, d, (lines, columns), native)
    batch = merge_batch(wanted.batch, x.over(wanted.batch), w.over(wanted.batch), y.strides)
    rows, batch = _fold(lines, batch, x, y.ld)
    bias, ready = (None, False) if seed else _bias(wanted.bias, element, d, columns)
    # Kernels read the bias as they write D: what holds for one address must hold for the other.
    align = min(y.align, alignment(address(wanted.bias))) if ready else y.align
    blocks = native and a.format.block is not None
    problem = GemmProblem(
        m=rows, n=columns, k=round_up(k, unit) if native else k,
        x=x.matrix(batch.strides[0], modes[0]),
        w=w.matrix(batch.strides[1], modes[1]),
        y=Matrix(d.name, y.ld, stride=batch.strides[2], align=align),
        batch=batch.size,
        accumulate=wanted.accumulate or seed,
        fast_accumulation=wanted.fast_accumulation and modes[0] in ("SCALAR_32F", "OUTER_VEC_32F"),
        device_alpha=wanted.device_alpha or _has_factors(a, native) or _has_factors(b, native),
        compute=wide.name,
        tf32=wanted.tf32 and element == "float32",
        bias=None if bias is None else bias.name,
        **_tail_fields(wanted, d, y, batch, (lines, columns) == (m, n)),
    )  # fmt: skip
    plan = plan_for(problem, wanted.device)
    sizes = (*((1, 1) if route.dtype is None else (route.dtype.itemsize,) * 2), d.itemsize)
    return Call(
        plan=plan, make_x=x.make, make_w=w.make, native=native, shape=wanted.shape, dtype=wanted.dtype, columns=columns,
        staged=None if y.staged is None else (y.staged, d),
        offsets=tuple(tuple(o * s for o, s in zip(at, sizes, strict=True)) for at in batch.offsets),
        bias=None if ready else bias, accumulate=wanted.accumulate, seed=seed, device_alpha=problem.device_alpha,
        scales=_scale_feeds(modes, lines, columns) if blocks else None,
        kinds=(kind(a), kind(b)),
    )  # fmt: skip


def _bias(bias: Any | None, element: str, d: np.dtype, columns: int) -> tuple[np.dtype | None, bool]:
    """The dtype in which the epilogue adds a bias, and whether it can read it where it lies."""
    if bias is None:
        return None, False
    dtype = tm.epilogue_bias(element, d.name)
    if not tm.holds(dtype, bias.dtype):
        raise Unsupported(f"a bias of {bias.dtype} beside {element}")
    return dtype, _ready(bias, dtype, columns)


def _tail_fields(wanted: Wanted, d: np.dtype, y: Target, batch: Batch, whole: bool) -> dict[str, Any]:
    """The fields of a problem that say what happens to a product before it is written.

    Raises:
        Unsupported: cuBLASLt's kernel cannot be asked for it, or must not be.
    """
    tail = wanted.tail
    if tail is None:
        return {}
    fp8 = tail.out_format is not None
    if y.staged is not None or batch.size > 1 or len(batch.offsets) > 1 or not whole:
        raise Unsupported("an epilogue of a batch, or of a result that is staged or padded")
    if fp8 and (d != wanted.written or tail.aux is not None):  # beside an FP8 D, an aux held NaN (seen on an H200)
        raise Unsupported("an FP8 result of operands that are not FP8, or with an aux")
    aux_ld = 0 if tail.aux is None else _aux_ld(tail.aux, d)
    return {"epilogue": tail.epilogue or "default", "aux_ld": aux_ld, "amax": tail.amax_out is not None}


def _aux_ld(aux: Any, d: np.dtype) -> int:
    """Distance of the rows of a pre-activation that cuBLASLt can address."""
    rows = contiguous_strides(aux.shape) if aux.ndim > 2 else (aux.strides[-2] // d.itemsize, 1)
    ld: int = rows[-2]
    dense = aux.strides == tuple(s * d.itemsize for s in rows)
    if aux.dtype != d or not dense or ld < aux.shape[-1] or ld % 8 or address(aux) % UNIT:
        raise Unsupported("a pre-activation that is not stored row by row, aligned to 16 bytes")
    return ld


def _scale_feeds(modes: tuple[Any, ...], lines: int, columns: int) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """What brings block scales into cuBLASLt's layout, for products of ``lines`` rows and ``columns`` columns."""
    left = partial(block_scales, left=True, rows=lines, mode=modes[0])
    return left, partial(block_scales, left=False, rows=columns, mode=modes[1])


def _feed(x: Any, dtype: np.dtype) -> Feed:
    return expanded_feed(x, dtype) if type(x) is Operand else dense_feed(x, dtype)


def _has_factors(x: Any, native: bool) -> bool:
    """Whether alpha must carry a factor of this operand (a native one hands its scale to cuBLASLt)."""
    return type(x) is Operand and (x.tensor_scale is not None or (x.format.block is None and not native))


def _target(wanted: Wanted, d: np.dtype, sizes: tuple[int, int], native: bool) -> Target:
    """Choose where D goes: the result itself where cuBLASLt can write it, else a buffer."""
    out, shape = wanted.out, wanted.shape
    whole = sizes == shape[-2:] and d == wanted.written
    found = _addressable(out, native) if out is not None and whole else None
    if found is not None:
        return found
    stored = (*shape[:-2], *sizes)
    steps = contiguous_strides(stored)[:-2]
    align = alignment(reduce(or_, (s * d.itemsize for s in steps), 0))
    return Target(d, sizes[1], steps, align, None if whole and out is None else stored)


def _addressable(out: Any, native: bool) -> Target | None:
    """Return ``out`` as a target, if cuBLASLt can write it: row-major, no memory twice, aligned beside FP8."""
    itemsize = out.dtype.itemsize
    strides = element_strides(out.strides, itemsize)
    order = None if strides is None else matrix_order(*out.shape[-2:], *strides[-2:])
    if strides is None or order is None or order.transposed:
        return None
    align = alignment(reduce(or_, out.strides[:-2], address(out)))
    repeats = any(s == 0 and n > 1 for s, n in zip(strides, out.shape, strict=True))
    if repeats or (native and (align < UNIT or order.ld * itemsize % UNIT)):
        return None
    return Target(out.dtype, order.ld, strides[:-2], align, None)


def _fold(m: int, batch: Batch, x: Feed, ld: int) -> tuple[int, Batch]:
    """Turn a batch of row blocks over one right operand into more rows of one product."""
    stacked = len(batch.offsets) == 1 and batch.strides == (m * x.order.ld, 0, m * ld)
    if batch.size > 1 and stacked and not x.order.transposed:
        return m * batch.size, Batch(1, (0, 0, 0), batch.offsets)
    return m, batch


def _ready(bias: Any, dtype: np.dtype, columns: int) -> bool:
    """Whether the epilogue can read a bias where it lies: its type, contiguous, aligned, and long enough."""
    itemsize = dtype.itemsize
    return bias.dtype == dtype and bias.strides[0] == itemsize and bias.size == columns and not address(bias) % UNIT
