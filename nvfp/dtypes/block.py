"""The exact twin of quantize and dequantize: whole arrays, every quantized dtype, by formulas only.

Slow and readable; every kernel is compared with it bit for bit. A `QuantDType` picks one of three rules for its
scales (`scales`); the rest is common: multiply in float32, cast (`codec`), mark the blocks that are not finite.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nvfp.dtypes import elements as el, scales
from nvfp.dtypes.codec import Codes, Overflow, Rounding, decode, encode, round_to_odd32
from nvfp.dtypes.conventions import Steps, apply_convention
from nvfp.dtypes.formats import QuantDType
from nvfp.dtypes.grid import block_amax, block_any, block_lengths, expand, grid_shape
from nvfp.dtypes.levels import four_over_six
from nvfp.dtypes.rotation import Rotation, rotate_exact
from nvfp.dtypes.stochastic import Random, encode_random
from nvfp.errors import ArgumentError, ShapeError, message

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class ExactBlocks:
    """What quantization gives, in logical order.

    Attributes:
        codes: unpacked codes in the shape of the input.
        scale: decode factors, one per block (``ceil`` of every blocked length; shape () per tensor): codes of
            the scale format, or float32 where that is the scale format.
        tensor_scale: float32 decode factor of shape () (one per row: the shape without the block axis), or None.
        multiplier: float32 in the shape of ``scale``: what the input was multiplied by (float32 scales only).
    """

    codes: Codes
    scale: np.ndarray
    tensor_scale: Float32 | None = None
    multiplier: Float32 | None = None


@dataclass(frozen=True, eq=False)
class _Scales:
    """Scales to store, and the factor that elements are multiplied by, both one per block."""

    stored: np.ndarray
    factor: Float32
    tensor_scale: Float32 | None = None


def quantize_exact(
    x: npt.ArrayLike,
    fmt: QuantDType,
    *,
    axis: int = -1,
    scale: npt.ArrayLike | None = None,
    amax: npt.ArrayLike | None = None,
    tensor_scale: npt.ArrayLike | None = None,
    amax_epsilon: float = 0.0,
    overflow: Overflow = "saturate",
    rotation: Rotation | None = None,
    rounding: Rounding = "even",
    random: Random | None = None,
    convention: str | None = None,
) -> ExactBlocks:
    """Quantize ``x`` by the written rules of ``fmt``.

    Args:
        x: real numbers, any shape; computed in float32 (float64 and wide integers rounded to odd first).
        fmt: the quantized dtype.
        axis: the block axis. With a pair ``block=(across, along)`` the other blocked axis is the other one of the
            last two; per-tensor formats ignore it.
        scale: float32 *multiplier* (delayed scaling), per-tensor float32 scales only: codes are cast(fl(x * scale)),
            ``fl(1 / scale)`` is stored, no amax is taken and non-finite elements are cast one by one.
        amax: the tensor's amax, in place of the one taken from ``x``: per-tensor formats, or S_enc's A.
        tensor_scale: stored decode factor of a two-level format; without ``amax`` S_enc is fl(1 / tensor_scale).
        amax_epsilon: least amax, float32 scales only.
        overflow: see `codec.encode`.
        rotation: ``"rht16"`` rotates ``x`` along ``axis`` first (`rotation.rotate_exact`).
        rounding: of the elements: ``"even"``, ``"toward_zero"`` or ``"stochastic"``.
        random: the numbers of stochastic rounding (`stochastic.random_numbers`), in the shape of the (rotated) input.
        convention: a stack whose rules take the place of nvfp's (`conventions`).

    Returns:
        Codes and scales in logical order.

    Raises:
        ShapeError: an axis that ``x`` lacks, or that a pair of block lengths does not allow.
        ArgumentError: an argument that the format has no use for.

    Numerics: a block with NaN or inf follows ``fmt.nonfinite``. The A of a two-level format is the largest finite
        magnitude. Lengths that no block divides count as filled up with zeros.

    Source: NVIDIA Transformer Engine's kernels (float32, NVFP4), OCP MX v1.0 (E8M0); docs/formats.md.

    Example:
        >>> from nvfp.dtypes.formats import nvfp4
        >>> blocks = quantize_exact([1344.0, -896.0, 600.0, 112.0], nvfp4)
        >>> blocks.codes.tolist(), blocks.scale.tolist(), float(blocks.tensor_scale)
        ([7, 14, 5, 1], [126], 0.5)
    """
    _check_arguments(fmt, scale=scale, amax=amax, tensor_scale=tensor_scale, amax_epsilon=amax_epsilon)
    fmt, steps = apply_convention(fmt, convention)
    if rotation is not None:
        x = rotate_exact(x, axis)
    values = round_to_odd32(x)
    lengths = block_lengths(values.shape, fmt, axis)
    finite = fmt.nonfinite == "nan_block"
    largest = block_amax(np.abs(values), lengths, finite=finite)
    if fmt.block is None and amax is not None:
        largest = np.asarray(amax, np.float32).reshape(largest.shape)

    if fmt.scale_family == "float32":
        found = _float32_scales(largest, fmt, scale, max(amax_epsilon, steps.least_amax), np.asarray(x).dtype)
    elif fmt.scale_family == "e8m0":
        found = _e8m0_scales(largest, fmt, steps)
    else:
        whole = largest.max(initial=0) if amax is None else amax
        if fmt.leveled:
            found = _leveled_scales(values, largest, fmt, whole, amax is not None, tensor_scale, lengths, axis)
        else:
            found = _two_level_scales(largest, fmt, whole, amax is not None, tensor_scale, steps)

    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        factor = expand(found.factor, lengths, values.shape)
        scaled = values * factor if steps.order == "nvfp" else values / factor
    scaled = scaled if steps.keep_minus_zero else scaled + np.float32(0)  # -0 + 0 is 0
    if rounding == "stochastic":
        assert random is not None, "stochastic rounding takes random numbers"
        codes = encode_random(scaled, fmt.element, random, overflow=overflow)
    else:
        codes = encode(scaled, fmt.element, overflow=overflow, rounding=rounding, symmetric=steps.symmetric)
    stored = found.stored
    if finite and scale is None:
        bad = block_any(~np.isfinite(values), lengths)
        if steps.even_overflow:
            bad |= found.stored == fmt.scale.nan_code
        codes = np.where(expand(bad, lengths, values.shape), _nan_fill(fmt), codes).astype(codes.dtype, order="C")
        nan = np.nan if fmt.scale_family == "float32" else fmt.scale.nan_code
        stored = np.where(bad, nan, stored).astype(stored.dtype)
    shape = () if fmt.block is None else stored.shape
    multiplier = found.factor.reshape(shape) if fmt.scale_family == "float32" else None
    return ExactBlocks(codes, stored.reshape(shape), found.tensor_scale, multiplier)


def dequantize_exact(
    blocks: ExactBlocks,
    fmt: QuantDType,
    shape: tuple[int, ...] | None = None,
    axis: int = -1,
    dtype: npt.DTypeLike = np.float32,
    *,
    tensor_factors: bool = True,
) -> np.ndarray:
    """Return the values of ``blocks``: ``fl(fl(code * scale) * tensor_scale)``, then one cast to ``dtype``.

    Args:
        blocks: codes and scales in logical order.
        fmt: their quantized dtype.
        shape: logical shape, if given checked against the codes.
        axis: the block axis.
        dtype: a float dtype.
        tensor_factors: False leaves out every factor that is one per tensor (the tensor scale, unless it is one per
            row, and the scale of per-tensor formats).

    Returns:
        Values of ``dtype`` in the shape of the codes.

    Raises:
        ShapeError: codes of another shape.

    Numerics: ``code * scale`` is exact in float32 except for float32 scales (one rounding) and beyond its range
        (inf). Subnormals are kept.

    Example:
        >>> from nvfp.dtypes.formats import mxfp8
        >>> dequantize_exact(quantize_exact([3.75, 0.3, -1.0], mxfp8), mxfp8).tolist()
        [3.75, 0.3125, -1.0]
    """
    logical = blocks.codes.shape
    if shape is not None and tuple(shape) != logical:
        raise ShapeError(message("dequantize", f"codes of shape {tuple(shape)}", logical, "pass unpacked codes"))
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        value = decode(blocks.codes, fmt.element).astype(np.float32)
        if tensor_factors or fmt.block is not None:
            value = value * _factor_per_element(blocks, fmt, axis)
        if fmt.per_row_tensor_scale:
            value = value * np.expand_dims(np.asarray(blocks.tensor_scale), axis)
        elif tensor_factors and blocks.tensor_scale is not None:
            value = value * blocks.tensor_scale
        return np.asarray(np.asarray(value, np.float32).astype(dtype))


def _factor_per_element(blocks: ExactBlocks, fmt: QuantDType, axis: int) -> Float32:
    logical = blocks.codes.shape
    lengths = block_lengths(logical, fmt, axis)
    scale = blocks.scale if fmt.scale_family == "float32" else decode(blocks.scale, fmt.scale)
    return expand(scale.astype(np.float32).reshape(grid_shape(logical, lengths)), lengths, logical)


def _float32_scales(
    largest: Float32, fmt: QuantDType, scale: npt.ArrayLike | None, epsilon: float, dtype: np.dtype
) -> _Scales:
    """Family 1: multiplier max / amax (or the given one), its inverse is stored."""
    if scale is not None:
        multiplier = np.asarray(scale, np.float32).reshape(largest.shape)
    else:
        input_max = {"bfloat16": el.bfloat16.max, "float16": el.float16.max}.get(dtype.name, el.float32.max)
        multiplier = scales.fp32_from_amax(
            largest, fmt.element, power_of_two=fmt.power_of_two_scales, epsilon=epsilon,
            overflow_value=el.float32.max if fmt.block is None else input_max,
        )  # fmt: skip
    return _Scales(scales.inverse(multiplier), multiplier)


def _e8m0_scales(largest: Float32, fmt: QuantDType, steps: Steps) -> _Scales:
    """Family 2: a power of two by comparison of significands; the factor is its exact inverse."""
    stored = scales.e8m0_from_amax(largest, fmt.element, fmt.scale_rule, steps)
    return _Scales(stored, np.asarray(np.ldexp(np.float32(1), 127 - stored.astype(np.int32)), np.float32))


def _two_level_scales(
    largest: Float32,
    fmt: QuantDType,
    whole: npt.ArrayLike,
    amax_given: bool,
    tensor_scale: npt.ArrayLike | None,
    steps: Steps,
) -> _Scales:
    """Family 3: NVFP4's steps, under the encode factor of the tensor (1 without a tensor scale)."""
    if steps.order != "nvfp":
        return _divided_scales(largest, fmt, whole, amax_given, tensor_scale, steps)
    s_enc: Float32 = np.ones((), np.float32)
    kept = None
    if fmt.tensor_scale:
        whole = np.asarray(whole, np.float32).reshape(())
        if tensor_scale is None:
            tensor_scale = scales.tensor_scale_from_amax(whole, fmt.element, fmt.scale)
            amax_given = True  # S_enc follows from A, not from the rounded decode factor
        kept = np.asarray(tensor_scale, np.float32).reshape(())
        s_enc = scales.s_enc(whole, fmt.element, fmt.scale) if amax_given else scales.s_enc_from_tensor_scale(kept)
    stored = scales.nvfp4_block_scale(largest, s_enc, fmt.element, fmt.scale)
    return _Scales(stored, scales.nvfp4_multiplier(stored, s_enc, fmt.scale), kept)


