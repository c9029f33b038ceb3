"""docs/porting-from-te.md is current, and every row of it is true."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import nvfp as nf
from docs.make_porting import DEFAULTS, LAYERS, PAGE, Layer, render, rows


def make(name: str, **options: Any) -> nf.nn.Module:
    made: nf.nn.Module = getattr(nf.nn, name)(*LAYERS[name].sizes, device="cpu", **options)
    return made


def test_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m docs.make_porting"


@pytest.mark.parametrize("name", LAYERS)
def test_every_argument_is_named_once_and_those_taken_are_parameters(name: str) -> None:
    layer: Layer = LAYERS[name]
    named = [*layer.same.split(), *layer.differs, *layer.unread.split(), *layer.refused]
    assert len(named) == len(set(named)) == len(rows(layer))
    parameters = inspect.signature(getattr(nf.nn, name).__init__).parameters
    assert {*layer.same.split(), *layer.differs} <= set(parameters)


@pytest.mark.parametrize("name", LAYERS)
def test_what_has_no_effect_is_taken(name: str) -> None:
    make(name, **{argument: object() for argument in LAYERS[name].unread.split()})


@pytest.mark.parametrize(("name", "argument"), [(n, a) for n, layer in LAYERS.items() for a in layer.refused])
def test_what_is_refused_raises_its_error_by_name(name: str, argument: str) -> None:
    value, error = LAYERS[name].refused[argument]
    with pytest.raises(getattr(nf.errors, error), match=argument):
        make(name, **{argument: value})


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_refused_passes_at_te_s_default(name: str) -> None:
    defaults = {argument: DEFAULTS[argument] for argument in LAYERS[name].refused}
    make(name, **defaults)
    if name in ("LayerNorm", "RMSNorm"):
        make(name, **{**defaults, "sequence_parallel": None})


def test_differences_that_are_errors_are_errors() -> None:
    with pytest.raises(nf.errors.NotBuiltError, match="clamped_swiglu"):
        make("LayerNormMLP", activation="clamped_swiglu")
    for name, layer in LAYERS.items():
        with pytest.raises((nf.errors.DeviceError, nf.errors.ArgumentError), match="meta"):
            getattr(nf.nn, name)(*layer.sizes, device="meta")
