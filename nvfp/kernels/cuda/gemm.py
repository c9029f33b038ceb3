"""CUDA twin of `gemm`: decides once per kind of call, then runs a cuBLASLt plan.

A call is known by what decides it (shapes, strides, formats, alignments, flags). The first of its kind
makes a `Call` (`_gemm_build`): how each operand is fed, the plan, and whether the result is staged; later ones
only feed, point and launch (`_gemm_call`), the simplest of them without a second look at their arguments
(`known`). Nothing waits for the GPU, and every step can be captured in a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from nvfp.kernels._gemm import Tail, composed, result_dtype
from nvfp.kernels.activation import activation_vjp
from nvfp.kernels.cast import cast
from nvfp.kernels.cublaslt import plan
from nvfp.kernels.cublaslt.binding import Unsupported
from nvfp.kernels.cublaslt.cache import LRU
from nvfp.kernels.cublaslt.feed import operand_key
from nvfp.kernels.cublaslt.layout import Ints
from nvfp.kernels.cuda._gemm_build import Wanted, build
from nvfp.kernels.cuda._gemm_call import Call
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.gemm import known_calls
from nvfp.kernels.operand import Operand

_NONE: tuple[tuple[Any, ...], int] = ((), 0)
_Caller = Callable[..., Any]
_call_cache: list[LRU[Any, _Caller]] = []
_plain: dict[Any, Call] = {}  # calls that `known` may run, by key


def known(
    a: Any, b: Any, bias: Any, out: Any, dtype: Any, accumulate: bool, fast: bool, exact: bool, tf32: bool
) -> Any | None:
    """Run a plain call of a kind that has been run before, or return None.

    The key holds all that the contract checks, so what is found needs no check.
    """
    try:
        key_a, at_a = operand_key(a)
        key_b, at_b = operand_key(b)
        key_bias, at_bias = _NONE if bias is None else operand_key(bias)
        key_out, at_out = _NONE if out is None else operand_key(out)
        call = _plain.get((_get_device(), key_a, key_b, key_bias, key_out, dtype, accumulate, fast, exact, tf32))
    except (AttributeError, TypeError, ValueError):  # no arrays of the GPU: the contract sees to them
        return None
    return None if call is None else call.launch_plain(a, b, out, at_a, at_b, at_bias, at_out)


def forget() -> None:
    """Drop every decided call."""
    _plain.clear()
    for cache in _call_cache:
        cache.clear()


known_calls[:] = [known]
plan.holders.append(forget)


def _get_device() -> int:
    found: int = cp.cuda.runtime.getDevice()
    return found


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
    tf32: bool,
    tail: Tail | None,
) -> Any:
    """See `nvfp.kernels.gemm.gemm`."""
    device = _get_device()
    (key_a, at_a), (key_b, at_b) = operand_key(a), operand_key(b)
    key_bias, at_bias = _NONE if bias is None else operand_key(bias)
    key_out, at_out = _NONE if out is None else operand_key(out)
    flags = accumulate, fast_accumulation, exact, tf32
    keys = device, key_a, key_b, key_bias, key_out
    key = (*keys, dtype, *flags, alpha is None, *(() if tail is None else _tail_key(tail)))
    calls = _calls()
    call = calls.get(key)
    if call is None:
        wanted = Wanted(a, b, bias, out, dtype, alpha is not None, *flags, tail, device)
        call = calls.put(key, _make(wanted))
    if type(call) is Call and alpha is None and tail is None and call.plain:
        _remember((*keys, dtype, *flags), call)
        if result_dtype(a, b, None, out) == dtype:
            _remember((*keys, None, *flags), call)
    given = a, b, bias, out, alpha, (at_a, at_b, at_bias, at_out), tail
    if tail is None:
        return call(*given)
    try:
        return call(*given)
    except Unsupported:  # the heuristics knew an algorithm, and the library refused to run it
        return calls.replace(key, _apart(dtype, *flags))(*given)


def _calls() -> LRU[Any, _Caller]:
    if not _call_cache:
        _call_cache.append(LRU("the kinds of GEMM calls"))
    return _call_cache[0]


def _remember(key: Any, call: Call) -> None:
    if len(_plain) >= 2 * _calls().capacity:
        _plain.clear()
    _plain[key] = call


def _tail_key(tail: Tail) -> tuple[Any, ...]:
    aux = () if tail.aux is None else operand_key(tail.aux)[0]
    return tail.epilogue, aux, tail.out_format, tail.amax_out is None


def _make(wanted: Wanted) -> _Caller:
    """Decide how a kind of call is run."""
    if wanted.tail is not None:
        return _with_tail(wanted)
    if 0 in wanted.shape or wanted.a.shape[-1] == 0:
        return partial(_without_products, wanted.shape, wanted.dtype, wanted.accumulate)
    # Every problem has an algorithm: where cuBLASLt has none with a bias in the epilogue, the result starts as the
    # bias and the product is added to it; where it has none for narrow codes of this shape, they are expanded.
    refused: Unsupported | None = None
    for native in (True, False):
        for seed in (False, True) if wanted.bias is not None else (False,):
            try:
                return build(wanted, native, seed)
            except Unsupported as error:
                refused = refused or error
    raise refused or AssertionError("no attempt was made")


def _with_tail(wanted: Wanted) -> _Caller:
    """The library's epilogue where it has one, else a product in float32 and kernels of ours behind it.

    FP8's dgelu runs behind the product, of the result's dtype: cuBLASLt rounds there, too, and takes half as long again
    (H200, 8192^3: 1.325 ms, the product and our kernel .838).
    """
    assert wanted.tail is not None
    whole = (type(x) is Operand and x.format.block is None for x in (wanted.a, wanted.b))
    if wanted.tail.epilogue == "dgelu" and wanted.tail.out_format is None and all(whole):
        return partial(_dgelu_behind, wanted.dtype, wanted.fast_accumulation, wanted.exact, wanted.tf32)
    if 0 not in wanted.shape and wanted.a.shape[-1]:
        try:
            return build(wanted, True, False)
        except Unsupported:
            pass
    return _apart(wanted.dtype, wanted.accumulate, wanted.fast_accumulation, wanted.exact, wanted.tf32)


def _apart(dtype: np.dtype, accumulate: bool, fast: bool, exact: bool, tf32: bool) -> _Caller:
    """A call whose epilogue runs in kernels of its own."""
    return partial(_composed, dtype, accumulate, fast, exact, tf32)


def _composed(
    dtype: np.dtype, accumulate: bool, fast: bool, exact: bool, tf32: bool,
    a: Any, b: Any, bias: Any, out: Any, alpha: Any, at: Any, tail: Tail,
) -> Any:  # fmt: skip
    def product(result: np.dtype, into: Any) -> Any:
        return gemm(
            a, b, bias=bias, out=into, dtype=result, alpha=alpha, accumulate=accumulate, fast_accumulation=fast,
            exact=exact, tf32=tf32, tail=None,
        )  # fmt: skip

    return composed(product, tail, dtype, out)


def _dgelu_behind(
    dtype: np.dtype, fast: bool, exact: bool, tf32: bool,
    a: Any, b: Any, bias: None, out: Any, alpha: Any, at: Any, tail: Tail,
) -> Any:  # fmt: skip
    y = gemm(
        a, b, bias=None, out=out, dtype=dtype, alpha=alpha, accumulate=False, fast_accumulation=fast, exact=exact,
        tf32=tf32, tail=None,
    )  # fmt: skip
    return activation_vjp(tail.aux, y, "gelu", out=y)


def _without_products(
    shape: Ints, dtype: np.dtype, accumulate: bool,
    a: Any, b: Any, bias: Any, out: Any, alpha: Any, at: Any, tail: None = None,
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
