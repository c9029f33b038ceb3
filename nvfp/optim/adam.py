"""AdamW: decoupled weight decay, float32 moments, float32 master weights for 16-bit parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.convert import asarray
from nvfp.arrays.quantized import QuantizedArray
from nvfp.arrays.storage import QuantizedStorage
from nvfp.dtypes.dense import bfloat16, float16, float32
from nvfp.errors import ArgumentError, DTypeError, StateError, message
from nvfp.kernels._dispatch import place_like
from nvfp.kernels.adam import adam
from nvfp.kernels.cast import cast
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.operand import Operand

_F32 = np.dtype(np.float32)
_DTYPES = (float32, bfloat16, float16)
_HYPER = ("lr", "beta1", "beta2", "eps", "weight_decay")


class AdamW:
    """Adam with decoupled weight decay.

    ``m = b1 m + (1-b1) g``, ``v = b2 v + (1-b2) g^2``,
    ``p -= lr (mhat / (sqrt(vhat) + eps) + wd p)`` with bias-corrected mhat, vhat.

    Args:
        params: name -> parameter, as ``model.parameters()`` gives. float32, bfloat16, float16, or quantized
            (`nf.quantized_model_init`). One with several names (tied weights) is updated once, under its first name.
        lr: learning rate; may be set between steps (`optimizer.lr = ...`), also for a captured graph.
        betas: decay of the moments.
        eps: added to the root.
        weight_decay: wd.
        master_weights: keep a float32 copy of 16-bit and quantized parameters, and round the parameters from it.
            That of a quantized one starts from its first values where they are kept, else from its values now.

    Raises:
        ArgumentError: no parameters, or hyperparameters outside their ranges.
        DTypeError: no mapping, or parameters of another dtype.
        StateError: (`step`) a gradient waits for ``backward_dw``; nothing is changed.

    Numerics: float32, one launch per dtype on CUDA; the step count and all hyperparameters are device
        words. The gradient is ``main_grad`` where a parameter has one, else ``.grad``; a parameter without either is
        left alone. A quantized parameter is quantized anew from its master weights after the step. CPU and CUDA use
        one order of operations.

    Source: Loshchilov and Hutter, "Decoupled weight decay regularization".

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
        self.params = _distinct(params)
        self._values = _hyperparameters(lr, betas, eps, weight_decay)
        first = next(iter(self.params.values())).raw
        first = first.codes if isinstance(first, Operand) else first
        held = [name for name, p in self.params.items() if isinstance(p, QuantizedArray)]
        if held and not master_weights:
            do = "leave master_weights on, or leave them out"
            raise ArgumentError(message("AdamW", "master_weights=True for quantized parameters", held[0], do))
        self._hyper = place_like(self._hyper_values(), first)
        self._step = place_like(np.zeros((), np.int32), first)
        self._exp_avg: dict[str, Any] = {}
        self._exp_avg_sq: dict[str, Any] = {}
        self._master: dict[str, Any] = {}
        for name, p in self.params.items():
            like = p.raw.codes if isinstance(p, QuantizedArray) else p.raw
            self._exp_avg[name] = place_like(np.zeros(p.shape, np.float32), like)
            self._exp_avg_sq[name] = place_like(np.zeros(p.shape, np.float32), like)
            if isinstance(p, QuantizedArray):
                self._master[name] = _first_values(p)
            elif master_weights and p.raw.dtype != _F32:
                self._master[name] = cast(p.raw, _F32)

    def _hyper_values(self) -> np.ndarray:
        return np.asarray([self._values[k] for k in _HYPER], np.float32)

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return self._values["lr"]

    @lr.setter
    def lr(self, value: float) -> None:
        self._values["lr"] = _number("lr", value, 0.0)
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
        grads = {name: g.raw for name, p in self.params.items() if (g := _gradient(name, p)) is not None}
        names = list(grads)
        if not names:
            return
        held = [name for name in names if isinstance(self.params[name], QuantizedArray)]
        adam(
            [self._master[name] if name in held else self.params[name].raw for name in names],
            list(grads.values()),
            [self._exp_avg[name] for name in names],
            [self._exp_avg_sq[name] for name in names],
            [None if name in held else self._master.get(name) for name in names],
            self._hyper,
            self._step,
            mode="adamw",
        )
        for name in names:
            storage = self.params[name].storage
            if name in held:
                storage.write_(self._master[name])
            else:
                storage.touch()

    def zero_grad(self) -> None:
        """Forget the gradients; a ``main_grad`` is filled with zeros."""
        for p in self.params.values():
            p._clear_gradient()

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
        if not isinstance(state, Mapping):
            got = type(state).__name__
            raise DTypeError(message("AdamW.load_state_dict", "a mapping name -> array", got, "pass a state_dict()"))
        values = {k: asarray(state[k], dtype=x.dtype, device=x.device) for k, x in own.items() if k in state}
        wrong = sorted(set(own) ^ set(state)) or [k for k in own if values[k].shape != own[k].shape]
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
            target.storage.write_(values[key].raw)
        self._values = dict(zip(_HYPER, values["hyper"].tolist(), strict=True))


