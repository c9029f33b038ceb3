"""Switches and optional packages."""

from __future__ import annotations

import sys
import types

import pytest

from nvfp import config
from nvfp.errors import ArgumentError, MissingDependencyError
from nvfp.optional import has, need


def test_values_are_read_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVFP_GEMM_CACHE", raising=False)
    assert config.get("NVFP_GEMM_CACHE") == "256"
    monkeypatch.setenv("NVFP_GEMM_CACHE", "8")
    assert config.number("NVFP_GEMM_CACHE") == 8
    monkeypatch.setenv("NVFP_GEMM_CACHE", " 2 ")
    assert config.get("NVFP_GEMM_CACHE") == "2"
    assert config.number("NVFP_GEMM_CACHE") == 2
    monkeypatch.setenv("NVFP_GEMM_CACHE", " ")
    assert config.number("NVFP_GEMM_CACHE") == 256


@pytest.mark.parametrize("text", ["x", "0", "-1", "1.5"])
def test_numbers_are_checked(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("NVFP_NUM_THREADS", text)
    with pytest.raises(ArgumentError, match=r"\[NVFP_NUM_THREADS\] expected a positive whole number"):
        config.number("NVFP_NUM_THREADS")


@pytest.mark.parametrize(
    ("text", "on"), [("1", True), ("yes", True), ("0", False), ("", False), ("False", False), ("no", False)]
)
def test_flags(monkeypatch: pytest.MonkeyPatch, text: str, on: bool) -> None:
    monkeypatch.setenv("NVFP_DEBUG", text)
    assert config.flag("NVFP_DEBUG") is on


def test_an_unknown_switch_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        config.get("NVFP_NO_SUCH_SWITCH")


def test_need_names_the_extra() -> None:
    with pytest.raises(MissingDependencyError, match=r"pip install 'nvfp\[cuda13\]'") as caught:
        need("nvfp_no_such_package", extra="cuda13")
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_need_finds_what_was_installed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDependencyError):
        need("nvfp_later", extra="x")
    later = types.ModuleType("nvfp_later")
    monkeypatch.setitem(sys.modules, "nvfp_later", later)
    assert need("nvfp_later", extra="x") is later
    need.cache_clear()


def test_has_imports_nothing() -> None:
    assert has("this") is True
    assert "this" not in sys.modules
    assert has("nvfp_no_such_package") is False
    assert has("nvfp_no_such_package.part") is False
