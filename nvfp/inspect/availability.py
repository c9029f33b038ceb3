"""What is native here, asked the way Transformer Engine asks it; and which lengths need no padding."""

from __future__ import annotations

import math
from typing import Literal, overload

from nvfp.capability import Capability
from nvfp.device import Device, check_usable, default_device
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e4m3_b128, mxfp8_e4m3, nvfp4
from nvfp.errors import DTypeError, message
from nvfp.recipes.base import Recipe
from nvfp.recipes.context import current_recipe, default_recipe
from nvfp.recipes.custom import CustomRecipe

_ON_CPU = "; casts, scales and codes have the same bits as on a GPU, so every recipe runs"
_ON_CUDA = "; casts, scales and codes keep their bits, so the recipe runs, without gain in the GEMM"


def capability_of(device: Device | str | None) -> tuple[Capability, str]:
    """Return what is meant by a device or the name of a capability, and how to call it.

    Args:
        device: a Device, its name, a compute capability as ``"10.0"`` or ``"sm_100a"``; None: the default device.

    Raises:
        ArgumentError: none of these.
        DeviceError: a CUDA device that is not here.

    Example:
        >>> capability_of("sm_100a")[1], capability_of("cpu")[1]
        ('compute capability 10.0', 'the CPU')
    """
    if isinstance(device, str) and not device.startswith(("cpu", "cuda")):
        found = Capability.parse(device)
    else:
        chosen = default_device() if device is None else check_usable(device, "capability")
        found = Capability(chosen.compute_capability)
    if found.compute is None:
        return found, "the CPU"
    return found, "compute capability {}.{}".format(*found.compute)


def _answer(row: QuantDType, return_reason: bool, device: Device | str | None) -> bool | tuple[bool, str]:
    capability, name = capability_of(device)
    support = capability.gemm(row)
    native = support.level == "native"
    more = "" if native or support.level == "absent" else _ON_CPU if capability.compute is None else _ON_CUDA
    reason = f"{name}: {support.level}: {support.reason}{more}"
    return (native, reason) if return_reason else native


@overload
def is_fp8_available(return_reason: Literal[False] = False, device: Device | str | None = None) -> bool: ...
@overload
def is_fp8_available(return_reason: Literal[True], device: Device | str | None = None) -> tuple[bool, str]: ...
def is_fp8_available(return_reason: bool = False, device: Device | str | None = None) -> bool | tuple[bool, str]:
    """Whether GEMMs of per-tensor FP8 (delayed and current scaling) are native.

    Where they are not, nvfp expands the operands and multiplies them in a wider dtype: every recipe runs everywhere,
    with the same codes and scales. `nf.explain_recipe` tells it GEMM by GEMM.

    Args:
        return_reason: also return the reason, in words.
        device: a Device, its name, or a capability as ``"9.0"`` or ``"sm_100a"``; the default device unless given.

    Returns:
        A bool, or (bool, reason).

    Raises:
        ArgumentError: ``device`` names nothing.
        DeviceError: a CUDA device that is not here.

    Example:
        >>> import nvfp as nf
        >>> nf.is_fp8_available(device="8.9"), nf.is_fp8_available(device="8.0")
        (True, False)
        >>> nf.is_fp8_available(return_reason=True, device="9.0")
        (True, 'compute capability 9.0: native: cuBLASLt SCALAR_32F (e5m2 x e5m2 is expanded)')
    """
    return _answer(fp8_e4m3, return_reason, device)


@overload
def is_mxfp8_available(return_reason: Literal[False] = False, device: Device | str | None = None) -> bool: ...
@overload
def is_mxfp8_available(return_reason: Literal[True], device: Device | str | None = None) -> tuple[bool, str]: ...
def is_mxfp8_available(return_reason: bool = False, device: Device | str | None = None) -> bool | tuple[bool, str]:
    """Whether GEMMs of MXFP8 are native; see `is_fp8_available`.

    Args:
        return_reason: also return the reason, in words.
        device: as in `is_fp8_available`.

    Returns:
        A bool, or (bool, reason).

    Example:
        >>> import nvfp as nf
        >>> available, reason = nf.is_mxfp8_available(return_reason=True, device="9.0")
        >>> available, reason.split("; ")[0]
        (False, 'compute capability 9.0: emulated: cuBLASLt VEC32_UE8M0 needs compute capability 10.0 and newer')
    """
    return _answer(mxfp8_e4m3, return_reason, device)


