"""Records a call on the host and runs it again: what it allocated, cleared and launched, at other addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._launch import Prepared
from nvfp.kernels.cuda._recorder import Cleared, Launched, Place, Recorder, thread
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.operand import Operand, OperandPair

Arrays = Sequence[Any]
Rebuild = Callable[[Arrays, Arrays], Any]  # arrays given, memory allocated -> a part of the result
Step = Callable[[list[int], int], None]  # addresses, stream


class _Unknown(Exception):
    """A result that is not made of what was given and allocated."""


def device() -> int:
    """The current device's number."""
    found: int = cp.cuda.runtime.getDevice()
    return found


def record(call: Callable[[], Any], arrays: Arrays, pinned: bool) -> tuple[Any, Any]:
    """Run a call; return its result, and what runs it again for other arrays of the kind, or False.

    Args:
        call: the call.
        arrays: what it was given.
        pinned: whether a kind names their addresses in full.
    """
    recorder = thread.recorder = Recorder([_reach(x) for x in arrays], pinned)
    try:
        result = call()
    finally:
        thread.recorder = None
    if recorder.spoilt:
        return result, False
    try:
        return result, Replay(recorder, arrays, result)
    except _Unknown:
        return result, False


def _reach(x: Any) -> tuple[int, int, int]:
    """An array's address, its first byte and its end."""
    at = _memory.address(x)
    if 0 in x.shape:
        return at, at, at
    steps = [(n - 1) * s for n, s in zip(x.shape, x.strides, strict=True)]
    return at, at + sum(s for s in steps if s < 0), at + sum(s for s in steps if s > 0) + x.dtype.itemsize


class Replay:
    """A recorded call. Memory that no result shows comes from one allocation, all other as it was allocated."""

    __slots__ = ("_rebuild", "_sizes", "_steps")

    def __init__(self, recorder: Recorder, arrays: Arrays, result: Any) -> None:
        given, shown = len(arrays), set()
        for array in _arrays_in(result):
            place = recorder.place(_memory.address(array)) if array.size else None
            if place is None:
                raise _Unknown
            shown.add(place.region - given)
        slots: dict[int, Place] = {}
        sizes: list[int] = []
        scratch = 0
        for i, array in enumerate(recorder.made):
            if i in shown:
                slots[given + i] = Place(given + len(sizes), 0)
                sizes.append(max(array.nbytes, 1))
        for i, array in enumerate(recorder.made):
            if i not in shown:
                slots[given + i] = Place(given + len(sizes), scratch)
                scratch += -(-array.nbytes // _memory.ALIGNMENT) * _memory.ALIGNMENT
        self._sizes = (*sizes, scratch) if scratch else tuple(sizes)

        def settled(place: Place) -> Place:
            base = slots.get(place.region, Place(place.region, 0))
            return Place(base.region, base.offset + place.offset)

        self._steps = tuple([_step(step, settled) for step in recorder.steps])
        self._rebuild = _rebuild(result, arrays, lambda x: settled(_found(recorder, x)))

    def __call__(self, pointers: list[int], arrays: Arrays, device: int) -> tuple[bool, Any]:
        """Run it again: (True, the result), or (False, None) where this thread has not launched on the device yet.

        The first launch is CuPy's, which makes the device's context current in the thread.
        """
        if device not in thread.devices:
            return False, None
        memory: list[Any] = []
        at = pointers
        if self._sizes:
            memory = [_memory.allocate(size) for size in self._sizes]
            at = pointers + [_memory.start(m) for m in memory]
        stream: int = cp.cuda.get_current_stream().ptr
        for step in self._steps:
            step(at, stream)
        return True, self._rebuild(arrays, memory)


def _found(recorder: Recorder, array: Any) -> Place:
    place = recorder.place(_memory.address(array))
    assert place is not None, "looked for above"
    return place


def _step(step: Launched | Cleared, settled: Callable[[Place], Place]) -> Step:
    if isinstance(step, Cleared):
        place, nbytes = settled(step.place), step.nbytes
        return lambda at, stream: _memory.fill_zero(at[place.region] + place.offset, nbytes, stream)
    places = [settled(arg) for arg in step.args if type(arg) is Place]
    run = Prepared(step.kernel, step.grid, step.block, step.args, step.shared).run
    if not any(place.offset for place in places):
        regions = tuple([place.region for place in places])
        return lambda at, stream: run([at[i] for i in regions], stream)
    pairs = tuple([tuple(place) for place in places])
    return lambda at, stream: run([at[i] + offset for i, offset in pairs], stream)


def _arrays_in(result: Any) -> list[Any]:
    """The arrays of a result."""
    if isinstance(result, tuple | list):
        return [array for part in result for array in _arrays_in(part)]
    if type(result) is Operand:
        return [array for part in result.arrays() for array in _arrays_in(part)]
    if type(result) is OperandPair:
        if result.make is not None:
            raise _Unknown
        return _arrays_in((result.row, result.col, result.bias_grad))
    if result is None or isinstance(result, bool | int | float | str):
        return []
    if isinstance(result, cp.ndarray):
        return [result]
    raise _Unknown


def _rebuild(result: Any, arrays: Arrays, find: Callable[[Any], Place]) -> Rebuild:
    """What makes an equal result over other memory."""
    if isinstance(result, tuple | list):
        parts, kind = [_rebuild(part, arrays, find) for part in result], type(result)
        return lambda given, memory: kind([part(given, memory) for part in parts])
    if type(result) is Operand:
        codes, scale, tensor_scale = (
            _rebuild(x, arrays, find) for x in (result.codes, result.scale, result.tensor_scale)
        )
        rest = (
            result.format, result.shape, result.axis, result.transposed, result.padded_rows, result.scale_layout,
            result.rotation,
        )  # fmt: skip
        return lambda given, memory: Operand(
            codes(given, memory), scale(given, memory), tensor_scale(given, memory), *rest
        )
    if type(result) is OperandPair:
        row, col, sums = (_rebuild(x, arrays, find) for x in (result.row, result.col, result.bias_grad))
        return lambda given, memory: OperandPair(row(given, memory), col(given, memory), None, sums(given, memory))
    if not isinstance(result, cp.ndarray):
        return lambda given, memory: result
    for i in reversed(range(len(arrays))):  # outputs stand behind what they may share memory with
        if result is arrays[i]:
            return lambda given, memory: given[i]
    return _array(result, find(result), len(arrays))


def _array(array: Any, place: Place, given: int) -> Rebuild:
    shape, dtype, strides = array.shape, array.dtype, None if array.flags.c_contiguous else array.strides
    (region, offset), over = place, _memory.over
    if region >= given:
        slot = region - given
        return lambda arrays, memory: over(memory[slot], offset, shape, dtype, strides)
    return lambda arrays, memory: over(_memory.pointer(arrays[region]), offset, shape, dtype, strides)
