"""One GEMM of a module under any recipe: its scaling states and its kept quantized weight.

Every layer with weights holds one `GemmSite` per GEMM. The layer owns the parameters and passes
them in; the site owns what a recipe adds to them. Nothing here asks which format a recipe means.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.deferred import Deferred
from nvfp.arrays.functions._common import array
from nvfp.arrays.functions.conversion import astype
from nvfp.arrays.quantized import QuantizedArray, dense_dtype
from nvfp.arrays.random import Generator
from nvfp.autograd.recompute import keeping, recomputing, replayed
from nvfp.autograd.tape import needs_grad
from nvfp.errors import ArgumentError, StateError, message
from nvfp.kernels.operand import OperandPair
from nvfp.nn._gradients import WeightGradients
from nvfp.nn._joined import Joined
from nvfp.nn._names import name_of
from nvfp.nn._random_state import RandomState
from nvfp.nn._replayed import as_before, frozen
from nvfp.nn.functional._checks import check_operands
from nvfp.nn.functional._delivery import PLAIN, Delivery, Narrow
from nvfp.nn.functional.linear import (
    LinearStates,
    check_narrow,
    held_pair,
    linear,
    one_copy,
    quantize_weight,
    usable,
)
from nvfp.nn.module import Module
from nvfp.recipes.context import Region, current_region
from nvfp.recipes.plan import DelayedRule, LinearPlan, SiteWatch
from nvfp.recipes.small_gemms import too_small
from nvfp.recipes.state import DelayedState, check_state

STATE_VERSION = 1  # of the scaling state in state dicts; what is older has none
_VERSION = "scaling.version"
_STATE = ("scale", "amax_history", "fp8_max")
_PASSES: dict[str, tuple[str, ...]] = {"forward": ("x", "w"), "backward": ("dy",)}
_NARROW: dict[str, tuple[str, ...]] = {"output": ("y",), "gradient": ("dx",)}  # quantized on their way out


class GemmSite:
    """What a recipe adds to one ``y = x W^T + b`` of a module.

    Args:
        name: its name among the GEMMs of the module (``"fc1"``); empty where there is one only.
        rng: the module's; a Generator spawned from it gives the seed of stochastic rounding (without one fresh
            entropy), so that initial values do not depend on it.
        fuse_wgrad_accumulation: dW goes into ``main_grad``.
        delay_wgrad_compute: dW waits for ``backward_dw``.
        save_original_input: keep x itself for wgrad, not its quantized column copy.

    Attributes:
        gradients: what becomes of dW.
        states: pass (``"forward"``, ``"backward"``) -> its delayed-scaling state, once there is one.
        rounding: the random state of stochastic rounding, once there is one.
        watch: what looks on at this GEMM (`nf.inspect`), or None.
    """

    __slots__ = (
        "_kept", "_prefix", "_rng", "gradients", "name", "rounding", "save_original_input", "states", "watch",
    )  # fmt: skip

    def __init__(
        self,
        name: str = "",
        rng: Generator | None = None,
        *,
        fuse_wgrad_accumulation: bool = False,
        delay_wgrad_compute: bool = False,
        save_original_input: bool = False,
    ) -> None:
        self._rng = None if rng is None else rng.spawn(1)[0]
        self.gradients = WeightGradients(fuse_wgrad_accumulation, delay_wgrad_compute)
        self.save_original_input = save_original_input
        self.rounding: RoundingState | None = None
        self.name = name
        self._prefix = f"scaling.{name}." if name else "scaling."
        self.states: dict[str, DelayedState] = {}
        self._kept: tuple[Any, OperandPair] | None = None
        self.watch: SiteWatch | None = None

    def __call__(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        *,
        training: bool,
        first: bool | None = None,
        parts: Sequence[Array] | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
        needs_output: bool = True,
    ) -> Array:
        """Return ``x W^T + b`` as the recipe in force wants it.

        Args:
            x: [..., K].
            weight: [N, K].
            bias: [N] or None.
            training: whether amaxes are recorded under delayed scaling.
            first: ``is_first_microbatch``: True quantizes the weight and keeps it, False uses the
                kept one as long as the weight has not changed since, None keeps nothing.
            parts: the parameters that together are ``weight``, where it is not one itself.
            fp8_output: the result leaves quantized (dense where the GEMM falls back to high precision).
            fp8_grad: the gradient of ``x`` leaves quantized (likewise).
            needs_output: False: the result is not read.
        """
        region = current_region()
        plan = None if region is None else region.linear_plan(name_of(self) if region.by_name else "")
        parts = (weight,) if parts is None else parts
        if fp8_output or fp8_grad:
            check_narrow(plan, x, fp8_output=fp8_output, fp8_grad=fp8_grad)
        if region is None or plan is None:
            return linear(x, weight, bias, delivery=self._delivery(parts, first, needs_output))
        x = x if usable(x, plan) or type(x) is Deferred else array("linear", x)
        check_operands(x, weight, bias, quantized=region.recipe is not None)  # before any state is made
        self._check_saved(plan)
        if self.watch is not None or region.min_gemm is not None:
            plan = self._looked_at(plan, region, x, weight)
            if plan is None:
                delivery, x = self._delivery(parts, first, needs_output), array("linear", x)
                dense = weight if isinstance(weight, QuantizedArray) else astype(weight, x.raw.dtype, copy=False)
                return self._shown(linear(x, dense, bias, delivery=delivery))
        held = held_pair(weight, plan) if isinstance(weight, QuantizedArray) else None
        states = self._delayed_states(plan, weight, training)
        if states is not None:
            states.forward.reduce = states.backward.reduce = region.reduce
            states = as_before(states)
            if states.recording:
                region.step.touch(states.forward)
        delivery = self._delivery(parts, first, needs_output)
        if fp8_output or fp8_grad:
            output, gradient = self._narrow(plan, x, states, region, (fp8_output, fp8_grad))
            delivery = replace(delivery, output=output, gradient=gradient)
        pair = held if first is None or held else self._kept_pair(x, weight, plan, states, first)
        random = self._random() if plan.dy.stochastic else None
        y = linear(x, weight, bias, plan=plan, states=states, weight_pair=pair, random=random, delivery=delivery)
        return y if self.watch is None else self._shown(y)

    def _delivery(self, parts: Sequence[Array], first: bool | None, needs_output: bool) -> Delivery:
        gradient = self.gradients.begin(parts, first)
        if gradient is None and needs_output and not self.save_original_input:
            return PLAIN
        return Delivery(gradient, self.save_original_input, needs_output=needs_output)

    def _check_saved(self, plan: LinearPlan) -> None:
        """Raise where the input cannot be quantized again in backward: its delayed scale has moved on by then."""
        if self.save_original_input and plan.x.delayed:
            do = "leave save_original_input off, or use Float8CurrentScaling"
            expected, got = "a recipe without delayed scales for save_original_input", "delayed scaling of the input"
            raise ArgumentError(message("linear", expected, got, do))

    def _narrow(
        self, plan: LinearPlan, x: Array, states: LinearStates | None, region: Region, asked: tuple[bool, bool]
    ) -> tuple[Narrow | None, Narrow | None]:
        """How the result and the gradient of the input are quantized; their delayed scales are states of their own."""
        made: list[Narrow | None] = []
        recording = states is not None and states.recording
        for (which, (role,)), wanted, tensor in zip(_NARROW.items(), asked, (plan.x, plan.dy), strict=True):
            state = None
            if wanted and tensor.delayed:
                assert plan.delayed is not None, "a delayed tensor comes with a rule"
                like = x.raw.codes if isinstance(x, QuantizedArray) else x.raw
                state = self._state(which, (role,), (tensor.fp8_max,), plan.delayed, like)
                state.reduce = region.reduce
                if which == "output":
                    state = frozen(state)
                    if recording:
                        region.step.touch(state)
            made.append(Narrow(tensor, state, role, recording or which == "gradient") if wanted else None)
        return made[0], made[1]

    def _looked_at(self, plan: LinearPlan, region: Region, x: Array, weight: Array) -> LinearPlan | None:
        """The plan after ``min_gemm`` and whoever looks on; None: in the dtype of the input."""
        least = region.min_gemm
        found: LinearPlan | None = plan
        if least is not None and region.recipe is not None:
            (n, k), half = weight.shape, not isinstance(x, QuantizedArray) and x.raw.dtype.itemsize == 2
            if too_small(least, plan, x.device.compute_capability, x.size // max(k, 1), n, k, half=half):
                found = None
        return found if self.watch is None else self.watch.plan(found)

    def _shown(self, y: Array) -> Array:
        """The output, after whoever looks on has seen it."""
        if self.watch is not None and not recomputing():
            self.watch.output(y)
        return y

    @property
    def kept(self) -> OperandPair | None:
        """The quantized weight that ``is_first_microbatch`` has kept, up to date or not."""
        return None if self._kept is None else self._kept[1]

    def _random(self) -> RoundingState:
        """The state of stochastic rounding, made at first use."""
        if self.rounding is None:
            self.rounding = RoundingState(self._rng)
        return self.rounding

    def _kept_pair(
        self, x: Array, weight: Array, plan: LinearPlan, states: LinearStates | None, first: bool
    ) -> OperandPair:
        """The kept quantized weight; where a checkpointed segment runs again, that of its first run."""
        col = needs_grad(x) or keeping()  # a segment's second run needs it
        col = col and not one_copy(plan.w, frozen=weight._node is None)
        dtype = dense_dtype(weight if isinstance(x, QuantizedArray) else x)
        return replayed(lambda: self._weight_pair(weight, plan, states, col, first, dtype))

    def _weight_pair(
        self, weight: Array, plan: LinearPlan, states: LinearStates | None, col: bool, first: bool, dtype: Any
    ) -> OperandPair:
        """The kept quantized weight, made anew when asked or when storage, version, plan or dtype changed."""
        storage = weight.storage
        key = (storage, storage.version, plan.w, dtype)
        kept = self._kept
        if not first and kept is not None and kept[0][0] is storage and kept[0][1:] == key[1:]:
            return kept[1]
        pair = quantize_weight(weight.raw, plan, states, col=col, dtype=dtype)
        self._kept = (key, pair)
        return pair

    def _delayed_states(self, plan: LinearPlan, weight: Array, training: bool) -> LinearStates | None:
        """The states under a delayed plan, made at first use and following recipe changes."""
        rule = plan.delayed
        if rule is None:
            return None
        limits = {"forward": (plan.x, plan.w), "backward": (plan.dy,)}
        like = weight.raw.codes if isinstance(weight, QuantizedArray) else weight.raw
        for which, roles in _PASSES.items():
            self._state(which, roles, tuple([p.fp8_max for p in limits[which]]), rule, like)
        return LinearStates(self.states["forward"], self.states["backward"], training)

    def _state(
        self, which: str, roles: tuple[str, ...], fp8_max: tuple[float, ...], rule: DelayedRule, like: Any
    ) -> DelayedState:
        state = self.states.get(which)
        if state is None:
            state = self.states[which] = DelayedState(roles, fp8_max, rule, like)
        elif not recomputing():
            state.adapt(fp8_max, rule)
        return state

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
        for which, roles in (_PASSES | _NARROW).items():
            part = {name: state.pop(f"{self._prefix}{which}.{name}", None) for name in _STATE}
            if part["scale"] is None and part["amax_history"] is None:
                continue
            if part["scale"] is None or part["amax_history"] is None:
                got = f"one of them for the {which} pass"
                do = "load both or none"
                raise StateError(message("load_state_dict", "scale and amax_history together", got, do))
            _, history, _ = check_state(roles, part)
            target = self.states.get(which)
            if target is None:
                # Without a stored element range the first use takes its own, without rescaling.
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
        self._kept = None  # it may have been quantized with another scale
        target.load_state_dict(part)
        self.states[which] = target

    def move(self, like: Any) -> None:
        """Drop the kept weight and move the scaling state to the device of ``like``."""
        self._kept = None
        for state in self.states.values():
            state.move(like)

    def restart(self) -> None:
        """Forget what was known of earlier values: the kept weight and the scaling states."""
        self._kept, self.states = None, {}

    def __getstate__(self) -> tuple[Any, ...]:
        options = (self.gradients.fuse, self.gradients.later is not None, self.save_original_input)
        return self.name, self._prefix, self.states, self._rng, self.rounding, options  # a kept weight is made again

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.name, self._prefix, self.states, self._rng, self.rounding, options = state
        self.gradients, self.save_original_input = WeightGradients(*options[:2]), options[2]
        self._kept = self.watch = None


def _check_version(value: Any) -> None:
    """Raise StateError for scaling state of a later nvfp, or a version that is no number."""
    try:
        version = operator.index(np.asarray(value).reshape(()).item())
    except (TypeError, ValueError) as error:
        raise StateError(message("load_state_dict", f"{_VERSION} as an integer", error, "load it again")) from error
    if not 1 <= version <= STATE_VERSION:
        do = f"load it with a newer nvfp, or drop the keys with {_VERSION.partition('.')[0]}."
        raise StateError(message("load_state_dict", f"{_VERSION} up to {STATE_VERSION}", version, do))


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

    def weight_names(self, site: GemmSite) -> tuple[str, ...]:
        """Names of the parameters whose rows together are the weight of a site."""
        return self._joins[0].names if self._joins else (f"{site.name}_weight",)

    def extra_state(self) -> dict[str, Any]:
        """Scaling state of every GEMM; empty before the first step under delayed scaling."""
        found = {name: raw for site in self._sites for name, raw in site.state().items()}
        return {_VERSION: np.asarray(STATE_VERSION, np.int64), **found} if found else {}

    def load_extra_state(self, state: dict[str, Any]) -> Callable[[], None]:
        """Check saved scaling state and return the call that takes it; a module that has not run keeps it for then."""
        _check_version(state.pop(_VERSION, STATE_VERSION))
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
