"""`autocast`: nesting, exceptions, reuse, threads (handed case H19 a-c)."""

from __future__ import annotations

import threading

import pytest

from nvfp import recipes
from nvfp.errors import DTypeError
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


def test_default_recipe_on_the_cpu() -> None:
    with autocast():
        assert isinstance(current_recipe(), recipes.Recipe)
