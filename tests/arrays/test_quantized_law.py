"""The law ``asarray(op(q)) == op(asarray(q))``: every format, operations that move whole blocks, one after another.

An operation drawn so that it keeps blocks whole must give a `QuantizedArray`; any other must obey the law too, or raise
and name a remedy.
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import nvfp as nf
from nvfp.arrays.blocks import blocked_axes
from nvfp.errors import BlockIndexError, ShapeError
from tests.arrays.quantized_cases import FORMATS, drawn, same

Draw = Callable[[Any], Any]
Op = tuple[Callable[[Any], Any], Callable[[np.ndarray], Any], bool]  # of q, of its values, whether it must succeed


def units(q: Any) -> dict[int, int]:
    return blocked_axes(q.operand)


def free(q: Any) -> list[int]:
    return [axis for axis in range(q.ndim) if axis not in units(q)]


def entry(draw: Draw, q: Any, axis: int) -> Any:
    """One entry of a key that cuts no block."""
    n = q.shape[axis]
    if axis in units(q):
        unit = units(q)[axis]
        start = draw(st.integers(0, n // unit)) * unit
        stop = min(n, draw(st.integers(start // unit, -(-n // unit))) * unit)
        return slice(start, None if stop == n and draw(st.booleans()) else stop)
    kinds = [slice(None), slice(1, None, 2), slice(None, None, -1), slice(-1, None, -2), slice(0, 0)]
    if n:
        kinds += [0, -1, np.int64(n - 1), [0, n - 1, -n], np.array([[0], [n - 1]]), np.arange(n) % 2 == 0]
    return draw(st.sampled_from(kinds))


def index(draw: Draw, q: Any) -> Op:
    key: list[Any] = [entry(draw, q, axis) for axis in range(q.ndim)]
    lengths = {len(e) for e in key if isinstance(e, list)} | {int(e.sum()) for e in key if _mask(e)}
    if len(lengths - {1}) > 1:  # index arrays that do not broadcast
        key = [slice(None) if isinstance(e, list | np.ndarray) else e for e in key]
    place = draw(st.integers(0, q.ndim))
    behind = len(units(q)) == 2 and any(place > axis for axis in units(q))
    if draw(st.booleans()) and not behind:
        key.insert(place, None)
    if isinstance(key[-1], slice) and key[-1] == slice(None) and draw(st.booleans()):
        key[-1] = ...
    own = tuple(nf.asarray(e) if isinstance(e, np.ndarray) else e for e in key)
    return lambda a: a[own], lambda a: a[tuple(key)], True


def _mask(e: Any) -> bool:
    return isinstance(e, np.ndarray) and e.dtype == np.bool_


def cutting_index(draw: Draw, q: Any) -> Op:
    axis = draw(st.integers(0, q.ndim - 1))
    n = q.shape[axis]
    start, stop = sorted((draw(st.integers(0, n)), draw(st.integers(0, n))))
    kinds = [slice(start, stop), slice(start, stop, 2), slice(None, None, -1)] + ([0, [0]] if n else [])
    key = (slice(None),) * axis + (draw(st.sampled_from(kinds)),)
    return lambda a: a[key], lambda a: a[key], False


def axes(draw: Draw, q: Any) -> Op:
    order = draw(st.permutations(range(q.ndim)))
    source, target = draw(st.integers(0, q.ndim - 1)), draw(st.integers(-q.ndim, -1))
    ops: list[tuple[Any, Any]] = [
        (lambda a: nf.permute_dims(a, order), lambda a: np.transpose(a, order)),
        (lambda a: a.T, lambda a: a.T),
        (lambda a: nf.moveaxis(a, source, target), lambda a: np.moveaxis(a, source, target)),
        (lambda a: a.swapaxes(source, target), lambda a: np.swapaxes(a, source, target)),
        (lambda a: a.mT if a.ndim > 1 else a, lambda a: a.mT if a.ndim > 1 else a),
        (lambda a: nf.squeeze(nf.expand_dims(a, source), source), lambda a: a),
        (lambda a: nf.expand_dims(a, source), lambda a: np.expand_dims(a, source)),
        (lambda a: nf.squeeze(a), lambda a: np.squeeze(a)),
        (lambda a: nf.flip(a, axis=source), lambda a: np.flip(a, source)),
        (lambda a: nf.flip(a), lambda a: np.flip(a)),
    ]
    which = draw(st.integers(0, len(ops) - 1))
    must = (which < 7 and len(units(q)) < 2) or (which == 8 and source in free(q))
    return *ops[which], must


def reshapes(draw: Draw, q: Any) -> Op:
    first, last = min(units(q), default=0), max(units(q), default=-1)
    lead, keep, tail = q.shape[:first], q.shape[first : last + 1], q.shape[last + 1 :]
    shapes = [
        (*lead, 1, *keep, *tail), (math.prod(lead), *keep, *tail), (*lead, *keep, math.prod(tail)),
        (*lead[::-1], *keep, 1, *tail[::-1]),
    ]  # fmt: skip
    if draw(st.booleans()):
        shape = draw(st.sampled_from(shapes))
        return lambda a: nf.reshape(a, shape), lambda a: a.reshape(shape), len(units(q)) < 2
    return lambda a: a.ravel(), lambda a: a.ravel(), False


def joins(draw: Draw, q: Any) -> Op:
    axis = draw(st.integers(0, q.ndim - 1))
    unit = units(q).get(axis, 1)
    whole, n = q.shape[axis] % unit == 0, q.shape[axis]
    cut = draw(st.integers(0, n // unit)) * unit
    new = draw(st.integers(0, min(units(q), default=q.ndim)))
    ops: list[tuple[Any, Any, bool]] = [
        (lambda a: nf.concat([a, a], axis=axis), lambda a: np.concatenate([a, a], axis), whole),
        (lambda a: np.concatenate([a, a, a], axis=axis), lambda a: np.concatenate([a, a, a], axis), whole),
        (lambda a: nf.concat(nf.split(a, [cut], axis=axis), axis=axis), lambda a: a, True),
        (lambda a: nf.stack([a, a], axis=new), lambda a: np.stack([a, a], new), True),
        (lambda a: nf.vstack([a, a]), lambda a: np.vstack([a, a]), False),
        (lambda a: nf.hstack([a, a]), lambda a: np.hstack([a, a]), False),
        (lambda a: nf.dstack([a, a]), lambda a: np.dstack([a, a]), False),
        (lambda a: nf.unstack(a, axis=axis)[-1], lambda a: np.moveaxis(a, axis, 0)[-1], axis in free(q)),
        (lambda a: nf.split(a, [cut], axis=axis)[1], lambda a: np.split(a, [cut], axis)[1], True),
        (lambda a: nf.roll(a, cut, axis=axis), lambda a: np.roll(a, cut, axis), whole),
        (lambda a: nf.roll(a, 1, axis=axis), lambda a: np.roll(a, 1, axis), axis in free(q)),
        (lambda a: nf.tile(a, (2,) + (1,) * a.ndim), lambda a: np.tile(a, (2,) + (1,) * a.ndim), True),
        (lambda a: nf.tile(a, 2), lambda a: np.tile(a, 2), q.shape[-1] % units(q).get(q.ndim - 1, 1) == 0),
        (lambda a: nf.tile(a, (1, 0)), lambda a: np.tile(a, (1, 0)), True),
        (lambda a: nf.repeat(a, 2, axis=axis), lambda a: np.repeat(a, 2, axis), axis in free(q)),
    ]
    return draw(st.sampled_from([op for op in ops if n or op is not ops[7]]))


def picks(draw: Draw, q: Any) -> Op:
    axis = draw(st.integers(0, q.ndim - 1))
    n, open_ = q.shape[axis], axis in free(q)
    if n == 0:
        return lambda a: a.copy(), lambda a: a, True
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    lines = rng.integers(-n, n, tuple(2 if i == axis else 1 if i in units(q) else m for i, m in enumerate(q.shape)))
    wide = np.broadcast_to(lines, tuple(2 if i == axis else m for i, m in enumerate(q.shape)))
    shape = tuple(m if m != 1 or i in units(q) else 3 for i, m in enumerate(q.shape))
    ops: list[Op] = [
        (lambda a: nf.take(a, [n - 1, 0], axis=axis), lambda a: np.take(a, [n - 1, 0], axis), open_),
        (
            lambda a: nf.take_along_axis(a, nf.asarray(lines), axis=axis),
            lambda a: np.take_along_axis(a, wide, axis),
            open_,
        ),
        (lambda a: nf.broadcast_to(a, (2, *shape)), lambda a: np.broadcast_to(a, (2, *shape)), True),
        (lambda a: nf.broadcast_to(a, a.shape), lambda a: a, True),
        (lambda a: list(a)[-1], lambda a: list(a)[-1], 0 in free(q))
        if q.shape[0]
        else (lambda a: a, lambda a: a, True),
    ]
    return draw(st.sampled_from(ops))


def copies(draw: Draw, q: Any) -> Op:
    def parts(a: Any) -> Any:
        made = nf.QuantizedArray.from_parts
        return made(a.codes, a.scale, a.dtype, axis=a.axis, tensor_scale=a.tensor_scale, shape=a.shape)

    ops: list[Any] = [
        lambda a: a.copy(), copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a)),
        lambda a: a.to_device(a.device), lambda a: a.astype(a.dtype), lambda a: nf.asarray(a, copy=True),
        lambda a: a.detach(), lambda a: a.to_device("cpu").to_device(a.device), parts if q.ndim else copy.copy,
    ]  # fmt: skip
    return draw(st.sampled_from(ops)), lambda a: a, True


def refused(op: Any, q: Any) -> Any:
    """What ``op`` gives, or None if it raised and named a remedy."""
    try:
        return op(q)
    except (BlockIndexError, ShapeError) as error:
        if "nf." not in str(error):
            raise
    return None


MAKERS = (index, index, cutting_index, axes, reshapes, joins, joins, picks, copies)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=8)
@given(data=st.data())
def test_law(name: str, data: Any, device: Any) -> None:
    q = data.draw(drawn(FORMATS[name]))
    x = np.asarray(q)
    for _ in range(4):
        if q.ndim == 0 or q.size > 20_000:
            return
        op, of_values, must = data.draw(st.sampled_from(MAKERS))(data.draw, q)
        got = op(q) if must else refused(op, q)
        if got is None:
            continue
        expected = np.asarray(of_values(x))
        assert type(got) is nf.QuantizedArray and (got.dtype, got.device, got.shape) == (
            q.dtype,
            device,
            expected.shape,
        )
        same(got, expected)
        q, x = got, expected
