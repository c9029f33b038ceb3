"""What all optimizers share: groups of parameters, gradients, master weights, state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.convert import asarray
from nvfp.arrays.quantized import QuantizedArray
from nvfp.arrays.storage import QuantizedStorage
from nvfp.dtypes.dense import bfloat16, float16, float32
from nvfp.errors import ArgumentError, DTypeError, StateError, message
from nvfp.kernels._dispatch import place_like
from nvfp.kernels.cast import cast
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.operand import Operand

F32 = np.dtype(np.float32)
_DTYPES = (float32, bfloat16, float16)
Params = Mapping[str, Array] | Sequence[Mapping[str, Any]]


@dataclass(eq=False)
class Group:
    """Parameters that share hyperparameters.

    Attributes:
        params: name -> parameter.
        values: hyperparameters on the host.
        words: float32, the same on the device, in the optimizer's order.
        step: int32 word on the device: steps taken.
        state: table -> name -> raw array; ``"master"`` only for parameters that have one.
    """

    params: dict[str, Array]
    values: dict[str, float]
    words: Any
    step: Any
    state: dict[str, dict[str, Any]] = field(default_factory=dict)

    def set(self, **values: float) -> None:
        """Write hyperparameters, on the host and on the device (also for a captured graph).

        Raises:
            ArgumentError: an unknown name or a value that is no finite number; nothing is changed.
        """
        if unknown := sorted(set(values) - set(self.values)):
            raise ArgumentError(
                message("Group.set", f"names out of {', '.join(self.values)}", unknown[0], "correct it")
            )
        self.values |= {name: number("Group.set", name, value) for name, value in values.items()}
        host = np.asarray(list(self.values.values()), np.float32)
        if isinstance(self.words, np.ndarray):
            self.words[...] = host
        else:
            self.words.set(host)


@dataclass(eq=False)
class Work:
    """One group's share of a step: the parameters that have a gradient.

    Attributes:
        group: it.
        names: of the parameters.
        params: raw, what the rule writes: a quantized parameter's master copy stands for it.
        grads: raw, one per parameter.
        master: raw float32 copies that the rule keeps beside ``params``, or None.
    """

    group: Group
    names: list[str]
    params: list[Any]
    grads: list[Any]
    master: list[Any | None]

    def table(self, name: str) -> list[Any]:
        """One state table's arrays of these parameters."""
        return [self.group.state[name][key] for key in self.names]


