"""What a recipe adds to one torch layer: scaling state in the layer's buffers, and the quantized weight."""

from __future__ import annotations

from typing import Any
from weakref import ref

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.random import default_rng
from nvfp.autograd.grad_mode import enable_grad
from nvfp.interop._torch_backward import in_backward
from nvfp.interop._torch_memory import to_array
from nvfp.kernels.operand import OperandPair
from nvfp.nn._random_state import RandomState
from nvfp.nn.functional.linear import LinearStates, linear, quantize_weight
from nvfp.optional import need
from nvfp.recipes.plan import LinearPlan
from nvfp.recipes.state import DelayedState, copy_history
from nvfp.recipes.update import update_states

_PASSES: dict[str, tuple[str, ...]] = {"forward": ("x", "w"), "backward": ("dy",)}
ROUNDING = "scaling_rounding"
NAMES = (*(f"scaling_{which}_{part}" for which in _PASSES for part in ("scale", "amax_history")), ROUNDING)


def fresh_buffers(plan: LinearPlan, device: Any) -> dict[str, Any]:
    """Return the buffers that a plan needs, as before the first step.

    Args:
        plan: of the layer.
        device: torch device.
    """
    torch = need("torch", extra="torch")
    made: dict[str, Any] = {}
    for which, roles in _PASSES.items() if plan.delayed else ():
        shape = (plan.delayed.history_length, len(roles))  # type: ignore[union-attr]
        made[f"scaling_{which}_scale"] = torch.ones(shape[1], dtype=torch.float32, device=device)
        made[f"scaling_{which}_amax_history"] = torch.zeros(shape, dtype=torch.float32, device=device)
    if plan.dy.stochastic:
        key = torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64)  # torch's seed decides
        made[ROUNDING] = torch.cat([key, torch.zeros(1, dtype=torch.int64)]).to(device)
    return made


