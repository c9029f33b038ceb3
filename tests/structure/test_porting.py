"""docs/porting-from-te.md is current, and every row of it is true."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import nvfp as nf
from docs.make_porting import DEFAULTS, LAYERS, OTHERS, PAGE, Layer, forward_rows, render, rows


def make(name: str, **options: Any) -> nf.nn.Module:
    made: nf.nn.Module = getattr(nf.nn, name)(*LAYERS[name].sizes, device="cpu", **options)
    return made


def call(name: str, **options: Any) -> Any:
    """Run a layer of the table on some input."""
    x = nf.ones((2, 3, 16), device="cpu")
    if name == "DotProductAttention":
        return make(name)(*(x.reshape((2, 3, 2, 8)),) * 3, **options)
    return make(name)(x, **options)


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
def test_arguments_of_forward(name: str) -> None:
    layer = LAYERS[name]
    named = [*layer.forward.split(), *layer.forward_differs, *layer.forward_refused]
    assert len(named) == len(set(named)) == len(forward_rows(layer))
    differs = {name for name, how in layer.forward_differs.items() if not how.startswith("not an argument")}
    own = {*layer.forward.split(), *differs} - {"inp", "fast_zero_fill"}
    known = set(inspect.signature(getattr(nf.nn, name).forward).parameters)
    if "attention" in known:  # the rest goes to the attention itself
        known |= set(inspect.signature(nf.nn.DotProductAttention.forward).parameters)
    assert own <= known
    if "fast_zero_fill" in layer.forward:
        call(name, fast_zero_fill=False)


@pytest.mark.parametrize(("name", "argument"), [(n, a) for n, layer in LAYERS.items() for a in layer.forward_refused])
def test_what_forward_refuses_raises_its_error_by_name(name: str, argument: str) -> None:
    value, error = LAYERS[name].forward_refused[argument]
    with pytest.raises(getattr(nf.errors, error), match=argument):
        call(name, **{argument: value})


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_layer(name: str) -> None:
    same, differs = OTHERS[name]
    kind: Any = nf
    for part in name.split("."):
        kind = getattr(kind, part)
    parameters = set(inspect.signature(kind).parameters)
    assert set(same.split()) <= parameters
    assert {k for k, how in differs.items() if how.startswith("not an argument")}.isdisjoint(parameters)
    for argument in {"fp8_dpa", "fp8_mha"}.intersection(same.split()):
        needed = {"qfactory": print} if name.endswith("CustomRecipe") else {}
        with pytest.raises(nf.errors.NotBuiltError, match=argument):
            kind(**needed, **{argument: True})


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


@pytest.mark.parametrize("name", [name for name, layer in LAYERS.items() if "device" in layer.differs])
def test_deferred_values(name: str) -> None:
    module = getattr(nf.nn, name)(*LAYERS[name].sizes, device="meta")
    with pytest.raises(nf.errors.StateError, match="reset_parameters"):
        module(nf.ones((2, 3, 16), device="cpu"))
    module.reset_parameters(device="cpu")
    module(nf.ones((2, 3, 16), device="cpu"))