class Optimizer:
    """Base of the update rules; a rule gives its state tables and `_update`.

    Attributes:
        groups: one `Group` for each mapping of parameters that was given.
    """

    TABLES: ClassVar[tuple[str, ...]] = ()

    def __init__(self, params: Params, defaults: Mapping[str, float], *, master_weights: bool) -> None:
        self.groups: list[Group] = []
        for members, values in _grouped(type(self).__name__, params, defaults):
            self.groups.append(self._group(members, self._checked(values), master_weights))
        lr = float(defaults["lr"])
        self._ratios = [group.values["lr"] / lr if lr else 1.0 for group in self.groups]

    def _checked(self, values: Mapping[str, Any]) -> dict[str, float]:
        """Hyperparameters as floats in their order; raises on others."""
        raise NotImplementedError

    def _update(self, work: Work, skip: Any | None) -> None:
        """Run the rule on one group, unless the device word says otherwise."""
        raise NotImplementedError

    def _group(self, params: dict[str, Array], values: dict[str, float], master_weights: bool) -> Group:
        held = [name for name, p in params.items() if isinstance(p, QuantizedArray)]
        if held and not master_weights:
            own, do = type(self).__name__, "leave master_weights on, or leave them out"
            raise ArgumentError(message(own, "master_weights=True for quantized parameters", held[0], do))
        like = plain(next(iter(params.values())))
        words = place_like(np.asarray(list(values.values()), np.float32), like)
        group = Group(params, values, words, place_like(np.zeros((), np.int32), like))
        group.state = {table: {} for table in (*self.TABLES, "master")}
        for name, p in params.items():
            for table in self.TABLES:
                group.state[table][name] = place_like(np.zeros(p.shape, np.float32), plain(p))
            if isinstance(p, QuantizedArray):
                group.state["master"][name] = _first_values(p)
            elif master_weights and p.raw.dtype != F32:
                group.state["master"][name] = cast(p.raw, F32)
        return group

    @property
    def params(self) -> dict[str, Array]:
        """Every parameter by name."""
        return {name: p for group in self.groups for name, p in group.params.items()}

    @property
    def lr(self) -> float:
        """Learning rate of the next step; groups made with one of their own keep its ratio to this."""
        pairs = list(zip(self.groups, self._ratios, strict=True))
        return next((group.values["lr"] / ratio for group, ratio in sorted(pairs, key=_own_rate) if ratio), 0.0)

    @lr.setter
    def lr(self, value: float) -> None:
        value = number(type(self).__name__, "lr", value, 0.0)
        rates = [number(type(self).__name__, "lr", value * ratio, 0.0) for ratio in self._ratios]
        for group, rate in zip(self.groups, rates, strict=True):
            group.set(lr=rate)

    @property
    def step_count(self) -> int:
        """Steps taken (reads a device word)."""
        return max(int(group.step.item()) for group in self.groups)

    def step(self, *, skip: Array | None = None) -> None:
        """Update every parameter that has a gradient, in place, and count the step.

        Args:
            skip: float32 Array of shape () on the device, as `clip_grad_norm(nonfinite=)` writes it: unless it is 0
                parameters, state and count stay bit for bit as they are. Nobody waits for it.
        """
        flag = None if skip is None else word(f"{type(self).__name__}.step", "skip", skip)
        found = [self._work(group) for group in self.groups]
        for work in found:
            if work.names:
                self._update(work, flag)
                _written(work)

    def _work(self, group: Group) -> Work:
        own, master = type(self).__name__, group.state["master"]
        grads = {name: g.raw for name, p in group.params.items() if (g := gradient(own, name, p)) is not None}
        held = {name for name in grads if isinstance(group.params[name], QuantizedArray)}
        return Work(
            group,
            list(grads),
            [master[name] if name in held else group.params[name].raw for name in grads],
            list(grads.values()),
            [None if name in held else master.get(name) for name in grads],
        )

    def zero_grad(self) -> None:
        """Forget the gradients; a ``main_grad`` is filled with zeros."""
        for p in self.params.values():
            p._clear_gradient()

    def state_dict(self) -> dict[str, Array]:
        """Return steps, hyperparameters, state and master weights by name (shared memory)."""
        state: dict[str, Array] = {}
        for i, group in enumerate(self.groups):
            end = f".{i}" if i else ""
            state |= {f"step{end}": Array._wrap(group.step), f"hyper{end}": Array._wrap(group.words)}
        for table in (*self.TABLES, "master"):
            for group in self.groups:
                state |= {f"{table}.{name}": Array._wrap(raw) for name, raw in group.state[table].items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy a saved state in; nothing is changed on error.

        Raises:
            StateError: names or shapes differ from this optimizer's.
        """
        op = f"{type(self).__name__}.load_state_dict"
        own = self.state_dict()
        if not isinstance(state, Mapping):
            got = type(state).__name__
            raise DTypeError(message(op, "a mapping name -> array", got, "pass a state_dict()"))
        values = {k: asarray(state[k], dtype=x.dtype, device=x.device) for k, x in own.items() if k in state}
        wrong = sorted(set(own) ^ set(state)) or [k for k in own if values[k].shape != own[k].shape]
        if wrong:
            do = "build it over the same parameters"
            raise StateError(message(op, "the names and shapes of this optimizer", wrong, do))
        for key, target in own.items():
            target.storage.write_(values[key].raw)
        for i, group in enumerate(self.groups):
            host = values[f"hyper.{i}" if i else "hyper"].tolist()
            group.values = dict(zip(group.values, host, strict=True))


def word(op: str, name: str, flag: Any) -> Any:
    """The raw word of a flag.

    Args:
        op: the function, for messages.
        name: the argument.
        flag: what was given.

    Raises:
        DTypeError: it is no float32 Array of shape ().
    """
    if not isinstance(flag, Array) or flag.dtype != float32 or flag.shape != ():
        got = f"{flag.dtype} {flag.shape}" if isinstance(flag, Array) else type(flag).__name__
        raise DTypeError(message(op, f"{name} as a float32 Array of shape ()", got, "pass nf.zeros(())"))
    return flag.raw


def _own_rate(pair: tuple[Group, float]) -> bool:
    """Whether a group has a learning rate of its own."""
    return pair[1] != 1.0


def plain(p: Array) -> Any:
    """A raw array on the device of a parameter.

    Args:
        p: dense or quantized.
    """
    return p.raw.codes if isinstance(p.raw, Operand) else p.raw


def _written(work: Work) -> None:
    """Count the writes of a step; quantize quantized parameters anew from their master copies."""
    for name, raw in zip(work.names, work.params, strict=True):
        p = work.group.params[name]
        if isinstance(p, QuantizedArray):
            p.storage.write_(raw)
        else:
            p.storage.touch()


def gradient(own: str, name: str, p: Array) -> Array | None:
    """The gradient that a step reads, or None.

    Args:
        own: the optimizer's name, for messages.
        name: the parameter's.
        p: the parameter.

    Raises:
        StateError: a part of it is still to be computed.
        DTypeError: it is not float32, bfloat16 or float16.
    """
    if getattr(p._node, "waiting", 0):
        do = f"call model.backward_dw() before {own}.step()"
        raise StateError(message(f"{own}.step", f"the whole gradient of {name}", "one that waits for backward_dw", do))
    found: Array | None = p.grad if p.main_grad is None else p.main_grad
    if found is not None and found.dtype not in _DTYPES:
        expected = f"a gradient of {name} of float32, bfloat16 or float16"
        raise DTypeError(message(f"{own}.step", expected, found.dtype, "cast it with x.astype first"))
    return found


def _first_values(p: QuantizedArray) -> Any:
    """The float32 master copy of a quantized parameter."""
    initial = p.get_high_precision_init_val()
    return cast(initial.to_device(p.device).raw, F32) if initial is not None else dequantize(p.raw, F32)


def _grouped(own: str, params: Any, defaults: Mapping[str, float]) -> list[tuple[dict[str, Array], dict[str, Any]]]:
    """Each group's parameters, checked, and hyperparameters; one with several names counts once, under the first."""
    groups = [{"params": params}] if isinstance(params, Mapping) else params
    if not isinstance(groups, list | tuple) or not all(isinstance(g, Mapping) and "params" in g for g in groups):
        expected = "a mapping name -> Array, or a list of groups {'params': mapping, 'lr': ...}"
        raise DTypeError(message(own, expected, type(params).__name__, "pass model.parameters()"))
    found: list[tuple[dict[str, Array], dict[str, Any]]] = []
    seen: set[int] = set()
    names: set[str] = set()
    for group in groups:
        members = _distinct(own, group["params"], seen)
        if twice := sorted(names.intersection(members)):
            raise ArgumentError(message(own, "names that differ between groups", twice[0], "give each its own"))
        names.update(members)
        own_values = {key: value for key, value in group.items() if key != "params"}
        if unknown := sorted(set(own_values) - set(defaults)):
            do = f"use {', '.join(defaults)}"
            raise ArgumentError(message(own, "hyperparameters of this optimizer in a group", unknown[0], do))
        found.append((members, {**defaults, **own_values}))
    if not names:
        raise ArgumentError(message(own, "at least one parameter", "none", "pass model.parameters()"))
    return [(members, values) for members, values in found if members]


def _distinct(own: str, params: Any, seen: set[int]) -> dict[str, Array]:
    if not isinstance(params, Mapping):
        raise DTypeError(message(own, "a mapping name -> Array", type(params).__name__, "pass model.parameters()"))
    found: dict[str, Array] = {}
    for name, p in params.items():
        held = isinstance(p, QuantizedArray) and isinstance(p.storage, QuantizedStorage)
        if not isinstance(p, Array) or not (held or p.dtype in _DTYPES):
            got = f"{name}: {p.dtype if isinstance(p, Array) else type(p).__name__}"
            expected = "Arrays of float32, bfloat16 or float16, or parameters of quantized_model_init"
            raise DTypeError(message(own, expected, got, "cast or leave it out"))
        if id(p) not in seen:
            seen.add(id(p))
            found[name] = p
    return found


def number(own: str, name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """A hyperparameter as a float in [low, high).

    Args:
        own: the optimizer's name, for messages.
        name: the hyperparameter's.
        value: what was given.
        low: least value.
        high: first value that is too large.

    Raises:
        ArgumentError: it is none.
    """
    value = value.item() if getattr(value, "shape", None) == () else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < high or math.isinf(value):
        expected = f"{name} as a finite number" + (f" in [{low:g}, {high:g})" if low == 0 else "")
        raise ArgumentError(message(own, expected, repr(value), "correct this value"))
    return float(value)