def _leveled_scales(
    values: Float32,
    largest: Float32,
    fmt: QuantDType,
    whole: npt.ArrayLike,
    amax_given: bool,
    tensor_scale: npt.ArrayLike | None,
    lengths: tuple[int, ...],
    axis: int,
) -> _Scales:
    """Family 3 with one A per row, or with 4-over-6 (`levels`)."""
    bound = fmt.scale_bound
    a = largest.max(axis=axis, keepdims=True, initial=0) if fmt.per_row_tensor_scale else np.asarray(whole, np.float32)
    s_enc = scales.s_enc(a, fmt.element, fmt.scale, bound)
    kept = scales.tensor_scale_from_amax(a, fmt.element, fmt.scale, bound)
    if tensor_scale is not None:
        kept = np.asarray(tensor_scale, np.float32).reshape(())
        if not amax_given:
            s_enc = scales.s_enc_from_tensor_scale(kept)
            with np.errstate(over="ignore"):
                a = kept * np.float32(fmt.element.max * bound)
    if fmt.four_over_six is not None:
        stored, factor = four_over_six(values, largest, s_enc, a, fmt, lengths, axis)
    else:
        stored = scales.nvfp4_block_scale(largest, s_enc, fmt.element, fmt.scale)
        factor = scales.nvfp4_multiplier(stored, s_enc, fmt.scale)
    return _Scales(stored, factor, np.squeeze(kept, axis) if fmt.per_row_tensor_scale else kept.reshape(()))


