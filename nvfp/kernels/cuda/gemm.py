"""CUDA twin of `gemm`: decides once per kind of call, then runs a cuBLASLt plan.

A call is known by what decides it (shapes, strides, formats, alignments, flags). The first of its kind
makes a `_Call`: how each operand is fed, the plan, and whether the result is staged; later ones only feed,
point and launch. Nothing waits for the GPU, and every step can be captured in a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Any

import numpy as np

from nvfp.device import Device
from nvfp.kernels.cast import cast
from nvfp.kernels.cublaslt import typemap as tm
from nvfp.kernels.cublaslt.binding import Unsupported
from nvfp.kernels.cublaslt.cache import LRU
from nvfp.kernels.cublaslt.feed import (
    UNIT,
    Feed,
    block_scales,
    blocks_fit,
    codes_feed,
    dense_feed,
    expanded_feed,
    operand_key,
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
from nvfp.kernels.cublaslt.plan import Plan, plan_for
from nvfp.kernels.cublaslt.problem import GemmProblem, Matrix
from nvfp.kernels.cuda._memory import address
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.gemm import accumulation_dtype, kind, tensor_factors
from nvfp.kernels.operand import Operand


def gemm(
    a: Any,
    b: Any,
    *,
    bias: Any | None,
    out: Any | None,
    dtype: np.dtype,
    alpha: Any | None,
    accumulate: bool,
    fast_accumulation: bool,
    exact: bool,
) -> Any:
    """See `nvfp.kernels.gemm.gemm`."""
    device: int = cp.cuda.runtime.getDevice()
    (key_a, at_a), (key_b, at_b) = operand_key(a), operand_key(b)
    key_bias, at_bias = _NONE if bias is None else operand_key(bias)
    key_out, at_out = _NONE if out is None else operand_key(out)
    key = (device, key_a, key_b, key_bias, key_out, dtype, alpha is None, accumulate, fast_accumulation, exact)
    calls = _call_cache[0] if _call_cache else _calls()
    call = calls.get(key)
    if call is None:
        wanted = _Wanted(a, b, bias, out, dtype, alpha is not None, accumulate, fast_accumulation, exact, device)
        call = calls.put(key, _make(wanted))
    return call(a, b, bias, out, alpha, (at_a, at_b, at_bias, at_out))


_NONE: tuple[tuple[Any, ...], int] = ((), 0)
_Addresses = tuple[int, int, int, int]  # of a, b, bias, out; 0 for none
_Caller = Callable[[Any, Any, Any, Any, Any, _Addresses], Any]
_call_cache: list[LRU[Any, _Caller]] = []


def _calls() -> LRU[Any, _Caller]:
    if not _call_cache:
        _call_cache.append(LRU("the kinds of GEMM calls"))
    return _call_cache[0]


@dataclass(frozen=True, slots=True)
class _Wanted:
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
    device: int

    @property
    def batch(self) -> Ints:
        return np.broadcast_shapes(self.a.shape[:-2], self.b.shape[:-2])

    @property
    def shape(self) -> Ints:
        return (*self.batch, self.a.shape[-2], self.b.shape[-1])


@dataclass(frozen=True, slots=True)
class _Target:
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


def _make(wanted: _Wanted) -> _Caller:
    """Decide how a kind of call is run."""
    if 0 in wanted.shape or wanted.a.shape[-1] == 0:
        return partial(_without_products, wanted.shape, wanted.dtype, wanted.accumulate)
    # Every problem has an algorithm: where cuBLASLt has none with a bias in the epilogue, the result starts as the
    # bias and the product is added to it; where it has none for FP8 codes of this shape, they are expanded.
    refused: Unsupported | None = None
    for native in (True, False):
        for seed in (False, True) if wanted.bias is not None else (False,):
            try:
                return _build(wanted, native, seed)
            except Unsupported as error:
                refused = refused or error
    raise refused or AssertionError("no attempt was made")


def _build(wanted: _Wanted, native: bool, seed: bool) -> _Call:
    a, b = wanted.a, wanted.b
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    wide = accumulation_dtype(a, b, wanted.dtype)
    capability = Device(f"cuda:{wanted.device}").compute_capability or (0, 0)
    native = native and blocks_fit(a, True) and blocks_fit(b, False)
    route = tm.route(kind(a), kind(b), capability, exact=wanted.exact, wide=wide == tm.FLOAT64, native=native)
    native = route.modes is not None  # from here on: whether FP8 codes go in as they are
    blocks = native and a.format.block is not None
    element = a.format.element.name if route.dtype is None else route.dtype.name
    d = wanted.dtype if wanted.dtype.name in tm.OUTPUTS[element] else wide
    if (seed or wanted.accumulate) and d.itemsize < wide.itemsize:
        d = wide  # with beta = 1 cuBLASLt rounds the product to a 16-bit D before it adds C (seen on an H200)
    columns = round_up(n, UNIT // d.itemsize) if native else n
    lines = round_up(m, 4) if blocks else m  # rows of the product: scales of blocks ask for multiples of 4
    if route.dtype is None:
        x, w = codes_feed(a, True, lines), codes_feed(b, False, columns)
    else:
        x, w = _feed(a, route.dtype), _feed(b, route.dtype)
    modes = (None, None) if route.modes is None else tuple(mode.name for mode in route.modes)
    y = _target(wanted, d, (lines, columns), native)
    batch = merge_batch(wanted.batch, x.over(wanted.batch), w.over(wanted.batch), y.strides)
    rows, batch = _fold(lines, batch, x, y.ld)
    bias = None if wanted.bias is None or seed else tm.epilogue_bias(element, d.name)
    ready = bias is not None and _ready(wanted.bias, bias, columns)
    # Kernels read the bias as they write D: what holds for one address must hold for the other.
    align = min(y.align, alignment(address(wanted.bias))) if ready else y.align
    problem = GemmProblem(
        m=rows, n=columns, k=round_up(k, UNIT) if native else k,
        x=x.matrix(batch.strides[0], modes[0]),
        w=w.matrix(batch.strides[1], modes[1]),
        y=Matrix(d.name, y.ld, stride=batch.strides[2], align=align),
        batch=batch.size,
        bias=None if bias is None else bias.name,
        accumulate=wanted.accumulate or seed,
        fast_accumulation=wanted.fast_accumulation and native and not blocks,
        device_alpha=wanted.device_alpha or _has_factors(a, native) or _has_factors(b, native),
        compute=wide.name,
    )  # fmt: skip
    plan = plan_for(problem, wanted.device)
    sizes = (*((1, 1) if route.dtype is None else (route.dtype.itemsize,) * 2), d.itemsize)
    return _Call(
        plan=plan, make_x=x.make, make_w=w.make, native=native, shape=wanted.shape, dtype=wanted.dtype, columns=columns,
        staged=None if y.staged is None else (y.staged, d),
        offsets=tuple(tuple(o * s for o, s in zip(at, sizes, strict=True)) for at in batch.offsets),
        bias=None if ready else bias, accumulate=wanted.accumulate, seed=seed, device_alpha=problem.device_alpha,
        scales=_scale_feeds(a, b, lines, columns) if blocks else None,
        kinds=(kind(a), kind(b)),
    )  # fmt: skip


def _scale_feeds(a: Operand, b: Operand, lines: int, columns: int) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """What brings block scales into cuBLASLt's layout, for products of ``lines`` rows and ``columns`` columns."""
    left = partial(block_scales, left=True, rows=lines, square=a.format.square)
    return left, partial(block_scales, left=False, rows=columns, square=b.format.square)


