"""The end of a step of delayed scaling: amaxes are reduced, scales renewed, histories rolled.

One launch per (rule, device) where the rule is built in. A function of the user computes with Arrays on the device,
so nothing waits for the GPU there either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.functions.comparison import isfinite, where
from nvfp.arrays.functions.joining import concat
from nvfp.arrays.functions.reductions import max as maximum
from nvfp.autograd.grad_mode import no_grad
from nvfp.dtypes.dense import float32
from nvfp.errors import ArgumentError, message
from nvfp.kernels._dispatch import kind_of
from nvfp.kernels.cast import cast
from nvfp.kernels.multi_tensor import amax_history_update, prepare_amax_history_update
from nvfp.recipes.state import DelayedState, Reduce


def update_states(states: Iterable[DelayedState]) -> None:
    """Renew the scales and roll the histories of all states; on an exception of a user's function none changes.

    Args:
        states: of modules that ran in this step. Those with one ``reduce`` are reduced in one call, if their rule
            says so.

    Raises:
        ArgumentError: a user's function gave something else than one value per tensor.
    """
    states = list(states)
    try:
        with no_grad():
            _end_step(states)
    except BaseException:
        for state in states:
            state.discard()
        raise


def _end_step(states: list[DelayedState]) -> None:
    for reduce in dict.fromkeys(s.reduce for s in states if s.reduce is not None and s.rule.reduce):
        _reduce([s for s in states if s.reduce == reduce and s.rule.reduce], reduce)
    called = [(s, _called_scale(s)) for s in states if s.rule.called]  # all of them before anything is written
    groups: dict[tuple[Any, int, str], list[DelayedState]] = {}
    for state in states:
        rule = state.rule
        key = ("max", 0) if rule.called else (rule.algorithm, rule.margin)
        groups.setdefault((*key, kind_of(state.scale)), []).append(state)
    for (algorithm, margin, _), group in groups.items():
        _roll(group, algorithm, margin)
    for state, scale in called:
        cast(scale, float32, out=state.scale)
    for state in states:
        state.pending = False


def _roll(group: list[DelayedState], algorithm: str, margin: int) -> None:
    """Roll the histories of states with one rule, and renew their scales unless a function computed them."""
    if any(s.rule.called for s in group):  # what it computed is written afterwards: here the update gets copies
        scales = [cast(s.scale, float32) if s.rule.called else s.scale for s in group]
        tops = [s.fp8_max for s in group]
        amax_history_update([s.amax_history for s in group], scales, tops, algorithm=algorithm, margin=margin)
        return
    # Numbers of objects name them here: what is prepared keeps the arrays alive.
    key = algorithm, margin, tuple((id(s.amax_history), id(s.scale), s.fp8_max) for s in group)

    def make() -> Callable[[], None]:
        return prepare_amax_history_update(
            [s.amax_history for s in group],
            [s.scale for s in group],
            [s.fp8_max for s in group],
            algorithm=algorithm,
            margin=margin,
        )

    group[0].prepared(key, make)()


def _reduce(states: list[DelayedState], reduce: Reduce) -> None:
    """Replace the newest amaxes of all states by what ``reduce`` makes of them, in one flattened call."""
    rows = [s.amax_history[0] for s in states]
    given = concat([wrap(r) for r in rows])
    whole = reduce(given)
    if not isinstance(whole, Array) or whole.shape != given.shape or whole.device != given.device:
        got = getattr(whole, "shape", type(whole).__name__)
        do = "return the maxima over all processes, on the same device"
        raise ArgumentError(message("reduce_amax", f"an Array {given.shape}", got, do))
    for row, (a, b) in zip(rows, pairwise([0, *accumulate(r.shape[0] for r in rows)]), strict=True):
        cast(whole.raw[a:b], float32, out=row)


def _called_scale(state: DelayedState) -> Any:
    """The new scales [n] under a rule with functions of the user.

    A tensor that was not seen in this step keeps its scale, and so does one whose amax or new scale is 0 or not finite.
    """
    rule, n = state.rule, len(state.roles)
    history, old = wrap(state.amax_history), wrap(state.scale)
    if callable(rule.algorithm):
        amax = _checked("amax_compute_algo", rule.algorithm(history), n, history)
    else:
        amax = maximum(history, axis=0) if rule.algorithm == "max" else history[0]
    seen = history[0] > 0
    if rule.scaling is None:
        scale = cast(state.scale, float32)
        known = cast(where(seen, amax, 0.0).raw, float32)
        amax_history_update([known.reshape(1, n)], [scale], [state.fp8_max], margin=rule.margin)
        return scale
    given = rule.scaling(amax, old, wrap(state.limits()), rule.recipe)
    new = _checked("scaling_factor_compute_algo", given, n, history)
    good = seen & isfinite(amax) & (amax > 0) & isfinite(new) & (new > 0)
    return where(good, new, old).raw


def _checked(name: str, value: Any, n: int, like: Array) -> Array:
    if not isinstance(value, Array) or value.shape != (n,) or value.device != like.device:
        got = f"{type(value).__name__} {getattr(value, 'shape', '')}".strip()
        do = "compute with nf functions, e.g. nf.max(history, axis=0)"
        raise ArgumentError(message(name, f"an Array ({n},): one value per tensor", got, do))
    return value if value.dtype == float32 else wrap(cast(value.raw, float32))
