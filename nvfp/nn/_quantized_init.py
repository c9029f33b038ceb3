"""`quantized_model_init`: layers made inside hold their weights quantized, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from nvfp.arrays.array import Array, parameter
from nvfp.arrays.quantized_parameter import quantized_parameter
from nvfp.errors import ArgumentError, DTypeError, message
from nvfp.nn._initial import Unmade
from nvfp.nn.module import Module, made
from nvfp.recipes.base import Recipe
from nvfp.recipes.context import current_recipe, default_recipe
from nvfp.recipes.plan import TensorPlan

_NAME = "quantized_model_init"


@dataclass(frozen=True, slots=True)
class _Setting:
    """What layers made here do: the recipe (None: dense weights), and whether first values are kept."""

    recipe: Recipe | None
    keep_initial: bool

    @property
    def at_once(self) -> bool:
        """Whether layers quantize their weights as they are made: their names decide nothing."""
        return self.recipe is not None and not self.recipe.by_name

    def parameter(self, values: Array, plan: TensorPlan) -> Array:
        """A weight as the plan says."""
        assert plan.format is not None
        return quantized_parameter(values, plan.format, amax_epsilon=plan.amax_epsilon, keep_initial=self.keep_initial)


_setting: ContextVar[_Setting | None] = ContextVar("nvfp_quantized_init", default=None)


class quantized_model_init:
    """Make layers whose GEMM weights are born and kept quantized: no copy in high precision.

    The codes serve fprop and dgrad. `nf.optim` keeps float32 master weights and writes the codes anew after a step;
    ``.grad`` is dense, of the layer's dtype. Under another recipe such a layer raises; outside `nf.autocast` its weight
    is expanded inside the GEMM.

    Names decide under `nf.recipes.Policy` and `CustomRecipe`, and a layer learns its name from the module that holds
    it. So weights are then quantized when the block ends, by their place in the outermost modules made inside it: make
    the whole model there, and optimizers afterwards. Until then they are dense; those that the recipe leaves in high
    precision stay so.

    Args:
        enabled: False makes layers as always (inside an outer block, too).
        recipe: which says the format of weights; that of `nf.autocast` around it, else the default one, if None.
        preserve_high_precision_init_val: keep the first values on the CPU:
            ``p.get_high_precision_init_val()`` gives them and ``p.clear_high_precision_init_val()`` forgets them;
            optimizers made meanwhile start their master weights from them.

    Raises:
        DTypeError: ``recipe`` is no `Recipe`.
        ArgumentError: a switch that is no bool; (when a layer is made, or at the end where names decide) a recipe with
            weights in high precision only, or a weight in several parameters (pass ``fuse_qkv_params=True``).

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
        self._before: list[tuple[_Setting | None, list[Module] | None]] = []

    def __enter__(self) -> None:
        self._before.append((_setting.get(), made.get()))
        recipe = (self.recipe or current_recipe() or default_recipe()) if self.enabled else None
        _setting.set(_Setting(recipe, self.keep_initial))
        made.set([] if recipe is not None and recipe.by_name else None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        setting, modules = _setting.get(), made.get()
        before, noted = self._before.pop()
        _setting.set(before)
        made.set(noted)
        if kind is None and setting is not None and modules:
            _quantize_by_name(setting, modules)


def _quantize_by_name(setting: _Setting, modules: Sequence[Module]) -> None:
    """Quantize the weights of modules in place, by their names in the outermost ones; on an error none is changed."""
    assert setting.recipe is not None
    found = [(owner, names, setting.recipe.linear_plan(name).w) for name, owner, names in _weights(modules)]
    wanted = [(owner, names, plan) for owner, names, plan in found if plan.format is not None]
    if found and not wanted:
        raise _no_format(type(found[0][0]).__name__, setting.recipe)
    for owner, names, _ in wanted:
        _check_one(type(owner).__name__, len(names))
    twins: dict[int, Array] = {}  # of a parameter that several layers share
    for owner, (name,), plan in wanted:
        dense, initial = owner._parameters[name], owner._initials.get(name)
        if initial is not None:
            initial.make = partial(setting.parameter, plan=plan)
        if type(dense.raw) is Unmade:
            continue
        if id(dense) not in twins:
            twins[id(dense)] = setting.parameter(dense.detach(), plan)
        owner._parameters[name] = twins[id(dense)]  # at its place in the order


def _weights(modules: Sequence[Module]) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Yield (name of the GEMM, layer, names of its weight's parameters) of every GEMM of these modules, once each."""
    left = {id(module) for module in modules}
    below = {id(part) for module in modules for part in module._modules.values()}
    for root in modules:
        for prefix, owner in root.named_modules() if id(root) not in below else ():
            for site in getattr(owner, "_sites", ()) if id(owner) in left else ():
                yield ".".join(part for part in (prefix, site.name) if part), owner, owner.weight_names(site)
            left.discard(id(owner))


def check_parts(layer: str, parts: int) -> None:
    """Raise where a weight in several parameters would have to be quantized: they share no scales."""
    setting = _setting.get()
    if setting is not None and setting.at_once:
        _check_one(layer, parts)


def _check_one(layer: str, parts: int) -> None:
    if parts > 1:
        do = "make it with fuse_qkv_params=True (without parameters_split)"
        raise ArgumentError(message(layer, f"a weight in one piece under {_NAME}", f"{parts} parameters", do))


def _no_format(layer: str, recipe: Recipe) -> ArgumentError:
    do = "make this layer outside, or choose a recipe that quantizes weights"
    return ArgumentError(message(layer, f"a recipe with quantized weights under {_NAME}", str(recipe), do))


def weight_maker(layer: str) -> Callable[[Array], Array]:
    """Return what makes a GEMM weight of values [N, K]: a parameter, quantized inside `quantized_model_init`.

    Args:
        layer: the public name, for messages.
    """
    setting = _setting.get()
    if setting is None or setting.recipe is None or not setting.at_once:
        return parameter
    plan: TensorPlan = setting.recipe.linear_plan().w
    if plan.format is None:
        raise _no_format(layer, setting.recipe)
    return partial(setting.parameter, plan=plan)
