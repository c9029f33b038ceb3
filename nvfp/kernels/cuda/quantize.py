"""CUDA twin of `nvfp.kernels.quantize`: the words a call needs, its outputs, and the Operands over them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvfp.dtypes import elements as el
from nvfp.dtypes.codec import Overflow, Rounding
from nvfp.dtypes.conventions import PLAIN, Steps, apply_convention
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e4m3_b128, mxfp8_e4m3, nvfp4
from nvfp.kernels._check import Words
from nvfp.kernels._dense import contiguous
from nvfp.kernels._rotated import rotated_apart
from nvfp.kernels._stochastic import Rng
from nvfp.kernels.activation import KINDS
from nvfp.kernels.bias_grad import bias_grad, tiles_of
from nvfp.kernels.cuda import _memory
from nvfp.kernels.cuda._constants import steps_define
from nvfp.kernels.cuda._layout import element_strides
from nvfp.kernels.cuda._loader import Defines, Instance
from nvfp.kernels.cuda._memory import aligned
from nvfp.kernels.cuda._quantize_generic import defines as generic_defines, generic_view
from nvfp.kernels.cuda._quantize_input import GATED, GATED_GRADIENT, open_front, worth_twice
from nvfp.kernels.cuda._quantize_levels import level_defines
from nvfp.kernels.cuda._quantize_plan import BFLOAT16, FLOAT32, UINT8, WORD, Job, Plan, plan
from nvfp.kernels.cuda._quantize_rotated import rotated_at_once
from nvfp.kernels.cuda._quantize_run import run
from nvfp.kernels.cuda._quantize_tiles import TileCall, Variant, defines as tile_defines, tile_call, turns
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.cuda.activation import recorded
from nvfp.kernels.cuda.bias_grad import finish
from nvfp.kernels.cuda.cast import cast
from nvfp.kernels.cuda.hadamard import SIGNS_MACRO
from nvfp.kernels.input_fn import ActivationGradient, InputFn, Normalized, apply, result_shape
from nvfp.kernels.operand import Operand, ScaleLayout


def quantize(
    x: Any,
    fmt: QuantDType,
    *,
    axis: int,
    row: bool,
    col: bool,
    scale: Any | None,
    amax: Words,
    tensor_scale: Words,
    amax_out: Words,
    amax_epsilon: float,
    rounding: Rounding,
    rng: Rng | None,
    overflow: Overflow,
    scale_layout: ScaleLayout,
    steps: Steps,
    rotation: str | None = None,
) -> tuple[Operand | None, Operand | None]:
    """See `nvfp.kernels.quantize.quantize`."""
    if rotation is not None:
        words = {"amax": amax, "tensor_scale": tensor_scale, "amax_out": amax_out}
        options = {
            "scale": scale, "amax_epsilon": amax_epsilon, "rounding": rounding, "rng": rng, "overflow": overflow,
            "scale_layout": scale_layout, "steps": steps,
        }  # fmt: skip
        if _turns_at_once(x, fmt, steps):
            return rotated_at_once(x, fmt, row, words, options)[:2]
        return rotated_apart(quantize, x, fmt, row, words, options)
    where = plan(fmt, x.shape, axis, row, col, scale_layout)
    if rounding != "even" and not x.flags.c_contiguous:  # no tile variant rounds so from transposed rows
        x = cast(x, x.dtype, source=None, target=None, overflow="saturate", out=None)
    job = Job(
        x, fmt, overflow == "saturate", amax_epsilon, where.layout, scale, rounding=rounding, rng=rng, steps=steps
    )
    call = _tile_call(job, where)
    if call is None and _has_gaps(job, where):
        job.x = cast(x, x.dtype, source=None, target=None, overflow="saturate", out=None)
        call = _tile_call(job, where)
    return run(job, where, lambda: call, axis, amax, tensor_scale, amax_out)


def quantize_input(
    x: Any,
    fmt: QuantDType,
    f: InputFn | None,
    *,
    bias: np.dtype | None,
    axis: int,
    scale_layout: ScaleLayout,
    **rest: Any,
) -> tuple[Operand | None, Operand | None, Any | None]:
    """Return the sides of ``f(x)`` (f None: of x), and its column sums in the dtype ``bias``, if that is given.

    Where no kernel does all of it at once, ``f`` is applied first, and columns are summed apart.

    Args:
        x: source.
        fmt: row.
        f: checked input function, or None.
        bias: dtype of the column sums, or None.
        axis: block axis of the result.
        scale_layout: of the block scales.
        rest: the other arguments of `quantize`.
    """
    made = _at_once(x, fmt, f, bias, axis, scale_layout=scale_layout, **rest)
    if made is not None:
        return made
    y, rest = (x, rest) if f is None else _applied(x, f, fmt, rest)
    if f is not None and bias is not None:  # the sums at least come from the pass that quantizes
        made = _at_once(y, fmt, None, bias, axis, scale_layout=scale_layout, **rest)
        if made is not None:
            return made
    if bias is not None and rest.get("rotation") is not None and _turns_at_once(y, fmt, rest["steps"]):
        words = {name: rest.pop(name) for name in ("amax", "tensor_scale", "amax_out")}
        return rotated_at_once(y, fmt, rest["row"], words, {"scale_layout": scale_layout, **rest}, bias)
    sides = quantize(y, fmt, axis=axis, scale_layout=scale_layout, **rest)
    return (*sides, None if bias is None else bias_grad(y, dtype=bias))


def _applied(x: Any, f: InputFn, fmt: QuantDType, rest: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The function's result, and the other arguments: with its amax, where that is wanted and its kernel takes it."""
    none = (None, None)
    takes = fmt.block is None and fmt.scale_family == "float32" and fmt.nonfinite == "saturate"
    given = rest["scale"] is not None or any(rest[name] != none for name in ("amax", "tensor_scale", "amax_out"))
    if isinstance(f, Normalized) or not takes or given or rest["steps"] != PLAIN or x.size == 0:
        return apply(x, f), rest
    slab = cp.empty((WORD,), UINT8)
    _memory.zero(slab, 0, WORD)
    word = _memory.view(slab, 0, (), FLOAT32)
    if isinstance(f, ActivationGradient):
        y = recorded(contiguous(f.x), contiguous(x), f.kind, word, f.params)
    else:
        y = recorded(contiguous(x), None, f.kind, word, f.params)
    return y, {**rest, "amax": (word, word)}


