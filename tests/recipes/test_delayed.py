"""Delayed scaling end to end: the trace of te-numerics B2, functions of the user, reduction over processes."""

from __future__ import annotations

import threading
from contextvars import copy_context
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp import recipes
from nvfp.errors import ArgumentError, DTypeError
from nvfp.recipes import DelayedScaling, Format, update
from tests.devices import to_numpy

# B2: length 4, E4M3. Amax of each step (step 3: not run), scale after it under "max" and under "most_recent".
TRACE = [(2.0, 224, 224), (7.0, 64, 64), (None, 64, 64), (0.5, 64, 896), (np.inf, 64, 896), (1.0, 64, 448),
         (1.0, 64, 448), (1.0, 64, 448), (1.0, 448, 448)]  # fmt: skip


def layer() -> nf.nn.Linear:
    made = nf.nn.Linear(1, 1, bias=False)
    made.weight.storage.write_(nf.asarray(np.ones((1, 1), np.float32)).raw)
    return made


def scales(module: nf.nn.Linear, which: str = "forward") -> list[float]:
    return [float(v) for v in to_numpy(module._site.states[which].scale)]


def full(value: float) -> nf.Array:
    return nf.asarray(np.full((1, 1), value, np.float32), requires_grad=True)


def step(module: nf.nn.Linear, recipe: recipes.Recipe, amax: float, form: str, **options: Any) -> None:
    """One step whose input and gradient have this amax: backward outside the context, or inside it."""
    with nf.autocast(recipe=recipe, **options):
        y = module(full(amax))
        if form == "inside":
            y.backward(full(amax))
    if form == "outside":
        y.backward(full(amax))


def the_max(history: nf.Array) -> nf.Array:
    return nf.max(history, axis=0)


def the_newest(history: nf.Array) -> nf.Array:
    return history[0]


def to_max(amax: nf.Array, old: nf.Array, fp8_max: nf.Array, recipe: DelayedScaling) -> nf.Array:
    return fp8_max / amax / 2.0**recipe.margin


@pytest.mark.parametrize("form", ["outside", "inside"])
@pytest.mark.parametrize("margin", [0, 1])
@pytest.mark.parametrize(
    "algorithm", ["max", "most_recent", the_max, the_newest], ids=("max", "most_recent", "f_max", "f_newest")
)
@pytest.mark.parametrize("scaling", [None, to_max], ids=["rule", "function"])
def test_b2_trace(device: Any, form: str, margin: int, algorithm: Any, scaling: Any) -> None:
    """Both passes, both forms of a step, built-in rules and functions that say the same: the same scales."""
    module = layer()
    recipe = DelayedScaling(
        margin, Format.E4M3, 4, amax_compute_algo=algorithm, scaling_factor_compute_algo=scaling
    )  # fmt: skip
    column = 1 if algorithm in ("max", the_max) else 2
    for number, row in enumerate(TRACE):
        if row[0] is None:
            step(layer(), recipe, 1.0, form)
        else:
            step(module, recipe, row[0], form)
        wanted = row[column] / 2**margin
        assert (scales(module)[0], scales(module, "backward")[0]) == (wanted, wanted), number


def test_a_function_of_old_scales(device: Any) -> None:
    """It gets amax, old scale, fp8_max and the recipe, for all tensors of a pass at once."""
    seen: list[Any] = []

    def rule(amax: nf.Array, old: nf.Array, fp8_max: nf.Array, recipe: DelayedScaling) -> nf.Array:
        seen.append([amax.tolist(), old.tolist(), fp8_max.tolist(), recipe])
        return old * 2

    recipe = DelayedScaling(scaling_factor_compute_algo=rule, amax_history_len=3)
    module = layer()
    step(module, recipe, 8.0, "outside")
    assert seen == [[[8, 1], [1, 1], [448, 448], recipe], [[8], [1], [57344], recipe]]
    assert (scales(module), scales(module, "backward")) == ([2, 2], [2])


@pytest.mark.parametrize(
    "answer", [lambda h: h, lambda h: 1.0, lambda h: np.ones(2, np.float32), lambda h: 1 / 0], ids=range(4)
)  # fmt: skip
def test_a_function_that_fails_changes_nothing(device: Any, answer: Any) -> None:
    module, recipe = layer(), DelayedScaling(amax_history_len=3)
    step(module, recipe, 8.0, "outside")
    before = {k: np.array(v) for k, v in module.state_dict().items()}
    bad = DelayedScaling(amax_history_len=3, amax_compute_algo=answer)
    with pytest.raises((ArgumentError, ZeroDivisionError), match=r"\[amax_compute_algo\] expected an Array|zero"):
        step(module, bad, 2.0, "outside")
    assert all(np.array_equal(before[k], np.asarray(v)) for k, v in module.state_dict().items())


def test_infinite_amax_of_a_failed_step_is_forgotten(device: Any) -> None:
    """Times 0 it would be NaN, which stays in a history for ever."""
    module, recipe = layer(), DelayedScaling(amax_history_len=3)

    def fail() -> None:
        with nf.autocast(recipe=recipe):
            module(full(np.inf))
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    step(module, recipe, 8.0, "outside")
    assert scales(module) == [56, 448]
    assert to_numpy(module._site.states["forward"].amax_history).tolist() == [[0, 0], [0, 0], [8, 1]]


