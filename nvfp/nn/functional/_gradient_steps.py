"""Delayed scaling of gradients: a backward pass that recorded amaxes updates their states when it ends."""

from __future__ import annotations

from nvfp.autograd.region import collect_after_backward
from nvfp.recipes.context import current_region
from nvfp.recipes.state import DelayedState
from nvfp.recipes.update import update_states


def begin_gradient_step(state: DelayedState) -> None:
    """Have a state updated when this backward ends; drop amaxes that a failed backward left."""
    run = collect_after_backward("delayed scaling", _EndOfBackward)
    if state not in run.gradients:
        state.discard()
        run.gradients.append(state)


class _EndOfBackward:
    """Collects the gradient states of one backward run and updates them in one launch at its end."""

    def __init__(self) -> None:
        self.gradients: list[DelayedState] = []

    def __call__(self) -> None:
        update_states(self.gradients)
        region = current_region()
        if region is not None:  # a step ends here; outside autocast its exit has ended it
            region.step.finish()

    def discard(self) -> None:
        """Forget the amaxes of a pass that failed."""
        for state in self.gradients:
            state.discard()
