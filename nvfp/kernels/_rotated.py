"""The column side of a rotated matrix where no kernel does both: rotate, then quantize."""

from __future__ import annotations

import dataclasses
from typing import Any

from nvfp.dtypes.formats import QuantDType
from nvfp.kernels._check import Words
from nvfp.kernels._dispatch import zero_word
from nvfp.kernels.hadamard import hadamard
from nvfp.kernels.operand import Operand


def rotated_apart(
    twin: Any, x: Any, fmt: QuantDType, row: bool, words: dict[str, Words], options: dict[str, Any]
) -> tuple[Operand | None, Operand]:
    """Return (row side of ``x``, column side of ``x`` rotated along its rows).

    Args:
        twin: the ``quantize`` of a device, without its argument ``rotation``.
        x: raw matrix.
        fmt: row.
        row: make the row side.
        words: the arguments of the twin that are pairs of words.
        options: its other arguments but ``axis``, ``row`` and ``col``.
    """
    side: Operand | None = None
    if row:
        side, _ = twin(x, fmt, axis=1, row=True, col=False, **_only(0, words), **options)
    words = _only(1, words)
    word = None
    if fmt.tensor_scale and fmt.nonfinite == "nan_block" and words["amax"][1] is None is words["tensor_scale"][1]:
        word = zero_word(x)  # A is taken in the pass that rotates
        words["amax"] = (None, word)
    turned = hadamard(x, axis=0, amax_out=word)
    col: Operand = twin(turned, fmt, axis=1, row=False, col=True, **words, **options)[1]
    return side, dataclasses.replace(col, rotation="rht16")


def _only(which: int, words: dict[str, Words]) -> dict[str, Words]:
    """The words of one side."""
    return {name: (pair[0], None) if which == 0 else (None, pair[1]) for name, pair in words.items()}