def _gradient(name: str, p: Array) -> Array | None:
    """The gradient that a step reads, or None.

    Raises:
        StateError: a part of it is still to be computed.
    """
    if getattr(p._node, "waiting", 0):
        do = "call model.backward_dw() before optimizer.step()"
        raise StateError(message("AdamW.step", f"the whole gradient of {name}", "one that waits for backward_dw", do))
    return p.grad if p.main_grad is None else p.main_grad


def _first_values(p: QuantizedArray) -> Any:
    """The float32 master copy of a quantized parameter."""
    initial = p.get_high_precision_init_val()
    return cast(initial.to_device(p.device).raw, _F32) if initial is not None else dequantize(p.raw, _F32)


def _distinct(params: Any) -> dict[str, Array]:
    """The parameters by name, checked; one that has several names (tied weights) once, under the first."""
    if not isinstance(params, Mapping):
        raise DTypeError(message("AdamW", "a mapping name -> Array", type(params).__name__, "pass model.parameters()"))
    found: dict[int, tuple[str, Array]] = {}
    for name, p in params.items():
        held = isinstance(p, QuantizedArray) and isinstance(p.storage, QuantizedStorage)
        if not isinstance(p, Array) or not (held or p.dtype in _DTYPES):
            got = f"{name}: {p.dtype if isinstance(p, Array) else type(p).__name__}"
            expected = "Arrays of float32, bfloat16 or float16, or parameters of quantized_model_init"
            raise DTypeError(message("AdamW", expected, got, "cast or leave it out"))
        found.setdefault(id(p), (name, p))
    if not found:
        raise ArgumentError(message("AdamW", "at least one parameter", "none", "pass model.parameters()"))
    return dict(found.values())


def _hyperparameters(lr: Any, betas: Any, eps: Any, weight_decay: Any) -> dict[str, float]:
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise ArgumentError(message("AdamW", "two betas", repr(betas), "pass e.g. (0.9, 0.999)"))
    return {
        "lr": _number("lr", lr, 0.0),
        "beta1": _number("betas", betas[0], 0.0, 1.0),
        "beta2": _number("betas", betas[1], 0.0, 1.0),
        "eps": _number("eps", eps, 0.0),
        "weight_decay": _number("weight_decay", weight_decay),
    }


def _number(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """A hyperparameter as a float in [low, high)."""
    value = value.item() if getattr(value, "shape", None) == () else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < high or math.isinf(value):
        expected = f"{name} as a finite number" + (f" in [{low:g}, {high:g})" if low == 0 else "")
        raise ArgumentError(message("AdamW", expected, repr(value), "correct this value"))
    return float(value)
