"""`autocast`: which recipe the layers called inside it use, and when a step of delayed scaling ends."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType

from nvfp.device import default_device
from nvfp.errors import DTypeError, message
from nvfp.recipes.base import Recipe
from nvfp.recipes.builtin import DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling
from nvfp.recipes.state import DelayedState, update_states


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
    """What one entry into `autocast` means: the recipe (None: disabled), and what it restores."""

    recipe: Recipe | None
    step: Step
    outer: Region | None


_region: ContextVar[Region | None] = ContextVar("nvfp_autocast", default=None)


def current_region() -> Region | None:
    """Return the innermost autocast region of this context, or None."""
    return _region.get()


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

    Raises:
        DTypeError: ``recipe`` is not a `Recipe`.

    Source: the semantics of Transformer Engine's ``fp8_autocast``/``autocast``.

    Example:
        >>> with autocast(enabled=True, recipe=Float8CurrentScaling()):
        ...     with autocast(enabled=False):
        ...         inner = current_recipe()
        ...     outer = current_recipe()
        >>> inner is None, str(outer)
        (True, 'Float8CurrentScaling')
    """

    def __init__(self, enabled: bool = True, recipe: Recipe | None = None) -> None:
        if recipe is not None and not isinstance(recipe, Recipe):
            raise DTypeError(
                message("autocast", "recipe=a Recipe", repr(recipe), "pass e.g. nf.recipes.DelayedScaling()")
            )
        self.enabled = bool(enabled)
        self.recipe = recipe

    def __enter__(self) -> autocast:
        outer = _region.get()
        recipe = (self.recipe or default_recipe()) if self.enabled else None
        _region.set(Region(recipe, Step() if outer is None else outer.step, outer))
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