def _turns_at_once(x: Any, fmt: QuantDType, steps: Steps) -> bool:
    """Whether one kernel makes the row copy and the rotated column copy."""
    return bool(x.size) and x.flags.c_contiguous and turns(fmt, x.dtype) and steps == PLAIN


def _lacks(row: bool, col: bool, amax: Words, tensor_scale: Words) -> bool:
    """Whether a side that is made has neither an amax nor a tensor scale."""
    sides = zip((row, col), amax, tensor_scale, strict=True)
    return any(wanted and a is None and t is None for wanted, a, t in sides)


def _at_once(
    x: Any,
    fmt: QuantDType,
    f: InputFn | None,
    bias: np.dtype | None,
    axis: int,
    *,
    row: bool,
    col: bool,
    scale: Any | None,
    amax: Words,
    tensor_scale: Words,
    amax_out: Words,
    amax_epsilon: float,
    rounding: Rounding,
    rng: Rng | None,
    overflow: Overflow,
    scale_layout: ScaleLayout,
    steps: Steps,
    rotation: str | None = None,
) -> tuple[Operand | None, Operand | None, Any | None] | None:
    """`quantize_input` by one tile kernel, or None."""
    per_tensor = fmt.block is None and scale is None
    if rotation is not None or steps != PLAIN or (per_tensor and fmt.nonfinite == "nan_block"):
        return None
    takes = per_tensor or (fmt.tensor_scale and scale is None)
    if takes and _lacks(row, col, amax, tensor_scale) and not worth_twice(f):
        return None
    front = open_front(x, f)
    if front is None:
        return None
    shape = x.shape if f is None else result_shape(x.shape, f)
    where = plan(fmt, shape, axis, row, col, scale_layout)
    job = Job(x, fmt, overflow == "saturate", amax_epsilon, where.layout, scale, rounding=rounding, rng=rng)
    sums: Defines = () if bias is None else (("BIAS_GRAD", 1),)

    def find() -> TileCall | None:
        return tile_call(
            where, fmt, x.dtype, shape, element_strides(x), front.aligned, job.saturate, rounding, scale is not None,
            front.macros + sums,
        )  # fmt: skip

    if find() is None:
        return None
    partial = None if bias is None else cp.empty((tiles_of(math.prod(shape[:-1])), shape[-1]), FLOAT32)
    sides = run(job, where, find, axis, amax, tensor_scale, amax_out, front, partial)
    if partial is None:
        return (*sides, None)
    db = cp.empty((shape[-1],), bias)
    finish(partial, db, len(partial))
    return (*sides, db)


