"""One GEMM of a module under any recipe: its scaling states and its kept quantized weight.

Every layer with weights holds one `GemmSite` per GEMM. The layer owns the parameters and passes
them in; the site owns what a recipe adds to them. Nothing here asks which format a recipe means.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.functions._common import array
from nvfp.arrays.random import Generator
from nvfp.autograd.tape import needs_grad
from nvfp.errors import StateError, message
from nvfp.kernels.operand import OperandPair
from nvfp.nn._joined import Joined
from nvfp.nn._random_state import RandomState
from nvfp.nn.functional.linear import LinearStates, check_operands, linear, quantize_weight
from nvfp.nn.module import Module
from nvfp.recipes.context import current_region
from nvfp.recipes.plan import DelayedRule, LinearPlan
from nvfp.recipes.state import DelayedState, check_state

_PASSES: dict[str, tuple[str, ...]] = {"forward": ("x", "w"), "backward": ("dy",)}


class GemmSite:
    """What a recipe adds to one ``y = x W^T + b`` of a module.

    Args:
        name: its name among the GEMMs of the module (``"fc1"``); empty where there is one only.
        rng: the module's; a Generator spawned from it gives the seed of stochastic rounding (without one fresh
            entropy), so that initial values do not depend on it.

    Attributes:
        states: pass (``"forward"``, ``"backward"``) -> its delayed-scaling state, once there is one.
        rounding: the random state of stochastic rounding, once there is one.
    """

    __slots__ = ("_kept", "_prefix", "_rng", "rounding", "states")

    def __init__(self, name: str = "", rng: Generator | None = None) -> None:
        self._rng = None if rng is None else rng.spawn(1)[0]
        self.rounding: RoundingState | None = None
        self._prefix = f"scaling.{name}." if name else "scaling."
        self.states: dict[str, DelayedState] = {}
        self._kept: tuple[Any, OperandPair] | None = None

    def __call__(
        self, x: Array, weight: Array, bias: Array | None, *, training: bool, first: bool | None = None
    ) -> Array:
        """Return ``x W^T + b`` as the recipe in force wants it.

        Args:
            x: [..., K].
            weight: [N, K].
            bias: [N] or None.
            training: whether amaxes are recorded under delayed scaling.
            first: ``is_first_microbatch``: True quantizes the weight and keeps it, False uses the
                kept one as long as the weight has not changed since, None keeps nothing.
        """
        region = current_region()
        if region is None or region.recipe is None:
            return linear(x, weight, bias)
        x, plan = array("linear", x), region.recipe.linear_plan()
        check_operands(x, weight, bias, quantized=True)  # before any state is made
        states = self._delayed_states(plan, weight, training)
        if states is not None and states.recording:
            region.step.touch(states.forward)
        pair = None if first is None else self._weight_pair(weight, plan, states, needs_grad(x), first)
        random = self._random() if plan.dy.rounding == "stochastic" else None
        return linear(x, weight, bias, plan=plan, states=states, weight_pair=pair, random=random)

    def _random(self) -> RoundingState:
        """The state of stochastic rounding, made at first use."""
        if self.rounding is None:
            self.rounding = RoundingState(self._rng)
        return self.rounding

    def _weight_pair(
        self, weight: Array, plan: LinearPlan, states: LinearStates | None, col: bool, first: bool
    ) -> OperandPair:
        """The kept quantized weight, made anew when asked or when storage, version or plan changed."""
        storage = weight.storage
        key = (storage, storage.version, plan.w)
        kept = self._kept
        if not first and kept is not None and kept[0][0] is storage and kept[0][1:] == key[1:]:
            return kept[1]
        pair = quantize_weight(weight.raw, plan, states, col=col)
        self._kept = (key, pair)
        return pair

    def _delayed_states(self, plan: LinearPlan, weight: Array, training: bool) -> LinearStates | None:
        """The states under a delayed plan, made at first use and following recipe changes."""
        rule = plan.delayed
        if rule is None:
            return None
        limits = {"forward": (plan.x, plan.w), "backward": (plan.dy,)}
        for which, roles in _PASSES.items():
            fp8_max = tuple(p.format.element.max for p in limits[which])
            state = self.states.get(which)
            if state is None:
                self.states[which] = DelayedState(roles, fp8_max, rule, weight.raw)
            else:
                state.adapt(fp8_max, rule)
        return LinearStates(self.states["forward"], self.states["backward"], training)

    def state(self) -> dict[str, Any]:
        """Scaling state as ``scaling.[<name>.]<pass>.<scale|amax_history>``, only where there is some.

        The state of stochastic rounding is ``scaling.[<name>.]rounding.<key|step|calls>``.
        """
        found = {
            f"{self._prefix}{which}.{name}": raw
            for which, state in self.states.items()
            for name, raw in state.state_dict().items()
        }
        random = {} if self.rounding is None else self.rounding.state_dict()
        return found | {f"{self._prefix}{name}": raw for name, raw in random.items()}

    def check(self, state: dict[str, Any], like: Any) -> list[Callable[[], None]]:
        """Take this site's keys out of ``state``, check them, and return the calls that put them in place.

        Args:
            state: short name -> ndarray; what belongs to the site is removed.
            like: raw array on the device where the state will live.

        Raises:
            StateError: one half of a pair, or shapes of other tensors.
        """
        takes: list[Callable[[], None]] = []
        for which, roles in _PASSES.items():
            part = {name: state.pop(f"{self._prefix}{which}.{name}", None) for name in ("scale", "amax_history")}
            if part["scale"] is None and part["amax_history"] is None:
                continue
            if part["scale"] is None or part["amax_history"] is None:
                got = f"one of them for the {which} pass"
                do = "load both or none"
                raise StateError(message("load_state_dict", "scale and amax_history together", got, do))
            _, history = check_state(roles, part)
            target = self.states.get(which)
            if target is None:
                # The element range is not stored; the first use adapts it without rescaling.
                target = DelayedState(roles, (), DelayedRule(len(history), "max", 0), like)
            takes.append(partial(self._take, which, target, part))
        at = f"{self._prefix}rounding."
        part = {name.removeprefix(self._prefix): state.pop(name) for name in list(state) if name.startswith(at)}
        if part:
            random = self.rounding or RoundingState()
            takes.append(partial(self._take_random, random, random.load(part)))
        return takes

    def _take_random(self, random: RoundingState, commit: Callable[[], None]) -> None:
        commit()
        self.rounding = random

    def _take(self, which: str, target: DelayedState, part: dict[str, Any]) -> None:
        target.load_state_dict(part)
        self.states[which] = target

    def move(self, like: Any) -> None:
        """Drop the kept weight and move the scaling state to the device of ``like``."""
        self._kept = None
        for state in self.states.values():
            state.move(like)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._prefix, self.states, self._rng, self.rounding  # a kept weight is made again

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._prefix, self.states, self._rng, self.rounding = state
        self._kept = None


class RoundingState(RandomState):
    """The random state of stochastic rounding in one GEMM."""

    __slots__ = ()
    prefix = "rounding"


class GemmModule(Module):
    """Base of the layers with weights: their sites in `state_dict`, in `load_state_dict` and in `to`."""

    def __init__(self) -> None:
        super().__init__()
        self._sites: tuple[GemmSite, ...] = ()
        self._joins: tuple[Joined, ...] = ()

    def _like(self) -> Any:
        return next(iter(self._parameters.values())).raw

    def extra_state(self) -> dict[str, Any]:
        """Scaling state of every GEMM; empty before the first step under delayed scaling."""
        return {name: raw for site in self._sites for name, raw in site.state().items()}

    def load_extra_state(self, state: dict[str, Any]) -> Callable[[], None]:
        """Check saved scaling state and return the call that takes it; a module that has not run keeps it for then."""
        takes = [take for site in self._sites for take in site.check(state, self._like())]
        if state:
            expected = f"scaling state of {sorted(_PASSES)} passes"
            raise StateError(message("load_state_dict", expected, sorted(state), "drop these keys"))

        def commit() -> None:
            for take in takes:
                take()

        return commit

    def moved(self, device: Any = None) -> None:
        """Drop kept weights, lay joined parameters side by side again, move the scaling state with them."""
        for join in self._joins:
            join.lay(self)
        for site in self._sites if self._parameters else ():
            site.move(self._like())
