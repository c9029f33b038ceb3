"""Scales of a checkpointed segment: it is run again with those of its first run, and records nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nvfp.autograd.recompute import keeping, recomputing, replayed
from nvfp.kernels.cast import cast
from nvfp.nn.functional.linear import LinearStates
from nvfp.recipes.state import DelayedState


class FrozenScales(DelayedState):
    """The scales of a state at one time, without a history."""

    __slots__ = ()

    def __init__(self, roles: tuple[str, ...], scale: Any) -> None:
        self.roles, self.scale, self.pending = roles, scale, False
        self._scale_words = {r: scale[i : i + 1].reshape(()) for i, r in enumerate(roles)}


def frozen(state: DelayedState) -> DelayedState:
    """Return the state; inside a checkpointed segment that runs again, the scales that its first run used."""
    if not keeping():
        return state
    scale = replayed(lambda: cast(state.scale, state.scale.dtype))
    return FrozenScales(state.roles, scale) if recomputing() else state


def as_before(states: LinearStates) -> LinearStates:
    """Return the states; where a checkpointed segment runs again, with frozen scales and without recording."""
    if not keeping():
        return states
    forward = frozen(states.forward)
    return replace(states, forward=forward, recording=False) if recomputing() else states