def _divided_scales(
    largest: Float32,
    fmt: QuantDType,
    whole: npt.ArrayLike,
    amax_given: bool,
    tensor_scale: npt.ArrayLike | None,
    steps: Steps,
) -> _Scales:
    """Family 3 as a convention that divides; the factor is the divisor."""
    tensor, kept = scales.divided_tensor_level(
        whole, None if amax_given and steps.order != "modelopt" else tensor_scale, fmt.element, fmt.scale, steps
    )
    stored = scales.divided_block_scale(largest, tensor, fmt.element, fmt.scale, steps)
    kept = kept if tensor_scale is None else np.asarray(tensor_scale, np.float32).reshape(())
    return _Scales(stored, scales.divisor(stored, tensor, fmt.scale, steps), kept)


def _nan_fill(fmt: QuantDType) -> int:
    """The code of the elements of a block that is not finite."""
    return fmt.element.nan_code if fmt.element.has_nan else 0


def _check_arguments(
    fmt: QuantDType,
    *,
    scale: npt.ArrayLike | None,
    amax: npt.ArrayLike | None,
    tensor_scale: npt.ArrayLike | None,
    amax_epsilon: float,
) -> None:
    per_tensor, float32_scales = fmt.block is None, fmt.scale_family == "float32"
    one_level = fmt.tensor_scale and not fmt.per_row_tensor_scale
    for argument, given, usable, need in (
        ("scale", scale is not None, per_tensor and float32_scales, "one float32 scale per tensor"),
        ("amax", amax is not None, per_tensor or one_level, "a scale per tensor"),
        ("tensor_scale", tensor_scale is not None, one_level, "a tensor scale"),
        ("amax_epsilon", amax_epsilon != 0, float32_scales, "float32 scales"),
    ):
        if given and not usable:
            need = f"a format with {need} for {argument}="
            raise ArgumentError(message("quantize", need, fmt.name, f"leave {argument}= out"))
