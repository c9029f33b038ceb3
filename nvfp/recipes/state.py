"""Scaling state of delayed scaling: raw arrays at fixed addresses, owned by one module.

Only the update at the end of a step changes them (`recipes.update`); a cast reads the scale of its
tensor and records the amax into the newest row of the history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nvfp.errors import StateError, message
from nvfp.kernels._dispatch import kind_of, place_like
from nvfp.kernels.cast import cast
from nvfp.kernels.elementwise import elementwise
from nvfp.recipes.plan import DelayedRule

Reduce = Callable[[Any], Any]  # amaxes [n] of this process (an Array) -> the maxima over all processes


def copy_history(old: Any, new: Any) -> None:
    """Fill a history of zeros with one of another length.

    Row 0 collects the step that runs; the newest entries of a ring stand at its end.

    Args:
        old: [len, n].
        new: zeros [any length, n], of the same library.

    Example:
        >>> old, new = np.asarray([[0.0], [1.0], [2.0], [3.0]]), np.zeros((3, 1))
        >>> copy_history(old, new)
        >>> new.ravel().tolist()
        [0.0, 2.0, 3.0]
    """
    new[:1] = old[:1]
    keep = min(len(new), len(old)) - 1
    if keep:
        new[-keep:] = old[-keep:]


class DelayedState:
    """Scales and amax histories of the tensors of one pass of one module.

    Attributes:
        roles: names of the tensors, e.g. ``("x", "w")``.
        fp8_max: largest finite value of each tensor's element format.
        scale: float32 [n], the multipliers that the next casts use.
        amax_history: float32 [len, n]; row 0 collects the step that runs.
        rule: how the scales follow from the history.
        reduce: reduction of amaxes over processes in the running step, or None.
    """

    __slots__ = (
        "_amax_words",
        "_limits",
        "_scale_words",
        "_update",
        "amax_history",
        "fp8_max",
        "pending",
        "reduce",
        "roles",
        "rule",
        "scale",
    )

    def __init__(self, roles: tuple[str, ...], fp8_max: tuple[float, ...], rule: DelayedRule, like: Any) -> None:
        self.roles = roles
        self.fp8_max = fp8_max
        self.rule = rule
        self.pending = False
        self._limits: tuple[tuple[float, ...], Any] | None = None
        self.reduce: Reduce | None = None
        self._update: tuple[Any, Callable[[], None]] | None = None
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
        # A function of the user may not be one that can be pickled; the next use brings its rule along.
        rule = DelayedRule(self.rule.history_length, "max", 0) if self.rule.called else self.rule
        return _restored, (self.roles, self.fp8_max, rule, self.scale, self.amax_history)

    def prepared(self, key: Any, make: Callable[[], Callable[[], None]]) -> Callable[[], None]:
        """Return what ``make`` gave for this key in the step before, or gives now.

        The end of a step is the same launch each time as long as the same states at the same addresses end it; the
        first of them keeps it.
        """
        if self._update is None or self._update[0] != key:
            self._update = key, make()
        return self._update[1]

    def scale_word(self, role: str) -> Any:
        """The multiplier of one tensor, a 0-d view of `scale`."""
        return self._scale_words[role]

    def amax_word(self, role: str) -> Any:
        """Where the amax of this step goes, a 0-d view of `amax_history`."""
        self.pending = True
        return self._amax_words[role]

    def limits(self) -> Any:
        """`fp8_max` as a float32 array [n] beside the scales, made once."""
        kept = self._limits
        if kept is None or kept[0] != self.fp8_max or kind_of(kept[1]) != kind_of(self.scale):
            kept = self._limits = (self.fp8_max, place_like(np.asarray(self.fp8_max, np.float32), self.scale))
        return kept[1]

    def adapt(self, fp8_max: tuple[float, ...], rule: DelayedRule) -> None:
        """Follow a recipe that changed: keep what was learned, in the new length and element range."""
        if rule.history_length != self.rule.history_length:
            new = place_like(np.zeros((rule.history_length, len(self.roles)), np.float32), self.amax_history)
            copy_history(self.amax_history, new)
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
            self.amax_history[:1].fill(0)  # a product with 0 would make NaN of an infinite amax, and NaN stays
            self.pending = False

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"scale": [n], "amax_history": [len, n], "fp8_max": [n]}``: the raw arrays, and a host array."""
        state = {"scale": self.scale, "amax_history": self.amax_history}
        return state | ({"fp8_max": np.asarray(self.fp8_max, np.float32)} if self.fp8_max else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy saved values in, in place; the saved history may be longer or shorter than this one.

        Raises:
            StateError: another number of tensors.
        """
        scale, history, fp8_max = check_state(self.roles, state)
        new = np.zeros((self.rule.history_length, len(self.roles)), np.float32)
        copy_history(history, new)
        for own, saved in ((self.scale, scale), (self.amax_history, new)):
            cast(place_like(saved, own), own.dtype, out=own)
        self.fp8_max, self.pending = fp8_max or self.fp8_max, False


def _restored(
    roles: tuple[str, ...], fp8_max: tuple[float, ...], rule: DelayedRule, scale: Any, history: Any
) -> DelayedState:
    """A copied or unpickled state; its words are views of its own arrays."""
    state = DelayedState(roles, fp8_max, rule, scale)
    state.hold(scale, history)
    return state


def check_state(roles: tuple[str, ...], state: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, tuple[float, ...]]:
    """Return saved scale, history and fp8_max (empty if there is none), or raise StateError if they do not fit."""
    try:
        scale = np.asarray(state["scale"], np.float32)
        history = np.asarray(state["amax_history"], np.float32)
        limits = state.get("fp8_max")
        fp8_max = np.asarray(() if limits is None else limits, np.float32)
    except (TypeError, ValueError) as error:
        raise StateError(message("load_state_dict", "scaling state in numbers", error, "load it again")) from error
    n = len(roles)
    if (
        scale.shape != (n,)
        or history.ndim != 2
        or history.shape[1] != n
        or history.shape[0] < 1
        or (limits is not None and fp8_max.shape != (n,))
    ):
        expected = f"scale ({n},) and amax_history (len, {n}) for the tensors {roles}"
        do = "load the state of a module of the same kind"
        raise StateError(message("load_state_dict", expected, f"{scale.shape} and {history.shape}", do))
    do = "load a state of before the fault"
    if not (np.isfinite(scale).all() and (scale > 0).all() and (fp8_max > 0).all()):
        raise StateError(message("load_state_dict", "scales above 0 and finite", scale.tolist(), do))
    if not (history >= 0).all():  # an infinite one is what a tensor with inf leaves
        got = history[~(history >= 0)][:4].tolist()
        raise StateError(message("load_state_dict", "amaxes of 0 and above, none of them NaN", got, do))
    return scale, history, tuple(float(v) for v in fp8_max)