def _feed(x: Any, dtype: np.dtype) -> Feed:
    return expanded_feed(x, dtype) if type(x) is Operand else dense_feed(x, dtype)


def _has_factors(x: Any, native: bool) -> bool:
    """Whether alpha must carry a factor of this operand (a native one hands its scale to cuBLASLt)."""
    return type(x) is Operand and (x.tensor_scale is not None or (x.format.block is None and not native))


def _target(wanted: _Wanted, d: np.dtype, sizes: tuple[int, int], native: bool) -> _Target:
    """Choose where D goes: the result itself where cuBLASLt can write it, else a buffer."""
    out, shape = wanted.out, wanted.shape
    whole = sizes == shape[-2:] and d == wanted.dtype
    found = _addressable(out, native) if out is not None and whole else None
    if found is not None:
        return found
    stored = (*shape[:-2], *sizes)
    steps = contiguous_strides(stored)[:-2]
    align = alignment(reduce(or_, (s * d.itemsize for s in steps), 0))
    return _Target(d, sizes[1], steps, align, None if whole and out is None else stored)


def _addressable(out: Any, native: bool) -> _Target | None:
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
    return _Target(out.dtype, order.ld, strides[:-2], align, None)


def _fold(m: int, batch: Batch, x: Feed, ld: int) -> tuple[int, Batch]:
    """Turn a batch of row blocks over one right operand into more rows of one product."""
    stacked = len(batch.offsets) == 1 and batch.strides == (m * x.order.ld, 0, m * ld)
    if batch.size > 1 and stacked and not x.order.transposed:
        return m * batch.size, Batch(1, (0, 0, 0), batch.offsets)
    return m, batch


