"""Learning rates over steps: frozen records that are called with the step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from nvfp.errors import ArgumentError, message

_SHAPES = ("cosine", "linear", "sqrt")


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up, a plateau, and a decay: ``schedule(step)`` is the rate of step 0, 1, 2, ...

    With ``k = step + 1`` in the warm-up the rate is ``lr k / warmup``; then ``lr`` until ``steps - decay``; then from
    ``lr`` to ``final`` over ``decay`` steps, and ``final`` from then on. Made by `constant`, `cosine`, `linear`, `wsd`.

    Attributes:
        lr: the highest rate.
        steps: of the whole training; None where it never decays.
        warmup: steps of the warm-up.
        decay: steps of the decay.
        final: rate at the end.
        shape: ``"cosine"``, ``"linear"`` or ``"sqrt"`` (1 - square root of the share of the decay that is done).

    Raises:
        ArgumentError: a rate that is negative or not finite, counts that are none or do not fit into ``steps``, an
            unknown shape, or (when called) a negative step.

    Example:
        >>> import nvfp as nf
        >>> rate = nf.optim.cosine(1.0, steps=6, warmup=2)
        >>> [round(rate(step), 3) for step in range(7)]
        [0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0]
    """

    lr: float
    steps: int | None = None
    warmup: int = 0
    decay: int = 0
    final: float = 0.0
    shape: str = "cosine"

    def __post_init__(self) -> None:
        for name in ("lr", "final"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ArgumentError(message("schedule", f"{name} >= 0", repr(value), "correct this value"))
        if self.shape not in _SHAPES:
            raise ArgumentError(
                message("schedule", f"shape out of {', '.join(_SHAPES)}", repr(self.shape), "choose one")
            )
        counts: dict[str, Any] = {"warmup": self.warmup, "decay": self.decay}
        counts |= {} if self.steps is None else {"steps": self.steps}
        for name, value in counts.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ArgumentError(message("schedule", f"{name} as a number of steps", repr(value), "correct it"))
        if self.steps is not None and self.warmup + self.decay > self.steps:
            got = f"{self.warmup} of warm-up and {self.decay} of decay"
            raise ArgumentError(message("schedule", f"at most {self.steps} steps in all", got, "shorten one"))

    def __call__(self, step: int) -> float:
        """Return the rate of a step, counted from 0."""
        if step < 0:
            raise ArgumentError(message("schedule", "a step from 0 on", step, "count from 0"))
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        if self.steps is None or step < self.steps - self.decay:
            return self.lr
        done = min(1.0, (step - (self.steps - self.decay)) / max(1, self.decay))
        left = {"linear": 1 - done, "sqrt": 1 - math.sqrt(done)}.get(self.shape, 0.5 * (1 + math.cos(math.pi * done)))
        return self.final + (self.lr - self.final) * left


def constant(lr: float, *, warmup: int = 0) -> Schedule:
    """Return one rate behind a linear warm-up.

    Args:
        lr: the rate.
        warmup: steps until it is reached.

    Raises:
        ArgumentError: as `Schedule`.

    Example:
        >>> import nvfp as nf
        >>> [nf.optim.constant(1.0, warmup=2)(step) for step in range(3)]
        [0.5, 1.0, 1.0]
    """
    return Schedule(lr, warmup=warmup)


def cosine(lr: float, steps: int, *, warmup: int = 0, final: float = 0.0) -> Schedule:
    """Return half a cosine from the end of the warm-up to the end of the training.

    Args:
        lr: the highest rate.
        steps: of the whole training.
        warmup: steps until it is reached.
        final: rate at the end.

    Raises:
        ArgumentError: as `Schedule`.

    Example:
        >>> import nvfp as nf
        >>> nf.optim.cosine(1.0, 100, final=0.1)(50)
        0.55
    """
    return Schedule(lr, steps, warmup, _rest(steps, warmup), final, "cosine")


def linear(lr: float, steps: int, *, warmup: int = 0, final: float = 0.0) -> Schedule:
    """Return a line from the end of the warm-up to the end of the training.

    Args:
        lr: the highest rate.
        steps: of the whole training.
        warmup: steps until it is reached.
        final: rate at the end.

    Raises:
        ArgumentError: as `Schedule`.

    Example:
        >>> import nvfp as nf
        >>> nf.optim.linear(1.0, 100)(25)
        0.75
    """
    return Schedule(lr, steps, warmup, _rest(steps, warmup), final, "linear")


def wsd(
    lr: float, steps: int, *, warmup: int = 0, decay: int | None = None, final: float = 0.0, shape: str = "linear"
) -> Schedule:
    """Return a warm-up and a plateau that ends in a short decay (warm-up, stable, decay).

    Args:
        lr: the plateau.
        steps: of the whole training.
        warmup: steps until it is reached.
        decay: steps of the decay; a tenth of ``steps`` unless given.
        final: rate at the end.
        shape: of the decay: ``"linear"``, ``"cosine"`` or ``"sqrt"``.

    Raises:
        ArgumentError: as `Schedule`.

    Source: Hu et al., "MiniCPM" (2024); Hägele et al., "Scaling laws beyond fixed training durations" (2024).

    Example:
        >>> import nvfp as nf
        >>> rate = nf.optim.wsd(1.0, 100, warmup=10, decay=20)
        >>> rate(50), rate(90), rate(100)
        (1.0, 0.5, 0.0)
    """
    tenth = _rest(steps, 0) // 10
    return Schedule(lr, steps, warmup, tenth if decay is None else decay, final, shape)


def _rest(steps: Any, warmup: Any) -> Any:
    """Steps behind the warm-up; a warm-up that is no number or too long is refused by `Schedule`."""
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise ArgumentError(message("schedule", "steps as a number of steps", repr(steps), "correct it"))
    return steps - warmup if isinstance(warmup, int) and warmup <= steps else 0
