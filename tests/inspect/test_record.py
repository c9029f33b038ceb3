"""`record`: every figure against `quant_error`, nothing when off, names, steps, and what it hands on."""

from __future__ import annotations

import json
import math
import threading
from contextvars import copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.dtypes.formats import FORMATS
from nvfp.errors import ArgumentError, DTypeError, StateError
from nvfp.inspect._words import Words, measure
from nvfp.inspect.recording import sites
from nvfp.kernels.hadamard import hadamard
from nvfp.kernels.quantize import quantize
from tests.devices import to_device, to_numpy
from tests.recipes.every import RECIPES

QUANTIZED = [name for name in RECIPES if name != "bf16"]


def values(shape: tuple[int, int]) -> np.ndarray:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=shape) * np.exp(3 * rng.normal(size=shape))).astype(np.float32)
    x[0, 0], x[3, 7], x[20, 2] = 0, np.inf, np.nan
    return x


def layer(**options: Any) -> nf.nn.Linear:
    return nf.nn.Linear(64, 48, dtype=nf.bfloat16, rng=nf.random.default_rng(0), **options)


def data(rows: int = 32) -> nf.Array:
    x = nf.random.default_rng(1).normal(size=(rows, 64), dtype=nf.bfloat16)
    x.requires_grad = True
    return x


def step(model: Any, x: nf.Array, recipe: Any) -> None:
    with nf.autocast(enabled=recipe is not None, recipe=recipe):
        y = model(x)
    (y * y).sum().backward()


@pytest.mark.parametrize("row", [*FORMATS.values(), nf.nvfp4.replace(per_row_tensor_scale=True)], ids=str)
def test_figures_are_those_of_quant_error(device: Any, row: Any) -> None:
    x = values((33, 50))
    if row.per_row_tensor_scale:
        x = np.nan_to_num(x, posinf=1.0)
    pair = quantize(to_device(x, device), row, row=True, col=True)
    words = Words(device)
    for side in (pair.row, pair.col):
        measure(to_device(x, device), side, words.row())
    read = words.read()
    for i, axis in enumerate((1, 0)):
        want, got = nf.quant_error(x, row, axis=axis), {name: column[i] for name, column in read.items()}
        assert 10 * math.log10(got["signal"] / got["noise"]) == pytest.approx(want.sqnr_db, abs=1e-9)
        assert (got["flushed"], got["saturated"]) == (round(want.flushed * x.size), round(want.saturated * x.size))
        assert x.size - got["finite"] == max(want.nonfinite, want.nonfinite_input)
        assert got["amax"] == np.abs(x[~np.isnan(x)] if row.nonfinite == "saturate" else x[np.isfinite(x)]).max()


def test_rotated_copies_are_measured_against_the_rotated_tensor(device: Any) -> None:
    x = np.random.default_rng(0).normal(size=(40, 64)).astype(np.float32)
    words, raw = Words(device), to_device(x, device)
    measure(raw, quantize(raw, nf.nvfp4, row=False, col=True, rotation="rht16").col, words.row())
    turned = to_numpy(hadamard(raw, axis=0))
    want = nf.quant_error(turned, nf.nvfp4, axis=0)
    got = {name: column[0] for name, column in words.read().items()}
    assert 10 * math.log10(got["signal"] / got["noise"]) == pytest.approx(want.sqnr_db, abs=1e-9)


@pytest.mark.parametrize("name", QUANTIZED)
def test_every_operand_of_every_recipe(device: Any, name: str) -> None:
    """The figures are those of the tensors that the step quantized; the step itself is not changed."""
    recipe, x = RECIPES[name], data()
    plain, model = layer(), layer()
    step(plain, x, recipe)
    expected = np.asarray(x.grad)
    x.grad = None
    with nf.inspect.record(model) as seen:
        step(model, x, recipe)
    if not recipe.linear_plan().dy.stochastic:
        assert np.array_equal(np.asarray(x.grad), expected)
        assert np.array_equal(np.asarray(model.weight.grad), np.asarray(plain.weight.grad))
    found = {(f.tensor, f.copy): f for f in seen.result}
    assert {tensor for tensor, _ in found} == {"x", "w", "dy"} and seen.result.steps == 1
    row = recipe.linear_plan().x.format
    if name != "fp8":  # delayed: the scale of the first step is 1
        assert found["x", "row"].sqnr_db == pytest.approx(nf.quant_error(x, row).sqnr_db, abs=1e-9)
        assert found["x", "row"].underflow == pytest.approx(nf.quant_error(x, row).flushed)
    assert found["x", "row"].amax == np.abs(np.asarray(x, np.float32)).max()
    assert ("x", "col") in found or row.square
    assert all(f.sqnr_db > 10 for f in seen.result)