@dataclass(frozen=True, slots=True)
class _Call:
    """One kind of call, decided.

    Attributes:
        plan: what runs.
        make_x: brings the left operand into memory that cuBLASLt can address; None: it lies so already.
        make_w: likewise the right one.
        native: whether the operands hand over their scales.
        shape: of the result.
        dtype: of the result.
        columns: that are computed; those beyond the result's are dropped.
        staged: shape and dtype of a buffer that takes D in the result's place, or None.
        offsets: bytes from the start of x, w, y, one triple for each matmul.
        bias: dtype that the bias must be copied to for the epilogue; None: it is read where it lies, or not at all.
        accumulate: whether the result is added to.
        seed: whether the bias is put into the result beforehand.
        device_alpha: whether there is an alpha or a factor that is one per tensor.
        scales: native operands in blocks: what brings the scales of left and right operand into cuBLASLt's layout.
        kinds: keeps the formats alive whose identities stand in the key.
    """

    plan: Plan
    make_x: Callable[[Any], Any] | None
    make_w: Callable[[Any], Any] | None
    native: bool
    shape: Ints
    dtype: np.dtype
    columns: int
    staged: tuple[Ints, np.dtype] | None
    offsets: tuple[Ints, ...]
    bias: np.dtype | None
    accumulate: bool
    seed: bool
    device_alpha: bool
    scales: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None
    kinds: tuple[tm.Kind, tm.Kind]

    def __call__(self, a: Any, b: Any, bias: Any, out: Any, alpha: Any, addresses: _Addresses) -> Any:
        """Feed, launch, and bring a staged result home."""
        at_x, at_w, at_bias, at_y = addresses
        # Arrays made here keep their names, and so their memory, until everything is enqueued.
        x = a if self.make_x is None else self.make_x(a)
        w = b if self.make_w is None else self.make_w(b)
        if x is not a:
            at_x = address(x)
        if w is not b:
            at_w = address(w)
        y, target, word = out, None, None
        if y is None:
            y = cp.ndarray(self.shape, self.dtype)
            at_y = address(y)
        if self.staged is not None or self.seed:
            target = self._prepared(y, bias)
            at_y = address(target)
        if self.device_alpha:
            word = self._alpha(a, b, alpha)
        if self.bias is not None:
            at_bias = address(bias := self._copied(bias, self.bias))
        at_alpha = 0 if word is None else address(word)
        if self.scales is not None:
            scales = self.scales[0](a), self.scales[1](b)
            x_scale, w_scale = address(scales[0]), address(scales[1])
        else:
            x_scale, w_scale = (address(a.scale), address(b.scale)) if self.native else (0, 0)
        at_bias = 0 if self.seed else at_bias
        stream: int = cp.cuda.get_current_stream().ptr
        for dx, dw, dy in self.offsets:
            self.plan.execute(at_x + dx, at_w + dw, at_y + dy, stream, at_alpha, at_bias, x_scale, w_scale)
        if self.staged is not None:
            cast(target, self.dtype, out=y)
        return y

    def _prepared(self, y: Any, bias: Any) -> Any:
        """Return the result's columns of the memory that cuBLASLt writes, holding what the product is added to."""
        if self.staged is not None:
            read = self.accumulate or self.seed  # then dropped rows and columns must hold numbers, too
            buffer = (cp.zeros if read and self.staged[0] != self.shape else cp.ndarray)(*self.staged)
            target = buffer[..., : self.shape[-2], : self.shape[-1]]
            if self.accumulate:
                cast(y, target.dtype, out=target)
        else:
            target = y
        if self.seed and self.accumulate:
            elementwise("add", target, bias, dtype=target.dtype, out=target)
        elif self.seed:
            cast(cp.broadcast_to(bias, self.shape), target.dtype, out=target)
        return target

    def _alpha(self, a: Any, b: Any, alpha: Any) -> Any:
        """Return the product of alpha and the per-tensor factors as one word of the compute dtype."""
        words = () if alpha is None else (alpha,)
        for side in (a, b):
            if not self.native:
                words += tensor_factors(side)
            elif side.tensor_scale is not None:
                words += (side.tensor_scale,)
        compute = tm.NAMED[self.plan.problem.compute]
        word = reduce(lambda p, q: elementwise("multiply", p, q, dtype=compute), words)
        return word if word.dtype == compute else cast(word, compute)

    def _copied(self, bias: Any, dtype: np.dtype) -> Any:
        """Return the bias as the epilogue reads it, zeros behind it up to the columns that are computed."""
        if self.columns == bias.size:
            return cast(bias, dtype)
        padded = cp.zeros(self.columns, dtype)
        cast(bias, dtype, out=padded[: bias.size])
        return padded


def _ready(bias: Any, dtype: np.dtype, columns: int) -> bool:
    """Whether the epilogue can read a bias where it lies: its type, contiguous, aligned, and long enough."""
    itemsize = dtype.itemsize
    return bias.dtype == dtype and bias.strides[0] == itemsize and bias.size == columns and not address(bias) % UNIT


def _without_products(
    shape: Ints, dtype: np.dtype, accumulate: bool,
    a: Any, b: Any, bias: Any, out: Any, alpha: Any, addresses: _Addresses,
) -> Any:  # fmt: skip
    """An empty result, or K = 0: zeros or ``out``, plus the bias."""
    if out is None:
        out = cp.zeros(shape, dtype)
    elif not accumulate and bias is None:
        cast(cp.broadcast_to(cp.zeros((), dtype), shape), dtype, out=out)
    if bias is None or 0 in shape:
        return out
    if accumulate:
        return elementwise("add", out, bias, dtype=dtype, out=out)
    return cast(cp.broadcast_to(bias, shape), dtype, out=out)