@overload
def is_nvfp4_available(return_reason: Literal[False] = False, device: Device | str | None = None) -> bool: ...
@overload
def is_nvfp4_available(return_reason: Literal[True], device: Device | str | None = None) -> tuple[bool, str]: ...
def is_nvfp4_available(return_reason: bool = False, device: Device | str | None = None) -> bool | tuple[bool, str]:
    """Whether GEMMs of NVFP4 are native; see `is_fp8_available`.

    Args:
        return_reason: also return the reason, in words.
        device: as in `is_fp8_available`.

    Returns:
        A bool, or (bool, reason).

    Example:
        >>> import nvfp as nf
        >>> nf.is_nvfp4_available(device="cpu")
        False
    """
    return _answer(nvfp4, return_reason, device)


@overload
def is_fp8_block_scaling_available(
    return_reason: Literal[False] = False, device: Device | str | None = None
) -> bool: ...
@overload
def is_fp8_block_scaling_available(
    return_reason: Literal[True], device: Device | str | None = None
) -> tuple[bool, str]: ...
def is_fp8_block_scaling_available(
    return_reason: bool = False, device: Device | str | None = None
) -> bool | tuple[bool, str]:
    """Whether GEMMs of FP8 in blocks of 128 (Float8BlockScaling) are native; see `is_fp8_available`.

    Args:
        return_reason: also return the reason, in words.
        device: as in `is_fp8_available`.

    Returns:
        A bool, or (bool, reason).

    Example:
        >>> import nvfp as nf
        >>> nf.is_fp8_block_scaling_available(device="9.0"), nf.is_fp8_block_scaling_available(device="sm_100a")
        (True, False)
    """
    return _answer(fp8_e4m3_b128, return_reason, device)


def recipe_in_force(op: str, recipe: Recipe | None) -> Recipe:
    """Return the recipe that is meant: the given one, else that of `nf.autocast`, else its default.

    Args:
        op: the public name, for the message.
        recipe: a Recipe or None.

    Raises:
        DTypeError: something else.
    """
    if recipe is not None and not isinstance(recipe, Recipe):
        raise DTypeError(message(op, "a Recipe", repr(recipe), "pass e.g. nf.recipes.MXFP8BlockScaling()"))
    return recipe or current_recipe() or default_recipe()


def alignment(recipe: Recipe | None = None) -> int:
    """Return a number of tokens (or features) whose multiples need no padding under a recipe.

    Any length works: nvfp pads inside and never reads padding as data. Multiples of this number cost nothing extra:
    it is the least common multiple of the blocks that lie along a contraction, of the groups of a rotation, and of
    the 16 bytes of codes in which tensor cores take their rows.

    Args:
        recipe: a Recipe; the one in force unless given, else the default of `nf.autocast`.

    Returns:
        16 for per-tensor FP8, 32 for MXFP8 and NVFP4, 128 for FP8 in blocks of 128; of a `CustomRecipe` what it says.

    Raises:
        DTypeError: no Recipe.

    Example:
        >>> import nvfp as nf
        >>> nf.alignment(nf.recipes.Float8CurrentScaling()), nf.alignment(nf.recipes.MXFP8BlockScaling())
        (16, 32)
    """
    chosen = recipe_in_force("alignment", recipe)
    if isinstance(chosen, CustomRecipe):
        return chosen.quantization_alignment
    plan = chosen.linear_plan()
    sides = [tensor.side(which) for tensor in plan.tensors for which in ("row", "col")]
    found = [8]  # 16 bytes of bfloat16
    for side in sides:
        if side.format is not None:
            found += [128 // side.format.element.bits, *(side.format.block_shape or ())]
            found += [16] * (side.rotation is not None)
    return math.lcm(*found)