def test_off_it_leaves_nothing(device: Any) -> None:
    """No watch, no hook and (on CUDA) no launch more than before; steps that are not due launch nothing either."""
    from nvfp.autograd import region

    model, x, hooks = layer(), data(), dict(region._hooks)
    recipe = RECIPES["mxfp8"]

    def launched() -> int:
        if device.type == "cpu":
            step(model, x, recipe)
            return 0
        from nvfp.kernels.cuda._launch import count_launches

        with count_launches() as count:
            step(model, x, recipe)
        return count.n

    launched()
    before = launched()
    with nf.inspect.record(model, every=2) as seen:
        launched()
        assert launched() == before  # not due
    assert launched() == before
    assert len({s.step for s in seen.result.samples}) == 1 and seen.result.steps == 2
    assert all(site.watch is None for _, site in sites(model)) and region._hooks == hooks


@pytest.mark.gpu
def test_nothing_waits_while_it_records() -> None:
    """A recorded step is through on the host while the GPU still works on what came before it."""
    import cupy

    model, x, recipe = layer(), data(), RECIPES["nvfp4-default"]
    with nf.inspect.record(model):
        step(model, x, recipe)  # kernels load
    big = nf.zeros((8192, 8192), dtype=nf.bfloat16)
    out = nf.matmul(big, big)
    cupy.cuda.runtime.deviceSynchronize()
    with nf.inspect.record(model) as seen:
        for _ in range(500):  # some 0.7 s of an H200
            out = nf.matmul(big, big)
        before = cupy.cuda.Event(disable_timing=True)
        before.record()
        step(model, x, recipe)
        assert not before.done
    assert len(seen.result) > 3 and out.shape == big.shape


def test_a_step_that_a_graph_captures_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = layer(), data()
    with nf.inspect.record(model), nf.autocast(recipe=RECIPES["mxfp8"]):
        monkeypatch.setattr("nvfp.inspect.recording._capturing", lambda raw: True)
        with pytest.raises(StateError, match="a step that runs eagerly, got one that a CUDA graph captures"):
            model(x)


def test_names_and_outputs_of_a_transformer_layer(device: Any) -> None:
    rng = nf.random.default_rng(0)
    model = nf.nn.TransformerLayer(64, 128, 4, attention_dropout=0.0, hidden_dropout=0.0, dtype=nf.bfloat16, rng=rng)
    x = rng.normal(size=(2, 16, 64), dtype=nf.bfloat16)
    with nf.inspect.record(model, outputs=True) as seen:
        step(model, x, RECIPES["fp8-current"])
    names = {f.module for f in seen.result}
    assert names == {f"self_attention.{n}" for n in ("layernorm_qkv", "proj")} | {
        f"layernorm_mlp.fc{n}" for n in (1, 2)
    }
    outputs = [f for f in seen.result if f.tensor == "y"]
    assert len(outputs) == 4 and all(math.isnan(f.sqnr_db) and f.amax > 0 and f.nonfinite == 0 for f in outputs)
    assert not any(f.tensor == "y" for f in seen.result.worst())


def test_recomputed_segments_are_recorded_once(device: Any) -> None:
    model, x = layer(), data()
    with nf.inspect.record(model) as seen:
        with nf.autocast(recipe=RECIPES["fp8-current"]):
            y = nf.checkpoint(model, x)
        y.sum().backward()
    assert {(f.tensor, f.samples) for f in seen.result} == {("x", 1), ("w", 1), ("dy", 1)}