def _tile_call(job: Job, where: Plan) -> TileCall | None:
    if job.steps != PLAIN:  # the plain variant alone knows other stacks' steps
        return None
    x = job.x
    given = job.multiplier is not None
    return tile_call(
        where, job.fmt, x.dtype, x.shape, element_strides(x), aligned(x), job.saturate, job.rounding, given
    )


def _has_gaps(job: Job, where: Plan) -> bool:
    return any(side is not None and generic_view(job.x, job.fmt, side) is None for side in (where.row, where.col))


def instances() -> list[Instance]:
    """The kernels that CI compiles."""
    square = nvfp4.replace(block=(16, 16))
    even: Rounding = "even"
    gated: Defines = (("INPUT", GATED), ("ACT", KINDS["swiglu"].code))
    gradient: Defines = (("INPUT", GATED_GRADIENT), ("ACT", KINDS["swiglu"].code), ("BIAS_GRAD", 1))
    tiles: list[tuple[Variant, QuantDType, bool, bool, Defines]] = [
        ("tensor", fp8_e4m3, True, False, ()),
        ("tensor", fp8_e4m3, True, True, gradient),
        ("block1d", mxfp8_e4m3, False, False, ()),
        ("pair", mxfp8_e4m3, True, False, ()),
        ("pair", nvfp4, True, False, ()),
        ("pair", nvfp4, True, False, gated),
        ("block2d", square, True, False, ()),
        ("block128", fp8_e4m3_b128, True, False, ()),
        ("block128", fp8_e4m3_b128.replace(block=(128, 128)), True, False, ()),
    ]
    found = []
    for variant, fmt, col, given, front in tiles:
        layout: ScaleLayout = "k_major128" if fmt.block_shape and fmt.scale.bits == 32 else "plain"
        macros = tile_defines(variant, fmt, BFLOAT16, True, even, True, col, given, layout)
        found.append(Instance(f"quantize_{variant}.cu", f"quantize_{variant}", macros + front))
    # dy of NVFP4's recipe: the column copy of the rotated matrix.
    drawn = tile_defines("pair", nvfp4, BFLOAT16, True, "stochastic", False, True, False, "plain")
    found.append(Instance("quantize_pair.cu", "quantize_pair", (*drawn, ("ROTATE", 1), *SIGNS_MACRO)))
    generic = generic_defines(BFLOAT16, nvfp4, True, even, (1, 16), 1)
    found += [Instance("quantize.cu", name, generic) for name in ("quantize_scales", "quantize_codes")]
    # another stack's steps, and a row that a user makes: packed integers under 16-bit scales
    divided = (*generic, *steps_define(*apply_convention(nvfp4, "modelopt")))
    int4 = QuantDType("int4_b32", el.int4, 32, el.bfloat16)
    made = generic_defines(BFLOAT16, int4, True, even, (1, 32), 1)
    searched = level_defines(BFLOAT16, square.replace(four_over_six="mae_256"), True)
    found += [Instance("quantize_levels.cu", name, searched) for name in ("quantize_lines", "quantize_levels")]
    return [
        *found,
        Instance("quantize.cu", "quantize_scales", divided),
        Instance("quantize.cu", "quantize_codes", made),
    ]
