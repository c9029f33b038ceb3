"""`autocast`: which recipe the layers called inside it use, and when a step of delayed scaling ends."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType

from nvfp.device import default_device
from nvfp.errors import ArgumentError, DTypeError, message
from nvfp.recipes.base import Recipe
from nvfp.recipes.builtin import DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling
from nvfp.recipes.plan import LinearPlan, calibration
from nvfp.recipes.policy import Policy
from nvfp.recipes.small_gemms import MinGemm, check_min_gemm
from nvfp.recipes.state import DelayedState, Reduce
from nvfp.recipes.update import update_states


class Step:
    """The forward scaling states used since the last update, in order of first use."""

    __slots__ = ("_touched",)

    def __init__(self) -> None:
        self._touched: dict[int, DelayedState] = {}

    def touch(self, state: DelayedState) -> None:
        """Note that a module used this state in the running step."""
        self._touched.setdefault(id(state), state)

    def finish(self) -> None:
        """Update every touched state once; a second call finds nothing to do."""
        touched, self._touched = list(self._touched.values()), {}
        if touched:
            update_states(touched)

    def discard(self) -> None:
        """Drop what a failed step recorded."""
        touched, self._touched = list(self._touched.values()), {}
        for state in touched:
            state.discard()


@dataclass(frozen=True)
class Region:
    """What one entry into `autocast` means: the recipe (None: disabled), and what it restores.

    Attributes:
        recipe: in force, or None.
        step: of the outermost region.
        outer: the region around it.
        calibrated: the recipe whose amaxes are collected while it is not in force.
        reduce: reduction of amaxes over processes.
        min_gemm: which GEMMs are too small to be quantized.
    """

    recipe: Recipe | None
    step: Step
    outer: Region | None
    calibrated: Recipe | None = None
    reduce: Reduce | None = None
    min_gemm: MinGemm = None

    @property
    def by_name(self) -> bool:
        """Whether plans depend on the names of GEMMs."""
        recipe = self.recipe or self.calibrated
        return recipe is not None and recipe.by_name

    def linear_plan(self, name: str = "") -> LinearPlan | None:
        """Return the plan of the GEMM of this name; None: high precision, and nothing to record."""
        if self.recipe is not None:
            return self.recipe.linear_plan(name)
        if self.calibrated is None:
            return None
        plan = calibration(self.calibrated.linear_plan(name))
        return None if plan.dense else plan


_region: ContextVar[Region | None] = ContextVar("nvfp_autocast", default=None)


def current_region() -> Region | None:
    """Return the innermost autocast region of this context, or None."""
    return _region.get()


def outside() -> None:
    """Leave every region of this context for good: for a copied one (`contextvars.copy_context`)."""
    _region.set(None)


def current_recipe() -> Recipe | None:
    """Return the recipe in force, or None outside autocast and where it is disabled.

    Example:
        >>> with autocast(enabled=True, recipe=DelayedScaling(margin=1)):
        ...     current_recipe().margin
        1
        >>> current_recipe() is None
        True
    """
    region = _region.get()
    return None if region is None else region.recipe


def default_recipe() -> Recipe:
    """Return the recipe that `autocast` takes without one, by the default device (TE's choice).

    MXFP8 on compute capability 10.x, current scaling on 12.x, delayed scaling elsewhere.
    """
    device = default_device()
    major = (device.compute_capability or (0, 0))[0]
    if major in (10, 11):
        return MXFP8BlockScaling()
    return Float8CurrentScaling() if major >= 12 else DelayedScaling()


class autocast:
    """Run the layers inside under a recipe.

    Entries nest; each exit restores what its own entry found, whatever happened inside. One object
    may be entered again, also inside itself. Under delayed scaling a step ends when the outermost
    region exits or when a backward pass finishes inside it: histories are rolled then, once.

    Args:
        enabled: False runs the layers inside unquantized.
        recipe: a `Recipe`; None takes `default_recipe`.
        calibrating: with ``enabled=False``: compute in high precision and collect the amaxes that delayed scaling will
            want, forward and backward, so that a later run under the recipe starts from them.
        policy: pattern -> recipe or None (high precision), for layers or tensors by name: short for
            ``recipe=Policy(policy, default=recipe)``, see `nf.recipes.Policy`.
        amax_reduction_group: reduces amaxes over the processes of data-parallel training: a function of a float32
            Array [n] (the newest amaxes of every tensor of the step: one call per direction and step) that returns
            the maxima over all processes. Every process must run the same layers. Recipes with
            ``reduce_amax=False`` do without.
        min_gemm: leave GEMMs ``y = x W^T`` of fewer multiply-adds M*N*K in the dtype of their input; ``"measured"``: on
            CUDA those that gain nothing by the measured table (`recipes.small_gemms`; 16-bit inputs). None quantizes
            all. A number means the same on every device; ``"measured"`` makes CPU and CUDA differ. A GEMM that is
            left out leaves its scaling state as it is. `nf.explain_recipe` and `nf.inspect.record` tell which.

    Raises:
        DTypeError: ``recipe`` is not a `Recipe`, or ``amax_reduction_group`` no function.
        ArgumentError: ``enabled`` is no bool (a recipe goes to ``recipe=``), a ``policy`` or ``min_gemm`` that is none;
            at the first GEMM: ``"measured"`` for a recipe and GPU without a measured row.

    Source: the semantics of Transformer Engine's ``fp8_autocast``/``autocast``.

    Example:
        >>> with autocast(enabled=True, recipe=Float8CurrentScaling()):
        ...     with autocast(enabled=False):
        ...         inner = current_recipe()
        ...     outer = current_recipe()
        >>> inner is None, str(outer)
        (True, 'Float8CurrentScaling')
    """

    def __init__(
        self,
        enabled: bool = True,
        recipe: Recipe | None = None,
        *,
        calibrating: bool = False,
        policy: Mapping[str, Recipe | None] | None = None,
        amax_reduction_group: Reduce | None = None,
        min_gemm: MinGemm = None,
    ) -> None:
        check_min_gemm(min_gemm)
        if not isinstance(enabled, bool):  # a recipe given here would leave its place to the default one
            do = "pass it as recipe=" if isinstance(enabled, Recipe) else "pass True or False"
            raise ArgumentError(message("autocast", "enabled as a bool", repr(enabled), do))
        if recipe is not None and not isinstance(recipe, Recipe):
            raise DTypeError(
                message("autocast", "recipe=a Recipe", repr(recipe), "pass e.g. nf.recipes.DelayedScaling()")
            )
        if amax_reduction_group is not None and not callable(amax_reduction_group):
            expected, do = "amax_reduction_group as a function", "pass amaxes [n] -> maxima over all processes"
            raise DTypeError(message("autocast", expected, repr(amax_reduction_group), do))
        if not isinstance(calibrating, bool):
            raise ArgumentError(message("autocast", "calibrating as a bool", repr(calibrating), "pass True or False"))
        self.enabled = enabled
        self.recipe = recipe if policy is None else Policy(policy, default=recipe or default_recipe())
        self.calibrating = calibrating
        self.amax_reduction_group = amax_reduction_group
        self.min_gemm: MinGemm = min_gemm

    def __enter__(self) -> autocast:
        outer = _region.get()
        recipe = (self.recipe or default_recipe()) if self.enabled or self.calibrating else None
        step = Step() if outer is None else outer.step
        calibrated = recipe if self.calibrating and not self.enabled else None
        in_force = recipe if self.enabled else None
        _region.set(Region(in_force, step, outer, calibrated, self.amax_reduction_group, self.min_gemm))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        region = _region.get()
        assert region is not None, "autocast exits without an entry"
        _region.set(region.outer)
        if region.outer is None:
            if kind is None:
                region.step.finish()
            else:
                region.step.discard()