@pytest.mark.parametrize("name", QUANTIZED)
def test_weights_born_quantized(device: Any, name: str, tmp_path: Path) -> None:
    """What is known without a tensor to compare with, once per forward pass; it never counts as the worst."""
    recipe = RECIPES[name]
    with nf.quantized_model_init(recipe=recipe):
        model = layer(bias=False)
    with nf.inspect.record(model) as seen:
        for _ in range(2):
            step(model, data(), recipe)
            with nf.autocast(recipe=recipe):
                nf.checkpoint(model, data()).sum().backward()
    (weight,) = (f for f in seen.result if f.tensor == "w")
    held = np.asarray(model.weight, np.float32)
    assert (weight.copy, weight.samples, weight.elements) == ("row", 4, 4 * held.size)
    assert (weight.amax, weight.nonfinite, weight.dtype) == (np.abs(held).max(), 0, str(model.weight.dtype))
    scales = nf.asnumpy(model.weight.scale).astype(np.float32)
    if model.weight.tensor_scale is not None:
        scales = scales * np.asarray(model.weight.tensor_scale, np.float32)
    assert (weight.scale_min, weight.scale_max) == (scales.min(), scales.max())
    unknown = (weight.sqnr_db, weight.underflow, weight.overflow, weight.signal, weight.noise)
    assert all(math.isnan(v) for v in unknown) and not weight.compared
    assert "w" not in {f.tensor for f in seen.result.worst()}
    (line,) = (line for line in repr(seen.result).splitlines() if f" {weight.dtype} " in line and " w " in line)
    assert "nan" not in line and line.rstrip().endswith("-")
    seen.result.plot(tmp_path / "seen.png")
    assert json.loads(seen.result.to_json())["tensors"]


def test_results_that_leave_quantized(device: Any) -> None:
    """Recorded where they are made, and not as the input of that layer; the next layer tells what it was given."""
    recipe = nf.recipes.Float8CurrentScaling()
    pair = nf.nn.Sequential(*(nf.nn.Linear(64, 64, dtype=nf.bfloat16, rng=nf.random.default_rng(i)) for i in (0, 1)))
    x = data()
    with nf.inspect.record(pair) as seen, nf.autocast(recipe=recipe):
        h = pair[0](x, fp8_output=True)
        y = pair[1](h, fp8_grad=True)
        (y * y).sum().backward()
    found = {(f.module, f.tensor): f for f in seen.result}
    assert {k for k, f in found.items() if f.compared} == {
        ("0", "x"), ("0", "w"), ("0", "y"), ("1", "w"), ("1", "dy"), ("1", "dx")
    }  # fmt: skip
    assert {k for k, f in found.items() if not f.compared} == {("1", "x"), ("0", "dy")}
    assert all(f.samples == 1 for f in seen.result)
    assert found["1", "x"].amax == np.abs(np.asarray(h, np.float32)).max()
    assert found["0", "x"].amax == np.abs(np.asarray(x, np.float32)).max()


def test_steps_and_samples(device: Any) -> None:
    """Microbatches are samples of one step; a loop without backward ends its steps by hand; recorders nest."""
    model, x = layer(), data()
    with nf.inspect.record(model) as outer, nf.no_grad(), nf.autocast(recipe=RECIPES["mxfp8"]):
        model(x)
        with nf.inspect.record(model, every=2) as inner:
            model(x)
            for recorder in (inner, outer):
                recorder.next_step()
            model(x)
        model(x)
    assert [s.step for s in outer.result.samples if s.tensor == "w"] == [0, 0, 1, 1]
    assert [s.step for s in inner.result.samples if s.tensor == "w"] == [0]
    weight = next(f for f in outer.result if f.tensor == "w")
    assert (weight.samples, weight.elements, weight.step) == (4, 4 * 64 * 48, None)
    one = outer.result.samples[1]
    assert weight.sqnr_db == pytest.approx(one.sqnr_db) and weight.underflow == pytest.approx(one.underflow)