def carried_over(plan: LinearPlan, before: LinearPlan, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the buffers of a new plan with what the old ones have learned.

    Args:
        plan: the new plan.
        before: the old one.
        old: its buffers.
        new: fresh buffers of the new plan; filled in place.
    """
    torch = need("torch", extra="torch")
    for name in new.keys() & old.keys():
        if name.endswith("history"):
            copy_history(old[name], new[name])
        else:
            new[name].copy_(old[name])
    for which, plans, befores in (
        ("forward", (plan.x, plan.w), (before.x, before.w)),
        ("backward", (plan.dy,), (before.dy,)),
    ):
        name = f"scaling_{which}_scale"
        if name in new and name in old:
            ratio = [p.fp8_max / b.fp8_max for p, b in zip(plans, befores, strict=True)]
            new[name].mul_(torch.tensor(ratio, dtype=torch.float32, device=new[name].device))
    return new


def fits_history(saved: Any, own: Any) -> bool:
    """Whether a saved history is of the same tensors as ours, and of another length."""
    return bool(saved.ndim == 2 and len(saved) and saved.shape[1:] == own.shape[1:] and len(saved) != len(own))


class Site:
    """Binds a layer's buffers to nvfp's scaling state and keeps its quantized weight.

    Everything here can be made again from the layer, so a copied or unpickled layer starts with a new one.

    Attributes:
        states: pass -> scaling state over the layer's buffers.
    """

    def __init__(self) -> None:
        self.states: dict[str, DelayedState] = {}
        self._bound: dict[str, tuple[Any, ...]] = {}
        self._rounding: RandomState | None = None
        self._kept: tuple[Any, tuple[Any, ...], OperandPair] | None = None
        self._owed = False  # a forward pass has recorded amaxes and no backward pass will end its step

    def __reduce__(self) -> tuple[Any, ...]:
        return _like, (self._owed,)

    def drop(self) -> None:
        """Forget the quantized weight."""
        self._kept = None

    def adopt(self, layer: Any) -> None:
        """Take over buffers that were loaded; a step that their history shows unfinished ends before the next one.

        Gradients of an unfinished step are those of a backward pass that failed: they are forgotten.
        """
        self.drop()
        gradients = getattr(layer, "scaling_backward_amax_history", None)
        if gradients is not None and not gradients.is_meta:
            gradients[0].zero_()
        history = getattr(layer, "scaling_forward_amax_history", None)
        self._owed = history is not None and not history.is_meta and bool(history[0].any())

    def linear(
        self, layer: Any, plan: LinearPlan, tensors: tuple[Any, ...], needs: tuple[bool, ...], grad_mode: bool
    ) -> Array:
        """Return ``x W^T + b`` of a layer, recorded for the gradients that are needed.

        Args:
            layer: owns the buffers.
            plan: its plan.
            tensors: x, weight, bias (or None).
            needs: whose gradients are wanted.
            grad_mode: whether torch records.
        """
        states = self._delayed(layer, plan)
        if states is not None and states.recording and not in_backward():
            if self._owed:
                update_states([states.forward])
                self.drop()
            self._owed = grad_mode and not any(needs)
        random = self._random(layer) if plan.dy.stochastic else None
        x, weight, bias = (None if t is None else to_array(t, n) for t, n in zip(tensors, needs, strict=True))
        assert x is not None
        assert weight is not None
        with enable_grad():
            pair = self._weight_pair(tensors[1], weight, plan, states, needs[0], x.raw.dtype)
            if needs[0]:
                pair.side("col")  # torch keeps the column copies of a node, nothing they could be made from
            return linear(x, weight, bias, plan=plan, states=states, weight_pair=pair, random=random)

    def _weight_pair(
        self, tensor: Any, weight: Array, plan: LinearPlan, states: LinearStates | None, col: bool, dtype: Any
    ) -> OperandPair:
        """The kept quantized weight, made anew when the tensor, its version, the plan or the scales changed."""
        version = _version(tensor)
        if version is None:
            return quantize_weight(weight.raw, plan, states, col=col, dtype=dtype)
        recording = states is not None and states.recording
        key = (tensor.data_ptr(), version, plan.w, recording, dtype, *self._bound.values())
        kept = self._kept
        if kept is None or kept[0]() is not tensor or kept[1] != key:
            kept = self._kept = (ref(tensor), key, quantize_weight(weight.raw, plan, states, col=col, dtype=dtype))
        return kept[2]

    def _delayed(self, layer: Any, plan: LinearPlan) -> LinearStates | None:
        """The scaling states over the layer's buffers, bound anew where a buffer is another tensor than before."""
        rule = plan.delayed
        if rule is None:
            return None
        limits = {"forward": (plan.x, plan.w), "backward": (plan.dy,)}
        for which, roles in _PASSES.items():
            scale, history = (getattr(layer, f"scaling_{which}_{part}") for part in ("scale", "amax_history"))
            tag = (rule, scale.data_ptr(), _version(scale), history.data_ptr(), _version(history), history.shape)
            if self._bound.get(which) != tag:
                fp8_max = tuple([p.fp8_max for p in limits[which]])
                raw = to_array(scale).raw
                state = self.states[which] = DelayedState(roles, fp8_max, rule, raw)
                state.hold(raw, to_array(history).raw)
                self._bound[which] = tag
        return LinearStates(self.states["forward"], self.states["backward"], layer.training)

    def _random(self, layer: Any) -> RandomState:
        """The random state of stochastic rounding over the layer's buffer (key, step)."""
        buffer = getattr(layer, ROUNDING)
        tag = (buffer.data_ptr(), _version(buffer))
        if self._rounding is None or self._bound.get(ROUNDING) != tag:
            self._rounding = RandomState(default_rng(0))
            self._rounding.hold(int(np.int64(buffer[0].item()).view(np.uint64)), to_array(buffer).raw[1:2].reshape(()))
            self._bound[ROUNDING] = tag
        return self._rounding


def _like(owed: bool) -> Site:
    """A copied or unpickled site."""
    site = Site()
    site._owed = owed
    return site


def _version(tensor: Any) -> int | None:
    """How often torch has written a tensor in place; None for one made in inference mode, which does not count."""
    return None if tensor.is_inference() else int(tensor._version)
