"""`quantized_model_init`: layers made inside hold their weights quantized, and nothing else."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType

from nvfp.arrays.array import Array, parameter
from nvfp.arrays.quantized_parameter import quantized_parameter
from nvfp.errors import ArgumentError, DTypeError, message
from nvfp.recipes.base import Recipe
from nvfp.recipes.context import current_recipe, default_recipe
from nvfp.recipes.plan import TensorPlan

_NAME = "quantized_model_init"


@dataclass(frozen=True, slots=True)
class _Setting:
    """What layers made here do: the recipe (None: dense weights), and whether first values are kept."""

    recipe: Recipe | None
    keep_initial: bool


_setting: ContextVar[_Setting | None] = ContextVar("nvfp_quantized_init", default=None)


class quantized_model_init:
    """Make layers whose GEMM weights are born and kept quantized: no copy in high precision.

    The codes serve fprop and dgrad. `nf.optim` keeps float32 master weights and writes the codes anew after a step;
    ``.grad`` is dense, of the layer's dtype. Under another recipe such a layer raises; outside `nf.autocast` its weight
    is expanded inside the GEMM.

    Args:
        enabled: False makes layers as always (inside an outer block, too).
        recipe: which says the format of weights; that of `nf.autocast` around it, else the default one, if None.
        preserve_high_precision_init_val: keep the first values on the CPU:
            ``p.get_high_precision_init_val()`` gives them and ``p.clear_high_precision_init_val()`` forgets them;
            optimizers made meanwhile start their master weights from them.

    Raises:
        DTypeError: ``recipe`` is no `Recipe`.
        ArgumentError: a switch that is no bool; (when a layer is made) a recipe with weights in high precision, or a
            weight in several parameters (pass ``fuse_qkv_params=True``).

    Numerics: a format with one scale per tensor takes it from the amax of the values written, under `DelayedScaling`
        too (which records none for such weights). Formats in 1-D blocks are read in dgrad as they are and expanded
        there: both directions see the same values. Take 2-D blocks where tensor cores are to read both
        (``MXFP8BlockScaling(enable_2d_quantization=True)``).

    Source: Transformer Engine's ``quantized_model_init`` (``fp8_model_init``).

    Example:
        >>> import nvfp as nf
        >>> recipe = nf.recipes.MXFP8BlockScaling()
        >>> with nf.quantized_model_init(recipe=recipe):
        ...     layer = nf.nn.Linear(64, 32, device="cpu", rng=nf.random.default_rng(0, device="cpu"))
        >>> layer.weight.dtype, layer.weight.nbytes
        (nvfp.mxfp8_e4m3, 2112)
        >>> with nf.autocast(recipe=recipe):
        ...     layer(nf.ones((4, 64), device="cpu")).sum().backward()
        >>> layer.weight.grad.dtype
        dtype('float32')
    """

    def __init__(
        self, enabled: bool = True, recipe: Recipe | None = None, preserve_high_precision_init_val: bool = False
    ) -> None:
        given = {"enabled": enabled, "preserve_high_precision_init_val": preserve_high_precision_init_val}
        for name, value in given.items():
            if not isinstance(value, bool):
                raise ArgumentError(message(_NAME, f"{name} as a bool", repr(value), "pass True or False"))
        if recipe is not None and not isinstance(recipe, Recipe):
            do = "pass e.g. nf.recipes.MXFP8BlockScaling()"
            raise DTypeError(message(_NAME, "recipe=a Recipe", repr(recipe), do))
        self.enabled, self.recipe, self.keep_initial = enabled, recipe, preserve_high_precision_init_val
        self._before: list[_Setting | None] = []

    def __enter__(self) -> None:
        self._before.append(_setting.get())
        recipe = (self.recipe or current_recipe() or default_recipe()) if self.enabled else None
        _setting.set(_Setting(recipe, self.keep_initial))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _setting.set(self._before.pop())


def check_parts(layer: str, parts: int) -> None:
    """Raise where a weight in several parameters would have to be quantized: they share no scales."""
    setting = _setting.get()
    if parts > 1 and setting is not None and setting.recipe is not None:
        do = "make it with fuse_qkv_params=True (without parameters_split)"
        raise ArgumentError(message(layer, f"a weight in one piece under {_NAME}", f"{parts} parameters", do))


def weight_parameter(layer: str, values: Array, gemm: str = "") -> Array:
    """Return a GEMM weight with these values: a parameter, quantized inside `quantized_model_init`.

    Args:
        layer: the public name, for messages.
        values: [N, K].
        gemm: the GEMM's name, for recipes that depend on it.
    """
    setting = _setting.get()
    if setting is None or setting.recipe is None:
        return parameter(values)
    plan: TensorPlan = setting.recipe.linear_plan(gemm).w
    if plan.format is None:
        do = "make this layer outside, or choose a recipe that quantizes weights"
        raise ArgumentError(message(layer, f"a recipe with quantized weights under {_NAME}", str(setting.recipe), do))
    return quantized_parameter(values, plan.format, amax_epsilon=plan.amax_epsilon, keep_initial=setting.keep_initial)
