"""AdamW: decoupled weight decay, float32 moments, float32 master weights for 16-bit parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nvfp.arrays.array import Array
from nvfp.errors import ArgumentError, StateError, message
from nvfp.kernels._dispatch import place_like
from nvfp.kernels.adam import adam
from nvfp.kernels.cast import cast

_F32 = np.dtype(np.float32)
_HYPER = ("lr", "beta1", "beta2", "eps", "weight_decay")


class AdamW:
    """Adam with decoupled weight decay.

    ``m = b1 m + (1-b1) g``, ``v = b2 v + (1-b2) g^2``,
    ``p -= lr (mhat / (sqrt(vhat) + eps) + wd p)`` with bias-corrected mhat, vhat.

    Args:
        params: name -> parameter, as ``model.parameters()`` gives. float32, bfloat16 or float16.
        lr: learning rate; may be set between steps (`optimizer.lr = ...`), also for a captured graph.
        betas: decay of the moments.
        eps: added to the root.
        weight_decay: wd.
        master_weights: keep a float32 copy of 16-bit parameters and round the parameters from it.

    Raises:
        ArgumentError: no parameters, or hyperparameters outside their ranges.

    Numerics: float32, one launch per dtype on CUDA; the step count and all hyperparameters are device
        words. A parameter without a gradient is left alone. CPU and CUDA use one order of operations.

    Source: Loshchilov and Hutter, "Decoupled weight decay regularization"; te-numerics B8.

    Example:
        >>> import nvfp as nf
        >>> w = nf.parameter(nf.ones((2,), device="cpu"))
        >>> optimizer = nf.optim.AdamW({"w": w}, lr=0.1, weight_decay=0.0)
        >>> w.sum().backward(); optimizer.step()
        >>> w.tolist()
        [0.8999999761581421, 0.8999999761581421]
    """

    def __init__(
        self,
        params: Mapping[str, Array],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        master_weights: bool = True,
    ) -> None:
        self.params = dict(params)
        if not self.params:
            raise ArgumentError(message("AdamW", "at least one parameter", "none", "pass model.parameters()"))
        if not (0 <= betas[0] < 1 and 0 <= betas[1] < 1 and eps >= 0 and lr >= 0):
            raise ArgumentError(
                message("AdamW", "betas in [0, 1), eps and lr >= 0", (betas, eps, lr), "correct these values")
            )
        first = next(iter(self.params.values())).raw
        self._values = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": eps, "weight_decay": weight_decay}
        self._hyper = place_like(self._hyper_values(), first)
        self._step = place_like(np.zeros((), np.int32), first)
        self._exp_avg: dict[str, Any] = {}
        self._exp_avg_sq: dict[str, Any] = {}
        self._master: dict[str, Any] = {}
        for name, p in self.params.items():
            self._exp_avg[name] = place_like(np.zeros(p.shape, np.float32), p.raw)
            self._exp_avg_sq[name] = place_like(np.zeros(p.shape, np.float32), p.raw)
            if master_weights and p.raw.dtype != _F32:
                self._master[name] = cast(p.raw, _F32)

    def _hyper_values(self) -> np.ndarray:
        return np.asarray([self._values[k] for k in _HYPER], np.float32)

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return self._values["lr"]

    @lr.setter
    def lr(self, value: float) -> None:
        self._values["lr"] = float(value)
        host = self._hyper_values()
        if isinstance(self._hyper, np.ndarray):
            self._hyper[...] = host
        else:
            self._hyper.set(host)

    @property
    def step_count(self) -> int:
        """Steps taken (reads a device word)."""
        return int(self._step.item())

    def step(self) -> None:
        """Update every parameter that has a gradient, in place, and count the step."""
        names = [name for name, p in self.params.items() if p.grad is not None]
        if not names:
            return
        grads: list[Any] = [p.grad.raw for name in names if (p := self.params[name]).grad is not None]
        adam(
            [self.params[name].raw for name in names],
            grads,
            [self._exp_avg[name] for name in names],
            [self._exp_avg_sq[name] for name in names],
            [self._master.get(name) for name in names],
            self._hyper,
            self._step,
            mode="adamw",
        )
        for name in names:
            self.params[name].storage.touch()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for p in self.params.values():
            p.grad = None

    def state_dict(self) -> dict[str, Array]:
        """Return step, hyperparameters, moments and master weights by name (shared memory)."""
        state = {"step": Array._wrap(self._step), "hyper": Array._wrap(self._hyper)}
        for key, table in (("exp_avg", self._exp_avg), ("exp_avg_sq", self._exp_avg_sq), ("master", self._master)):
            state.update({f"{key}.{name}": Array._wrap(raw) for name, raw in table.items()})
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy a saved state in; nothing is changed on error.

        Raises:
            StateError: names or shapes differ from this optimizer's.
        """
        own = self.state_dict()
        wrong = sorted(set(own) ^ set(state)) or [k for k in own if tuple(state[k].shape) != own[k].shape]
        if wrong:
            raise StateError(
                message(
                    "AdamW.load_state_dict",
                    "the names and shapes of this optimizer",
                    wrong,
                    "build it over the same parameters",
                )
            )
        for key, target in own.items():
            value = np.asarray(state[key])
            target.storage.write_(place_like(np.array(value, target.dtype), target.raw))
        hyper = np.asarray(state["hyper"])
        self._values = {k: float(v) for k, v in zip(_HYPER, hyper, strict=True)}
