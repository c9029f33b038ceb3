"""Checks that the update rules share (`adam`, `sgd`): lists of one length, device words, state of float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nvfp.errors import ArgumentError, DTypeError, ShapeError, message
from nvfp.kernels._check import FLOAT32, check_word
from nvfp.kernels._dense import check_computed, contiguous, deliver

_INT32 = np.dtype(np.int32)


def check_words(op: str, hyper: Any, names: tuple[str, ...], step: Any, skip: Any | None) -> None:
    """Raise unless ``hyper`` is float32 [len(names)], ``step`` an int32 word and ``skip`` a float32 word or None."""
    if hyper.shape != (len(names),) or hyper.dtype != FLOAT32:
        got, wanted = f"{hyper.dtype} {hyper.shape}", f"hyper as float32 ({len(names)},)"
        raise ShapeError(message(op, wanted, got, f"pack {', '.join(names)}"))
    if step.shape != () or step.dtype != _INT32 or isinstance(step, np.generic):
        got = f"{step.dtype} {step.shape}"
        raise ShapeError(message(op, "step as an int32 array of shape ()", got, "keep it as a 0-d device array"))
    _check_writeable(op, "step", step)
    if skip is not None:
        check_word(op, "skip", skip)


def check_lists(op: str, lists: Mapping[str, Sequence[Any | None]]) -> None:
    """Raise unless the lists fit each other, entry by entry.

    Args:
        op: the stem.
        lists: ``params`` and ``grads`` (float32, bfloat16 or float16), then state (float32, or None where a
            parameter has none of it); of one length, the arrays of one parameter of one shape. Everything but
            ``grads`` is written.
    """
    if len({len(values) for values in lists.values()}) != 1:
        got = ", ".join(f"{name} {len(values)}" for name, values in lists.items())
        raise ShapeError(message(op, "lists of one length", got, "pass one entry per parameter"))
    for entries in zip(*lists.values()):
        for name, x in zip(lists, entries):
            if x is not None:
                _check_one(op, name, x, entries[0])


def _check_one(op: str, name: str, x: Any, param: Any) -> None:
    if name in ("params", "grads"):
        check_computed(op, name, x)
    elif x.dtype != FLOAT32:
        raise DTypeError(message(op, f"{name} of float32", x.dtype, "keep optimizer state in float32"))
    if x.shape != param.shape:
        raise ShapeError(message(op, f"{name} of shape {param.shape}", x.shape, "pass the parameter's own"))
    if name != "grads":
        _check_writeable(op, "parameter" if name == "params" else name, x)


def _check_writeable(op: str, name: str, x: Any) -> None:
    if isinstance(x, np.ndarray) and not x.flags.writeable:
        raise ArgumentError(message(op, f"a writeable {name}", "a read-only array", "pass the array itself"))


def all_contiguous(xs: Sequence[Any | None]) -> list[Any | None]:
    """Return the arrays themselves where they are contiguous, else contiguous copies (see `bring_back`)."""
    return [None if x is None else contiguous(x) for x in xs]


def bring_back(given: Sequence[Any | None], used: Sequence[Any | None]) -> None:
    """Copy what was written in place of arrays that are not contiguous."""
    for x, copy in zip(given, used):
        if copy is not x:
            deliver(copy, x)
