"""Scaling state of delayed scaling: raw arrays at fixed addresses, owned by one module.

Only the update kernel changes them (`kernels.amax_history_update`); a cast reads the scale of its
tensor and records the amax into the newest row of the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from nvfp.errors import StateError, message
from nvfp.kernels._dispatch import kind_of, place_like
from nvfp.kernels.cast import cast
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.multi_tensor import amax_history_update
from nvfp.recipes.plan import DelayedRule


class DelayedState:
    """Scales and amax histories of the tensors of one pass of one module.

    Attributes:
        roles: names of the tensors, e.g. ``("x", "w")``.
        fp8_max: largest finite value of each tensor's element format.
        scale: float32 [n], the multipliers that the next casts use.
        amax_history: float32 [len, n]; row 0 collects the step that runs.
        rule: how the scales follow from the history.
    """

    __slots__ = ("_amax_words", "_scale_words", "amax_history", "fp8_max", "pending", "roles", "rule", "scale")

    def __init__(self, roles: tuple[str, ...], fp8_max: tuple[float, ...], rule: DelayedRule, like: Any) -> None:
        self.roles = roles
        self.fp8_max = fp8_max
        self.rule = rule
        self.pending = False
        n = len(roles)
        self.hold(
            place_like(np.ones(n, np.float32), like),
            place_like(np.zeros((rule.history_length, n), np.float32), like),
        )

    def hold(self, scale: Any, history: Any) -> None:
        """Keep the state in these raw arrays from now on (another library's memory, say).

        Args:
            scale: float32 [n].
            history: float32 [len, n].
        """
        self.scale = scale
        self.amax_history = history
        # 0-d views made once: a CuPy view costs more host time than the launch that reads it.
        self._scale_words = {r: scale[i : i + 1].reshape(()) for i, r in enumerate(self.roles)}
        self._amax_words = {r: history[0, i : i + 1].reshape(()) for i, r in enumerate(self.roles)}

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.roles, self.fp8_max, self.rule, self.scale, self.amax_history)

    def scale_word(self, role: str) -> Any:
        """The multiplier of one tensor, a 0-d view of `scale`."""
        return self._scale_words[role]

    def amax_word(self, role: str) -> Any:
        """Where the amax of this step goes, a 0-d view of `amax_history`."""
        self.pending = True
        return self._amax_words[role]

    def adapt(self, fp8_max: tuple[float, ...], rule: DelayedRule) -> None:
        """Follow a recipe that changed: keep what was learned, in the new length and element range."""
        if rule.history_length != self.rule.history_length:
            old = self.amax_history
            new = place_like(np.zeros((rule.history_length, len(self.roles)), np.float32), old)
            # The newest entries stand at the end of the ring, behind row 0.
            keep = min(rule.history_length, self.rule.history_length)
            new[:1] = old[:1]
            if keep > 1:
                new[-(keep - 1) :] = old[-(keep - 1) :]
            self.hold(self.scale, new)
        if not self.fp8_max:  # state that was loaded before the first use
            self.fp8_max = fp8_max
        if fp8_max != self.fp8_max:
            ratio = np.asarray([new / old for new, old in zip(fp8_max, self.fp8_max, strict=True)], np.float32)
            elementwise("multiply", self.scale, place_like(ratio, self.scale), out=self.scale)
            self.fp8_max = fp8_max
        self.rule = rule

    def move(self, like: Any) -> None:
        """Move scales and history to the device of ``like``."""
        if kind_of(self.scale) != kind_of(like):
            host = [a if kind_of(a) == "cpu" else a.get() for a in (self.scale, self.amax_history)]
            self.hold(*(place_like(a, like) for a in host))

    def discard(self) -> None:
        """Forget the amaxes of a step that failed; scales stay."""
        if self.pending:
            elementwise("multiply", self.amax_history[:1], 0.0, out=self.amax_history[:1])
            self.pending = False

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"scale": [n], "amax_history": [len, n]}``, the raw arrays themselves."""
        return {"scale": self.scale, "amax_history": self.amax_history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy saved values in, in place; the saved history may be longer or shorter than this one.

        Raises:
            StateError: another number of tensors.
        """
        scale, history = check_state(self.roles, state)
        n = len(self.roles)
        new = np.zeros((self.rule.history_length, n), np.float32)
        new[0] = history[0]
        keep = min(len(new), len(history)) - 1
        if keep:
            new[-keep:] = history[-keep:]
        for own, saved in ((self.scale, scale), (self.amax_history, new)):
            cast(place_like(saved, own), own.dtype, out=own)


def _restored(
    roles: tuple[str, ...], fp8_max: tuple[float, ...], rule: DelayedRule, scale: Any, history: Any
) -> DelayedState:
    """A copied or unpickled state; its words are views of its own arrays."""
    state = DelayedState(roles, fp8_max, rule, scale)
    state.hold(scale, history)
    return state


def check_state(roles: tuple[str, ...], state: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return saved scale and history as float32, or raise StateError if they do not belong to these tensors."""
    try:
        scale = np.asarray(state["scale"], np.float32)
        history = np.asarray(state["amax_history"], np.float32)
    except (TypeError, ValueError) as error:
        raise StateError(message("load_state_dict", "scaling state in numbers", error, "load it again")) from error
    n = len(roles)
    if scale.shape != (n,) or history.ndim != 2 or history.shape[1] != n or history.shape[0] < 1:
        expected = f"scale ({n},) and amax_history (len, {n}) for the tensors {roles}"
        do = "load the state of a module of the same kind"
        raise StateError(message("load_state_dict", expected, f"{scale.shape} and {history.shape}", do))
    return scale, history


def update_states(states: Iterable[DelayedState]) -> None:
    """Roll the histories and renew the scales of all states, one launch per (rule, device)."""
    groups: dict[tuple[str, int, str], list[DelayedState]] = {}
    for state in states:
        key = (state.rule.algorithm, state.rule.margin, kind_of(state.scale))
        groups.setdefault(key, []).append(state)
    for (algorithm, margin, _), group in groups.items():
        amax_history_update(
            [s.amax_history for s in group],
            [s.scale for s in group],
            [s.fp8_max for s in group],
            algorithm=algorithm,
            margin=margin,
        )
        for state in group:
            state.pending = False
