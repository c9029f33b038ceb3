"""`quantize`: from a high-precision tensor to an `OperandPair` of codes and scales."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from numbers import Integral
from typing import Any, Literal

import numpy as np

from nvfp.dtypes.codec import Rounding
from nvfp.dtypes.conventions import PLAIN, STACKS, Steps, apply_convention
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, ShapeError, message
from nvfp.kernels._check import (
    Overflow,
    Words,
    axis_index,
    check_choice,
    check_float,
    check_format,
    check_rounding,
    check_word,
    word_pair,
)  # fmt: skip
from nvfp.kernels._dense import check_computed, check_computed_dtype
from nvfp.kernels._dispatch import backend
from nvfp.kernels._prepared import prepared
from nvfp.kernels._stochastic import check_rng
from nvfp.kernels.bias_grad import bias_grad as column_sums
from nvfp.kernels.dequantize import plain_scales
from nvfp.kernels.input_fn import InputFn, apply, arrays_of, check_input
from nvfp.kernels.operand import Operand, OperandPair, ScaleLayout
from nvfp.kernels.transpose import transpose


@prepared
def quantize(
    x: Any,
    fmt: QuantDType,
    *,
    axis: int = -1,
    row: bool = True,
    col: bool = False,
    scale: Any | None = None,
    amax: Any | None = None,
    tensor_scale: Any | None = None,
    amax_out: Any | None = None,
    amax_epsilon: float = 0.0,
    rounding: Rounding = "even",
    overflow: Overflow = "saturate",
    rng: Any | None = None,
    rotation: str | None = None,
    input_fn: InputFn | None = None,
    bias_grad: bool | np.dtype = False,
    scale_layout: ScaleLayout = "plain",
    convention: str | None = None,
) -> OperandPair:
    """Quantize ``x`` once for every side that a GEMM reads.

    ``code = cast(fl(x * multiplier))`` with one multiplier per block (or tensor), and the decode factor of
    that block stored beside the codes:

    - float32 scale: multiplier ``fl(max / amax)``, stored ``fl(1 / multiplier)``;
    - E8M0 scale: ``2**-e`` and byte ``e + 127``, e the smallest with ``max * 2**e >= amax`` (``scale_rule``);
    - other scales: ``S_enc = fl(max * scale_max / A)``, stored ``s = cast(fl(amax * fl(S_enc * fl(1/max))))``,
      multiplier ``fl(1 / fl(s * fl(1 / S_enc)))``, tensor scale ``fl(A / (max * scale_max))``.

    Args:
        x: raw array, float32, bfloat16, float16 or float64, any shape and strides. [M, K] when ``col``.
        fmt: any row whose element has at most 8 bits and whose scale is float32, e8m0 or a float of 8 or 16 bits.
        axis: block axis of the row side. Pairs of block lengths span the last two axes, ``axis`` one of them.
        row: make the row side: codes in logical order, blocks along ``axis``.
        col: make the column side of a matrix: logical shape (M, K), axis 0, stored transposed: codes [K, M],
            scales [K, ceil(M / B)] (square blocks [ceil(K / B), ceil(M / B)]). Needs ``axis`` last.
        scale: multiplier word of delayed scaling (one float32 scale per tensor). Never aliased by the result.
        amax: the tensor's amax as a word, or a (row, column) pair: skips the amax pass of per-tensor
            scaling, or is A. Square and per-tensor formats take one word, as their sides hold equal numbers.
        tensor_scale: decode factor as a word or pair. Alone it gives ``S_enc = fl(1 / tensor_scale)``;
            with ``amax`` it is only stored.
        amax_out: word or pair that becomes ``max(old, amax of x)``: amax counts infinities in formats that
            saturate, and skips them where they make NaN blocks.
        amax_epsilon: least amax, for float32 scales.
        rounding: of the elements: ``"even"``, ``"toward_zero"``, or ``"stochastic"`` (`dtypes.stochastic`: E2M1 takes
            Transformer Engine's 8 random bits, as every 4-bit element, wider ones take 16), which needs ``rng``.
        overflow: ``"saturate"`` or ``"nonsat"``, see `cast`.
        rng: `kernels._stochastic.Rng` (key, ordinal, step). Element number e (row-major in the logical, for a rotated
            side the rotated, matrix) has numbers of its own in the row and in the column side, Philox lanes 0 and 1;
            formats whose sides hold equal numbers take lane 0.
        rotation: ``"rht16"`` rotates the column side along M before anything else (`kernels.hadamard`; its amax is
            that of the rotated values), for formats in blocks along one axis. It then has the logical shape
            (M rounded up to 16, K) and says so in ``Operand.rotation``. The row side is never rotated.
        input_fn: `kernels.input_fn.Activated`, `ActivationGradient` or `Normalized`: quantize its result (of ``x``,
            rounded to the dtype of ``x``) instead of ``x``, with the same bits as in two steps. On CUDA the result
            is not written where tiles of 128 x 128 take the format: one float32 scale per tensor, blocks of 16 or 32
            along one axis, blocks of 128 and 128 x 128; rows contiguous, no rotation, no convention. A maximum
            that is not given takes a pass of its own, which applies norms and ReLU kinds too. Elsewhere the function
            is applied first.
        bias_grad: True, or a dtype: also return the column sums of what is quantized, `kernels.bias_grad` of it, in
            the dtype of ``x`` or this one, as ``OperandPair.bias_grad``; from the same pass where that fuses.
        scale_layout: ``"tiles128x4"`` writes 8-bit block scales of matrix sides in the order of
            `kernels.scale_layout`, over stored rows x blocks along the stored last axis (square blocks: a
            scale is repeated for each of its rows). ``"k_major128"`` does so with float32 block scales:
            [stored rows, blocks] is written [blocks, rows rounded up to 4], square blocks [block rows, blocks
            rounded up to 4].
        convention: a stack whose rules take the place of nvfp's: ``"te"``, ``"ocp"``, ``"torchao"`` (its rule by the
            row's ``scale_rule``), ``"modelopt"``, ``"compressed-tensors"``, ``"mlx"``, ``"microxcaling"``; each where
            its rule is known (`dtypes.conventions`). The operands keep the dtype ``fmt``.

    Returns:
        The pair; a side that was not asked for is None and can be made later where that is exact.

    Raises:
        DTypeError: an input or word of another dtype.
        ShapeError: axes that do not fit, or ``col`` of something other than a matrix.
        ArgumentError: an argument that the format does not use, or neither side asked for.

    Numerics:
        Ragged last blocks count as filled with zeros. float64 is first rounded to float32 with round-to-odd.
        NaN or inf in a block: by the row's ``nonfinite``, a NaN block (scale and codes NaN; codes 0 where the
        element has no NaN) or saturation with NaN skipped by amax. Subnormals are kept. All zero: float32
        scale 1, E8M0 byte 0, other scales 0; A = 0 gives S_enc = 1 and tensor scale 0. CPU, CUDA and
        `dtypes.block.quantize_exact` give the same bits.

    Source:
        TE numerics B1, B2, B4, B5.1; OCP MX v1.0.

    Example:
        >>> import numpy as np
        >>> from nvfp.dtypes.formats import mxfp8
        >>> pair = quantize(np.full((2, 48), 1.0, np.float32), mxfp8, col=True)
        >>> pair.row.codes.shape, pair.row.scale.tolist(), pair.col.codes.shape, pair.col.scale.shape
        ((2, 48), [[119, 119], [119, 119]], (48, 2), (48, 1))
    """
    check_float("quantize", x)
    check_rounding("quantize", rounding, overflow, rng)  # here: what is cached below must be hashable
    check_choice("quantize", "scale_layout", scale_layout, ("plain", "tiles128x4", "k_major128"))
    bias = _bias_dtype(x, bias_grad)
    if input_fn is not None:
        check_input("quantize", x, input_fn)
    asked, steps = fmt, PLAIN
    if convention is not None:
        check_choice("quantize", "convention", convention, STACKS)
        fmt, steps = apply_convention(fmt, convention)
        if steps.least_amax and scale is None:
            amax_epsilon = max(amax_epsilon, steps.least_amax)
        steps = dataclasses.replace(steps, least_amax=0.0) if steps.least_amax else steps
        if rounding != "even":
            got = f"convention={convention!r} and rounding={rounding!r}"
            raise ArgumentError(message("quantize", "rounding='even' under a convention", got, "leave one of them out"))
    given = (scale is not None, amax is not None, tensor_scale is not None)
    if not isinstance(axis, Integral):  # what `_resolve` caches must be hashable
        axis_index("quantize", axis, x.ndim)
    axis = _resolve(fmt, x.ndim, axis, row, col, given, amax_epsilon, scale_layout)
    if scale is not None:
        check_word("quantize", "scale", scale)
    if rounding == "stochastic":
        rng = check_rng(rng)
    if rotation is not None:
        check_choice("quantize", "rotation", rotation, ("rht16",))
        if col and fmt.square:
            expected = "blocks along one axis under a rotation"
            raise ArgumentError(message("quantize", expected, fmt.name, "rotate operands in 1-D blocks only"))
    if fmt.leveled:
        _check_levels(fmt, rounding, rotation if col else None, steps, scale_layout if col else "plain")
    # What the twins get: `axis` >= 0; `scale` a word or None; pairs (row, column) of words, None for a side that
    # is not made, and for a square format with both sides the same word twice (amax, tensor_scale). They read
    # every word before they write `amax_out`, and no result shares memory with one.
    words: dict[str, Words] = {
        "amax": _shared(fmt, "amax", word_pair("quantize", "amax", amax, row, col)),
        "tensor_scale": _shared(fmt, "tensor_scale", word_pair("quantize", "tensor_scale", tensor_scale, row, col)),
        "amax_out": word_pair("quantize", "amax_out", amax_out, row, col),
    }
    options: dict[str, Any] = {
        "scale": scale, "amax_epsilon": float(amax_epsilon), "rounding": rounding, "rng": rng, "overflow": overflow,
        "scale_layout": scale_layout, "steps": steps,
    }  # fmt: skip
    extra = () if input_fn is None else arrays_of(input_fn)
    device = backend("quantize", x, scale, None if rng is None else rng.step, *extra)
    twin, sums = device.quantize, None
    rotation = rotation if col else None
    searched = fmt.four_over_six is not None and fmt.square and col
    if input_fn is not None or bias is not None:
        if not searched:
            options["rotation"] = rotation
            sides = device.quantize_input(x, fmt, input_fn, bias=bias, axis=axis, row=row, col=col, **words, **options)
            return _named(asked, *sides)
        x = x if input_fn is None else apply(x, input_fn)
        sums = None if bias is None else column_sums(x, dtype=bias)
    if searched:
        return _named(asked, *_searched_square(twin, x, fmt, row, words, options), sums)
    return _named(asked, *twin(x, fmt, axis=axis, row=row, col=col, rotation=rotation, **words, **options))


def _named(fmt: QuantDType, row: Operand | None, col: Operand | None, sums: Any | None = None) -> OperandPair:
    """The pair, under the row that was asked for (a convention computes by another one)."""
    pair = OperandPair(row, col, bias_grad=sums)
    for name, side in (("row", row), ("col", col)):
        if side is not None and side.format is not fmt:
            setattr(pair, name, dataclasses.replace(side, format=fmt))
    return pair


def _searched_square(
    twin: Any, x: Any, fmt: QuantDType, row: bool, words: dict[str, Words], options: dict[str, Any]
) -> tuple[Operand | None, Operand]:
    """Both sides of 4-over-6 in square blocks: errors are added along the rows, so the columns are their transpose."""
    given = {name: (pair[0] if pair[0] is not None else pair[1], None) for name, pair in words.items()}
    given["amax_out"] = words["amax_out"]
    made, _ = twin(x, fmt, axis=1, row=True, col=False, **given, **options)
    return made if row else None, other_side(OperandPair(made, None), "col")


def _bias_dtype(x: Any, wanted: Any) -> np.dtype | None:
    """The dtype of the column sums that are wanted, or None."""
    if wanted is False or wanted is None:
        return None
    check_computed("quantize", "x with bias_grad", x)
    dtype: np.dtype = x.dtype if wanted is True else wanted
    if not isinstance(dtype, np.dtype):
        raise ArgumentError(message("quantize", "bias_grad as a bool or a dtype", repr(wanted), "pass True"))
    check_computed_dtype("quantize", dtype)
    if x.ndim == 0:
        raise ShapeError(message("quantize", "x [..., N] with bias_grad", x.shape, "pass at least one axis"))
    return dtype


def other_side(pair: OperandPair, which: Literal["row", "col"]) -> Operand:
    """Return the missing side of ``pair``: by `pair.make`, else the byte transpose where both hold equal numbers.

    Args:
        pair: holds at least one side or ``make``.
        which: the side wanted.

    Returns:
        The row side (plain storage, axis 1) or column side (transposed storage, axis 0) of the matrix.

    Raises:
        ArgumentError: the side cannot be made exactly from what the pair holds.

    Example:
        >>> import numpy as np
        >>> from nvfp.dtypes.formats import fp8_e4m3
        >>> pair = quantize(np.arange(6, dtype=np.float32).reshape(2, 3), fp8_e4m3)
        >>> other_side(pair, "col").codes.shape
        (3, 2)
    """
    if pair.make is not None:  # first: sides of different kinds say nothing of each other
        return pair.make(which)
    have = pair.col if which == "row" else pair.row
    if have is not None and have.scale_layout == "k_major128":
        have = plain_scales(have)
    square = have is not None and have.format.square and have.rotation == "none"
    if have is not None and square and len(have.shape) == 2 and have.scale_layout == "plain":
        packed = have.format.element.packed
        columns = have.stored_shape[-1]
        codes = transpose(have.codes, packed=packed, columns=columns if packed else None)
        scale = have.scale if have.format.block is None else transpose(have.scale)
        return Operand(
            codes=codes, scale=scale, tensor_scale=have.tensor_scale, format=have.format, shape=have.shape,
            axis=1 if which == "row" else 0, transposed=which == "col",
        )  # fmt: skip
    name = have.format.name if have is not None else "nothing"
    raise ArgumentError(
        message("quantize", f"a pair that can give its {which} side", f"one of {name}", f"quantize with {which}=True")
    )


@lru_cache(maxsize=1024, typed=True)  # typed: 1.0 and True must not find what was kept for 1
def _resolve(
    fmt: QuantDType,
    ndim: int,
    axis: int,
    row: bool,
    col: bool,
    given: tuple[bool, bool, bool],
    amax_epsilon: float,
    scale_layout: ScaleLayout,
) -> int:
    """Check what depends on the row, once per combination; return the axis counted from the front."""
    check_format("quantize", fmt)
    _check_used(fmt, given, amax_epsilon)
    axis = _check_axis(fmt, ndim, axis, row, col)
    _check_layout(fmt, ndim, axis, scale_layout)
    return axis


def _check_axis(fmt: QuantDType, ndim: int, axis: int, row: bool, col: bool) -> int:
    if not (row or col):
        raise ArgumentError(message("quantize", "row or col", "neither", "pass row=True or col=True"))
    if ndim == 0 and fmt.block is None and not fmt.element.packed and not col:
        return 0
    axis = axis_index("quantize", axis, ndim)
    if col and (ndim != 2 or axis != 1):
        got = f"{ndim} dimensions, axis {axis}"
        raise ShapeError(message("quantize", "a matrix and axis=-1 for col=True", got, "reshape to two axes"))
    if (fmt.block_shape or (1, 1))[0] > 1 and (ndim < 2 or axis < ndim - 2):
        expected, got = f"one of the last two axes for blocks of {fmt.block}", f"axis {axis} of {ndim} dimensions"
        raise ShapeError(message("quantize", expected, got, "move that axis last"))
    return axis


def _check_used(fmt: QuantDType, given: tuple[bool, bool, bool], amax_epsilon: float) -> None:
    """Refuse arguments that the format would ignore."""
    scale, amax, tensor_scale = given
    per_tensor, float_scale = fmt.block is None, fmt.scale_family == "float32"
    one_level = fmt.tensor_scale and not fmt.per_row_tensor_scale
    for name, there, used, need in (
        ("scale", scale, per_tensor and float_scale, "one float32 scale per tensor"),
        ("amax", amax, per_tensor or one_level, "a scale per tensor"),
        ("tensor_scale", tensor_scale, one_level, "a tensor scale"),
        ("amax_epsilon", amax_epsilon != 0.0, float_scale, "float32 scales"),
    ):
        if there and not used:
            expected = f"a format with {need} for {name}="
            raise ArgumentError(message("quantize", expected, fmt.name, f"leave {name}= out"))
    if scale and (amax or amax_epsilon != 0.0):
        raise ArgumentError(message("quantize", "scale= or amax=", "both", "pass the multiplier or the amax, not both"))


def _check_levels(fmt: QuantDType, rounding: Rounding, rotation: str | None, steps: Steps, layout: ScaleLayout) -> None:
    """Refuse what Transformer Engine refuses beside one A per row or 4-over-6, and what has no rule."""
    for wrong, need, got in (
        (rounding != "even", "rounding='even'", f"rounding={rounding!r}"),
        (rotation is not None, "no rotation", f"rotation={rotation!r}"),
        (steps != PLAIN, "nvfp's or TE's convention", "another one"),
        (layout != "plain" and fmt.square, "scale_layout='plain' for the columns of square blocks", repr(layout)),
    ):
        if wrong:
            raise ArgumentError(message("quantize", f"{need} with {fmt.name}", got, "leave it out"))


def _shared(fmt: QuantDType, name: str, pair: Words) -> Words:
    """Refuse two different words where both sides hold the same numbers."""
    row, col = pair
    if row is not col and row is not None and col is not None and fmt.square:
        got = f"two {name} words"
        raise ArgumentError(message("quantize", f"one {name} word for {fmt.name}", got, "pass one: its sides share it"))
    return pair


def _check_layout(fmt: QuantDType, ndim: int, axis: int, layout: ScaleLayout) -> None:
    if layout == "plain":
        return
    kind, bits = ("8-bit", 8) if layout == "tiles128x4" else ("float32", 32)
    if fmt.block is None or fmt.scale.bits != bits or ndim != 2 or axis != 1:
        expected = f"{kind} block scales of a matrix, blocked along its last axis, for {layout}"
        got = f"{fmt.name} of {ndim} dimensions, axis {axis}"
        raise ArgumentError(message("quantize", expected, got, "leave scale_layout at 'plain'"))
