"""`Linear`: the layer all recipes are about."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from nvfp.arrays.array import Array, parameter
from nvfp.arrays.creation import zeros
from nvfp.arrays.functions._common import array
from nvfp.arrays.random import Generator
from nvfp.autograd.tape import needs_grad
from nvfp.dtypes.dense import float32
from nvfp.errors import StateError, message
from nvfp.kernels.operand import OperandPair
from nvfp.nn._init import Init, count, normal
from nvfp.nn.functional.linear import LinearStates, check_operands, linear, quantize_weight
from nvfp.nn.module import Module
from nvfp.recipes.context import current_region
from nvfp.recipes.plan import DelayedRule, LinearPlan
from nvfp.recipes.state import DelayedState, check_state

_PASSES: dict[str, tuple[str, ...]] = {"forward": ("x", "w"), "backward": ("dy",)}


class Linear(Module):
    """``y = x W^T + b``; quantized by the recipe of the `nf.autocast` it is called in.

    Args:
        in_features: K.
        out_features: N.
        bias: add a bias [N], initially zero.
        init_method: ``(shape, rng, dtype, device) -> Array`` for the weight; default normal with
            standard deviation 0.023, as TE.
        dtype: of the parameters; float32 unless given.
        device: of the parameters; the default device unless given.
        rng: a `nf.random.Generator`; without one fresh entropy.
        name: shown in reports.

    Shapes: x [..., K], weight [N, K], bias [N], result [..., N] in the dtype of x.

    Raises:
        DTypeError: outside autocast, x and weight differ in dtype.
        ShapeError: the last length of x is not K.

    Numerics: see `nvfp.nn.functional.linear.linear`. Under delayed scaling the module owns float32
        scales and amax histories (`state_dict` keys ``scaling.*``, present once there are some);
        in evaluation mode the scales are used and no amax is recorded.

    Example:
        >>> import nvfp as nf
        >>> layer = nf.nn.Linear(32, 8, device="cpu", rng=nf.random.default_rng(0, device="cpu"))
        >>> with nf.autocast(enabled=True, recipe=nf.recipes.MXFP8BlockScaling()):
        ...     layer(nf.ones((4, 32), device="cpu")).shape
        (4, 8)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        init_method: Init | None = None,
        dtype: Any = float32,
        device: Any = None,
        rng: Generator | None = None,
        name: str = "",
    ) -> None:
        super().__init__()
        in_features = count("Linear", "in_features", in_features)
        out_features = count("Linear", "out_features", out_features)
        self.in_features, self.out_features, self.name = in_features, out_features, name
        init = init_method or normal(0.023)
        self.weight = parameter(init((out_features, in_features), rng, dtype, device))
        self.bias = parameter(zeros((out_features,), dtype=dtype, device=device)) if bias else None
        self._states: dict[str, DelayedState] = {}
        self._cache: tuple[Any, OperandPair] | None = None

    def forward(self, x: Array, is_first_microbatch: bool | None = None) -> Array:
        """Return ``x W^T + b``.

        Args:
            x: [..., K].
            is_first_microbatch: True quantizes the weight and keeps it for later calls; False uses
                the kept one as long as the weight has not changed since; None keeps nothing.
        """
        region = current_region()
        if region is None or region.recipe is None:
            return linear(x, self.weight, self.bias)
        x, plan = array("linear", x), region.recipe.linear_plan()
        check_operands(x, self.weight, self.bias, quantized=True)  # before any state is made
        states = self._delayed_states(plan, self.weight)
        if states is not None and states.recording:
            region.step.touch(states.forward)
        pair = self._weight_pair(plan, states, needs_grad(x), is_first_microbatch)
        return linear(x, self.weight, self.bias, plan=plan, states=states, weight_pair=pair)

    def _weight_pair(
        self, plan: LinearPlan, states: LinearStates | None, col: bool, first: bool | None
    ) -> OperandPair | None:
        """The kept quantized weight, made anew when asked or when storage, version or plan changed."""
        if first is None:
            return None
        storage = self.weight.storage
        key = (storage, storage.version, plan.w)
        kept = self._cache
        if not first and kept is not None and kept[0][0] is storage and kept[0][1:] == key[1:]:
            return kept[1]
        pair = quantize_weight(self.weight.raw, plan, states, col=col)
        self._cache = (key, pair)
        return pair

    def _delayed_states(self, plan: LinearPlan, weight: Array) -> LinearStates | None:
        """This module's states under a delayed plan, made at first use and following recipe changes."""
        rule = plan.delayed
        if rule is None:
            return None
        limits = {"forward": (plan.x, plan.w), "backward": (plan.dy,)}
        for which, roles in _PASSES.items():
            fp8_max = tuple(p.format.element.max for p in limits[which])
            state = self._states.get(which)
            if state is None:
                self._states[which] = DelayedState(roles, fp8_max, rule, weight.raw)
            else:
                state.adapt(fp8_max, rule)
        return LinearStates(self._states["forward"], self._states["backward"], self.training)

    def extra_state(self) -> dict[str, Any]:
        """Scaling state as ``scaling.<pass>.<scale|amax_history>``."""
        return {
            f"scaling.{which}.{name}": raw
            for which, state in self._states.items()
            for name, raw in state.state_dict().items()
        }

    def load_extra_state(self, state: dict[str, Any]) -> Callable[[], None]:
        """Check saved scaling state and return the call that takes it; a module that has not run keeps it for then."""
        takes: list[Callable[[], None]] = []
        for which, roles in _PASSES.items():
            part = {name: state.pop(f"scaling.{which}.{name}", None) for name in ("scale", "amax_history")}
            if part["scale"] is None and part["amax_history"] is None:
                continue
            if part["scale"] is None or part["amax_history"] is None:
                got = f"one of them for the {which} pass"
                raise StateError(
                    message("load_state_dict", "scale and amax_history together", got, "load both or none")
                )
            _, history = check_state(roles, part)
            target = self._states.get(which)
            if target is None:
                # The element range is not stored; the first use adapts it without rescaling.
                target = DelayedState(roles, (), DelayedRule(len(history), "max", 0), self.weight.raw)
            takes.append(partial(self._take_state, which, target, part))
        if state:
            raise StateError(
                message("load_state_dict", f"scaling state of {sorted(_PASSES)}", sorted(state), "drop these keys")
            )

        def commit() -> None:
            for take in takes:
                take()

        return commit

    def _take_state(self, which: str, target: DelayedState, part: dict[str, Any]) -> None:
        target.load_state_dict(part)
        self._states[which] = target

    def moved(self) -> None:
        """Drop the kept weight and move the scaling state with the parameters."""
        self._cache = None
        for state in self._states.values():
            state.move(self.weight.raw)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
