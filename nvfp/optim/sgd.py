"""SGD: stochastic gradient descent with momentum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from nvfp.errors import ArgumentError, StateError, message
from nvfp.kernels.sgd import sgd
from nvfp.optim._base import Group, Optimizer, Params, Work, number


class SGD(Optimizer):
    """Gradient descent, with momentum where there is one.

    ``g = g + wd p``; ``b = mu b + (1 - damp) g`` (``b = g`` at the first step); ``u = g + mu b`` (nesterov) or ``b``;
    ``p -= lr u``. Without momentum ``u = g``.

    Args:
        params: as in `AdamW`; groups may have ``lr``, ``momentum``, ``dampening`` and ``weight_decay`` of their own.
        lr: learning rate; may be set between steps, also for a captured graph.
        momentum: mu; where no group has one, no buffer is kept.
        dampening: damp.
        weight_decay: wd.
        nesterov: look ahead; needs a momentum and no dampening.
        master_weights: as in `AdamW`.

    Raises:
        ArgumentError: as in `AdamW`, or nesterov without momentum or with dampening.
        DTypeError: as in `AdamW`.
        StateError: as in `AdamW`, or (`step`) a momentum that was set where no buffer is kept.

    Numerics: float32, one launch per group and dtype on CUDA; see `nvfp.kernels.sgd.sgd`. CPU and CUDA give the same
        bits.

    Source: torch.optim.SGD.

    Example:
        >>> import nvfp as nf
        >>> w = nf.parameter(nf.ones((2,), device="cpu"))
        >>> optimizer = nf.optim.SGD({"w": w}, lr=0.5, momentum=0.5)
        >>> for _ in range(2):
        ...     optimizer.zero_grad()
        ...     w.sum().backward(); optimizer.step()
        >>> w.tolist()
        [-0.25, -0.25]
    """

    TABLES: ClassVar[tuple[str, ...]] = ("momentum_buffer",)

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        master_weights: bool = True,
    ) -> None:
        given = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        listed = params if isinstance(params, list | tuple) else ()
        own = [g["momentum"] for g in listed if isinstance(g, Mapping) and "momentum" in g]
        self._moves = any(value != 0 for value in (momentum, *own))
        if not self._moves:
            self.TABLES = ()  # type: ignore[misc]
        self.nesterov = bool(nesterov)
        super().__init__(params, given, master_weights=master_weights)

    def _checked(self, values: Mapping[str, Any]) -> dict[str, float]:
        found = {
            "lr": number("SGD", "lr", values["lr"], 0.0),
            "momentum": number("SGD", "momentum", values["momentum"], 0.0, 1.0),
            "dampening": number("SGD", "dampening", values["dampening"]),
            "weight_decay": number("SGD", "weight_decay", values["weight_decay"]),
        }
        if self.nesterov and (found["momentum"] == 0 or found["dampening"] != 0):
            got = f"momentum {found['momentum']:g}, dampening {found['dampening']:g}"
            raise ArgumentError(message("SGD", "nesterov with a momentum and no dampening", got, "change either"))
        return found

    def _work(self, group: Group) -> Work:
        if not self._moves and group.values["momentum"] != 0:
            do = "make the optimizer with a momentum; it may be set to 0 and back"
            raise StateError(message("SGD.step", "momentum 0 where no buffer is kept", group.values["momentum"], do))
        return super()._work(group)

    def _update(self, work: Work, skip: Any | None) -> None:
        buffers = work.table("momentum_buffer") if self._moves else [None] * len(work.names)
        words, step = work.group.words, work.group.step
        sgd(work.params, work.grads, buffers, work.master, words, step, nesterov=self.nesterov, skip=skip)
