"""`autocast`: nesting, exceptions, reuse, threads (handed case H19 a-c)."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp import recipes
from nvfp.errors import ArgumentError, DTypeError
from nvfp.recipes.context import autocast, current_recipe

A = recipes.DelayedScaling(margin=1)
B = recipes.Float8CurrentScaling()


def test_inner_disabled_then_outer_again() -> None:  # H19 a
    with autocast(enabled=True, recipe=A):
        with autocast(enabled=False):
            assert current_recipe() is None
        assert current_recipe() is A
    assert current_recipe() is None


def test_exception_in_inner_restores_outer() -> None:  # H19 b
    with autocast(enabled=True, recipe=A):
        with pytest.raises(ValueError, match="inner"), autocast(enabled=True, recipe=B):
            raise ValueError("inner")
        assert current_recipe() is A
    assert current_recipe() is None


def test_one_object_inside_itself() -> None:  # H19 c
    context = autocast(enabled=True, recipe=A)
    with context:
        with context:
            assert current_recipe() is A
        assert current_recipe() is A
    assert current_recipe() is None
    with context:
        assert current_recipe() is A
    assert current_recipe() is None


def quantizes_currently() -> bool:
    """Whether a layer called here runs under current scaling: 17 then ties to 16."""
    layer = nf.nn.Linear(2, 2, bias=False)
    layer.load_state_dict({"weight": np.eye(2, dtype=np.float32)})
    y = np.asarray(layer(nf.asarray([[17.0, 448.0]])))
    return bool(np.allclose(y, [[16, 448]], rtol=1e-6))


def test_h19_layers_follow_the_context(device: Any) -> None:
    context = autocast(enabled=True, recipe=B)
    with context:
        with autocast(enabled=False):
            assert not quantizes_currently()
        assert quantizes_currently()  # a
        with pytest.raises(ValueError, match="inner"), autocast(enabled=True, recipe=A):
            raise ValueError("inner")
        assert quantizes_currently()  # b
        with context:
            assert quantizes_currently()
        assert quantizes_currently()  # c
    assert not quantizes_currently()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("fmt", [recipes.Format.E4M3, recipes.Format.HYBRID], ids=str)
def test_h19_recompute_has_the_precision_of_the_first_run(device: Any, fmt: recipes.Format, whole: bool) -> None:  # d
    layer = nf.nn.Linear(2, 2, bias=False)
    layer.load_state_dict({"weight": np.eye(2, dtype=np.float32)})
    x = nf.asarray([[17.0, 448.0]], requires_grad=True)
    with autocast(recipe=recipes.Float8CurrentScaling(fmt)):
        y = nf.checkpoint(layer, x) if whole else layer(x)
    (y * y / 2).sum().backward()  # outside: 17 would stay 17 here
    for found in (y, x.grad):  # the weight's decode factor fl(1/448) is not exact
        assert np.asarray(found).ravel().tolist() == pytest.approx([16, 448], rel=1e-6)


def test_one_object_in_two_places() -> None:
    context = autocast(enabled=True, recipe=A)
    with autocast(enabled=True, recipe=B):
        with context:
            assert current_recipe() is A
        assert current_recipe() is B


def test_threads_do_not_see_each_other() -> None:
    seen: list[object] = []
    with autocast(enabled=True, recipe=A):
        thread = threading.Thread(target=lambda: seen.append(current_recipe()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_one_object_shared_by_threads() -> None:
    context = autocast(enabled=True, recipe=A)
    barrier = threading.Barrier(2)
    results: list[bool] = []

    def work() -> None:
        for _ in range(50):
            with context:
                barrier.wait(10)
                results.append(current_recipe() is A)
            results.append(current_recipe() is None)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 200 and all(results)


def test_recipe_type_is_checked() -> None:
    with pytest.raises(DTypeError, match=r"\[autocast\] expected recipe=a Recipe"):
        autocast(enabled=True, recipe="fp8")  # type: ignore[arg-type]


@pytest.mark.parametrize("enabled", [A, None, 1, "no"], ids=str)
def test_enabled_is_a_bool(enabled: Any) -> None:
    """``autocast(recipe)`` would run under the default recipe."""
    with pytest.raises(ArgumentError, match="recipe=" if enabled is A else "True or False"):
        autocast(enabled)


def test_default_recipe_on_the_cpu() -> None:
    with autocast():
        assert isinstance(current_recipe(), recipes.Recipe)