def test_steps_are_the_models_own(device: Any) -> None:
    """Other models' backward passes end none, in other threads, and only one here; recomputation begins none."""
    model, other, recipe = layer(), layer(), RECIPES["mxfp8"]

    def train_other() -> None:
        step(other, data(), recipe)

    with nf.inspect.record(model) as seen:
        for _ in range(2):
            with nf.autocast(recipe=recipe):
                y = nf.checkpoint(model, data())
            thread = threading.Thread(target=copy_context().run, args=(train_other,))
            thread.start()
            thread.join()
            assert seen.result.steps == len({f.step for f in seen.result.samples})
            y.sum().backward()
        with nf.autocast(recipe=recipe):
            y = nf.checkpoint(model, data())
        train_other()  # ends the step: a pass of this thread
        y.sum().backward()
        nf.sin(data()).sum().backward()
    assert seen.result.steps == 3
    assert [f.step for f in seen.result.samples if f.tensor == "dy"][:4] == [0, 0, 1, 1]


def test_it_finds_what_overflows_and_what_is_not_finite(device: Any) -> None:
    """Under delayed scaling a jump by 100 is clipped; a NaN is counted."""
    model, recipe = layer(), nf.recipes.DelayedScaling(amax_history_len=1)
    x = data()
    step(model, x, recipe)
    with nf.inspect.record(model) as seen:
        step(model, x * 100.0, recipe)
    clipped = next(f for f in seen.result if f.tensor == "x")
    assert clipped.overflow > 0.5 and clipped.sqnr_db < 3
    spoiled = np.asarray(x, np.float32)
    spoiled[2, 3] = np.nan
    with nf.inspect.record(model) as seen, nf.autocast(recipe=recipe):
        model(nf.asarray(spoiled).astype(nf.bfloat16))
    assert next(f for f in seen.result if f.tensor == "x").nonfinite == 1


def test_small_gemms_are_told(device: Any) -> None:
    model = nf.nn.LayerNormMLP(64, 256, dtype=nf.bfloat16, rng=nf.random.default_rng(0))
    x = data()
    with nf.inspect.record(model) as seen, nf.autocast(recipe=RECIPES["mxfp8"], min_gemm=64 * 256 * 32 + 1):
        model(x)
    assert len(seen.result) == 0 and seen.result.dense == {"fc1": 1, "fc2": 1}
    assert repr(seen.result).endswith("in the input's dtype: fc1 (1 times), fc2 (1 times)")


def test_json_table_and_picture(tmp_path: Path) -> None:
    model, x = layer(), data()
    with nf.inspect.record(model) as seen:
        step(model, x, RECIPES["nvfp4-default"])
    result = seen.result
    text = result.to_json(tmp_path / "seen.json")
    assert (tmp_path / "seen.json").read_text() == text + "\n"
    loaded = json.loads(text)
    assert len(loaded["tensors"]) == len(result) and loaded["tensors"][0]["sqnr_db"] == result[0].sqnr_db
    assert {*loaded} == {"steps", "dense", "tensors", "samples"}
    assert result._repr_html_().count("<tr>") == len(result) + 1 == len(repr(result).splitlines())
    pytest.importorskip("matplotlib").use("Agg")
    figure = result.plot(tmp_path / "seen.png", most=3)
    assert (tmp_path / "seen.png").stat().st_size > 5000 and len(figure.axes[0].get_yticks()) == 3
    with pytest.raises(ArgumentError, match="a recording with quantized tensors"):
        nf.inspect.Recording([], steps=0, dense={}).plot()


def test_refusals() -> None:
    with pytest.raises(DTypeError, match=r"\[record\] expected a Module, got int"):
        nf.inspect.record(3)  # type: ignore[arg-type]
    for every in (0, True, 1.5):
        with pytest.raises(ArgumentError, match="every as a positive int"):
            nf.inspect.record(layer(), every=every)  # type: ignore[arg-type]
    recorder = nf.inspect.record(layer())
    with recorder, pytest.raises(StateError, match="not entered"):
        recorder.__enter__()


def test_an_exception_takes_the_watches_away() -> None:
    model = layer()
    with pytest.raises(ZeroDivisionError), nf.inspect.record(model):
        raise ZeroDivisionError
    assert all(site.watch is None for _, site in sites(model))
