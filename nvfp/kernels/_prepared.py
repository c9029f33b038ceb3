"""Prepared calls: a contract that was asked twice for one kind of call on CUDA arrays answers further ones at once.

A call's kind is all that its checks and its launcher look at: the device, and for each argument its dtype, shape,
strides and address modulo 16 (arrays), its identity (formats) or its type and value (options). The second call of a
kind is recorded while it runs (`cuda._replay`): what it allocates, clears and launches, and what it returns. Further
ones only allocate, fill in addresses and launch. A call that does anything else, or touches memory that it was not
given, is never kept; one of another kind goes the long way, through all its checks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial, wraps
from typing import Any, TypeVar, cast

import numpy as np

from nvfp import config
from nvfp.dtypes.elements import Element
from nvfp.dtypes.formats import QuantDType
from nvfp.kernels._dispatch import CUDA_TYPES, KINDS, module, watched
from nvfp.kernels.operand import Operand

F = TypeVar("F", bound=Callable[..., Any])
Parts = Callable[[Any], tuple[Any, ...]]
_MOST = 8192
_calls: dict[tuple[Any, ...], Any] = {}  # kind -> None (seen once), False (not to be kept), or what answers it
_held: dict[int, Any] = {}  # formats and elements whose identities stand in kinds
_VALUE, _ROW, _ARRAY, _PARTS, _REFUSED = range(5)
_ways: dict[type, int] = {
    **dict.fromkeys((int, str, type), _VALUE),
    **dict.fromkeys((QuantDType, Element), _ROW),
    **dict.fromkeys((tuple, list, Operand), _PARTS),
}
_parts: dict[type, Parts] = {
    tuple: tuple,
    list: tuple,
    Operand: lambda x: (
        x.codes, x.scale, x.tensor_scale, x.format, x.shape, x.axis, x.transposed, x.padded_rows, x.scale_layout,
        x.rotation,
    ),
}  # fmt: skip
_UNSEEN = object()
_WORDS = {None: "None", True: "True", False: "False"}  # True equals 1


def understood(kind: type, parts: Parts) -> None:
    """Let arguments of a type take part: ``parts(value)`` is all that a call depends on."""
    _ways[kind], _parts[kind] = _PARTS, parts


def forget() -> None:
    """Drop every prepared call."""
    _calls.clear()


def prepared(contract: F, *, pinned: bool = False, looks: bool = False, copies: bool = False) -> F:
    """Prepare the calls of a contract on CUDA arrays.

    The contract must read no contents of arrays on the host and depend on nothing but its arguments.

    Args:
        contract: the function.
        pinned: its launches carry addresses of its arrays in tables, so that a kind names them in full.
        looks: it reads arrays under ``NVFP_DEBUG=1``.
        copies: it copies arguments that overlap ``out`` first.
    """
    name, low = f"{contract.__module__}.{contract.__qualname__}", -1 if pinned else 15

    @wraps(contract)
    def call(*args: Any, **options: Any) -> Any:
        if not CUDA_TYPES:  # no CUDA array was seen in this process yet
            return contract(*args, **options)
        arrays: list[Any] = []
        kind: list[Any] = [name, len(args)]
        pointers: list[int] = []
        if _describe(args, kind, arrays, pointers, low) and arrays and not watched():
            kind += options
            if (
                _describe(options.values(), kind, arrays, pointers, low)
                and not (looks and config.flag("NVFP_DEBUG"))
                and not (copies and options.get("out") is not None and _overlap(arrays))
            ):
                return _answer(contract, args, options, kind, arrays, pointers, pinned)
        return contract(*args, **options)

    return cast(F, call)


def _answer(
    contract: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any],
    kind: list[Any], arrays: list[Any], pointers: list[int], pinned: bool,
) -> Any:  # fmt: skip
    replay = module("_replay", "cuda")
    if replay.thread.recorder is not None:  # a call inside a call: its launches belong to that one
        return contract(*args, **options)
    if not pinned and len(set(pointers)) != len(pointers):
        first: dict[int, int] = {}
        kind.append(tuple([first.setdefault(at, i) for i, at in enumerate(pointers)]))  # who shares memory
    device = replay.device()
    kind.append(device)
    key = tuple(kind)
    found = _calls.get(key, _UNSEEN)
    if found is None:
        result, _calls[key] = replay.record(partial(contract, *args, **options), arrays, pinned)
        return result
    if found is _UNSEEN:
        if len(_calls) >= _MOST:
            _calls.clear()
        _calls[key] = None
    elif found:
        done, result = found(pointers, arrays, device)
        if done:
            return result
    return contract(*args, **options)


def _describe(values: Any, kind: list[Any], arrays: list[Any], pointers: list[int], low: int) -> bool:
    """Add what decides a call to ``kind``, and its arrays with their addresses; False where it cannot be prepared."""
    for value in values:
        if value is None or value is True or value is False:
            kind.append(_WORDS[value])
            continue
        which = type(value)
        way = _ways.get(which)
        if way == _ARRAY:
            at = value.data.ptr
            arrays.append(value)
            pointers.append(at)
            kind += (value.shape, value.strides, value.dtype, at & low)
        elif way == _VALUE:
            kind += (which, value)
        elif way == _ROW:
            at = id(value)
            if at not in _held:
                _held[at] = value
            kind.append(at)
        elif which is float:
            kind += (which, value or str(value))  # -0.0 equals 0.0
        elif way == _PARTS:
            parts = _parts[which](value)
            kind += (which, len(parts))
            if not _describe(parts, kind, arrays, pointers, low):
                return False
        elif way == _REFUSED or not (_learn(which) and _describe((value,), kind, arrays, pointers, low)):
            return False
    return True


def _overlap(arrays: list[Any]) -> bool:
    """Whether the last array shares a part of its memory with another one that starts elsewhere."""
    out = arrays[-1]
    at = out.data.ptr
    low, high = _reach(out.shape, out.strides, out.dtype.itemsize)
    for x in arrays:
        start = x.data.ptr
        if start != at:
            first, end = _reach(x.shape, x.strides, x.dtype.itemsize)
            if start + first < at + high and at + low < start + end:
                return True
    return False


@lru_cache(maxsize=4096)
def _reach(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Bytes from an array's address to its first byte and to behind its last one."""
    if 0 in shape:
        return 0, 0
    steps = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0) + itemsize


def _learn(which: type) -> bool:
    """Find out how values of a type are described; False where they are not."""
    if KINDS.get(which) == "cuda":
        _ways[which] = _ARRAY
    elif issubclass(which, np.dtype):
        _ways[which] = _VALUE
    elif issubclass(which, tuple):
        understood(which, tuple)
    elif which.__module__.partition(".")[0] == "cupy":
        return False  # until the dispatch has seen it
    else:
        _ways[which] = _REFUSED
    return _ways[which] != _REFUSED