def test_the_end_of_a_step_is_prepared_once(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the same states at the same addresses end it; the scales equal those of a fresh preparation."""
    made: list[int] = []
    original = update.prepare_amax_history_update

    def counted(histories: Any, *rest: Any, **options: Any) -> Any:
        made.append(len(histories))
        return original(histories, *rest, **options)

    monkeypatch.setattr(update, "prepare_amax_history_update", counted)
    module, fresh = layer(), layer()
    for length, amax in ((3, 8.0), (3, 2.0), (3, 1.0), (4, 1.0), (4, 4.0)):
        step(module, DelayedScaling(amax_history_len=length), amax, "outside")
    assert made == [1, 1, 1, 1]  # forward and backward, once for each pair of histories
    for length, amax in ((3, 8.0), (3, 2.0), (3, 1.0), (4, 1.0), (4, 4.0)):
        for state in fresh._site.states.values():
            state._update = None
        step(fresh, DelayedScaling(amax_history_len=length), amax, "outside")
    assert len(made) == 4 + 10
    assert all(scales(module, which) == scales(fresh, which) for which in ("forward", "backward"))


def test_amaxes_are_reduced_over_processes(device: Any) -> None:
    """Once per direction and step, all tensors together; another process saw 32 everywhere."""
    calls: list[list[float]] = []

    def group(amaxes: nf.Array) -> nf.Array:
        calls.append(amaxes.tolist())
        return nf.maximum(amaxes, 32.0)

    modules = [layer(), layer()]
    recipe = DelayedScaling(fp8_format=Format.E4M3)
    with nf.autocast(recipe=recipe, amax_reduction_group=group):
        y = modules[1](modules[0](full(8.0)))
    y.backward(full(4.0))
    assert calls == [[8, 1, 8, 1], [4, 4]]
    assert [scales(m) for m in modules] == [[14, 14]] * 2
    assert [scales(m, "backward") for m in modules] == [[14]] * 2
    step(modules[0], recipe, 64.0, "outside")  # without a group there is none
    step(modules[0], DelayedScaling(fp8_format=Format.E4M3, reduce_amax=False), 1.0, "inside",
         amax_reduction_group=group)  # fmt: skip
    assert len(calls) == 2
    with pytest.raises(ArgumentError, match=r"\[reduce_amax\] expected an Array"):
        step(modules[0], recipe, 1.0, "outside", amax_reduction_group=lambda a: a[:1])
    with pytest.raises(DTypeError, match="amax_reduction_group as a function"):
        nf.autocast(amax_reduction_group=3)  # type: ignore[arg-type]


def test_models_in_threads_equal_each_alone(device: Any) -> None:
    amaxes = ([8.0, 1.0, 3.0, 0.5], [0.5, 100.0, 7.0, 2.0])
    recipe = DelayedScaling(amax_history_len=3)

    def train(values: list[float], found: list[Any], barrier: threading.Barrier | None = None) -> None:
        module = layer()
        for v in values:
            if barrier is not None:
                barrier.wait(20)
            step(module, recipe, v, "outside")
        found.append((values[0], {k: np.asarray(v).tolist() for k, v in module.state_dict().items()}))

    alone: list[Any] = []
    for values in amaxes:
        train(values, alone)
    together: list[Any] = []
    barrier = threading.Barrier(2)
    threads = [  # in copies of this context: the default device of the test
        threading.Thread(target=copy_context().run, args=(train, values, together, barrier)) for values in amaxes
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(together, key=lambda f: f[0]) == sorted(alone, key=lambda f: f[0])


@pytest.mark.parametrize("between", [recipes.MXFP8BlockScaling(), None], ids=str)
def test_another_recipe_in_between_leaves_the_state(device: Any, between: recipes.Recipe | None) -> None:
    module, recipe = layer(), DelayedScaling(amax_history_len=3)
    step(module, recipe, 8.0, "outside")
    before = {k: np.array(v) for k, v in module.state_dict().items()}
    with nf.autocast(enabled=between is not None, recipe=between):
        y = module(full(100.0))
    y.backward(full(1.0))
    assert all(np.array_equal(before[k], np.asarray(v)) for k, v in module.state_dict().items())
    step(module, recipe, 4.0, "outside")
    assert scales(module) == [56, 448]


def test_another_format_keeps_the_range(device: Any) -> None:
    """E4M3 to E5M2 gradients and back: the scale follows the element's range, also through a saved state."""
    module = layer()
    step(module, DelayedScaling(fp8_format=Format.E4M3), 8.0, "outside")
    saved = {k: np.array(v) for k, v in module.state_dict().items()}
    fresh = layer()
    fresh.load_state_dict(saved)
    for m in (module, fresh):
        with nf.autocast(recipe=DelayedScaling()):
            m(full(8.0))
        assert scales(m, "backward") == [57344 / 8]
    old = layer()  # as it was before states had a version
    old.load_state_dict({k: v for k, v in saved.items() if not k.endswith(("fp8_max", "version"))})
    assert scales(old, "backward") == [56]
