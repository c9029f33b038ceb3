"""The conformance vectors: what their script makes, what other readers see, and what every device reproduces."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nvfp as nf
from nvfp.arrays.quantized import quantized
from nvfp.device import Device
from nvfp.dtypes.block import ExactBlocks
from nvfp.dtypes.dense import NARROW
from nvfp.dtypes.elements import ELEMENTS, Element
from nvfp.dtypes.formats import FORMATS, QuantDType
from nvfp.kernels._stochastic import Rng
from nvfp.kernels.quantize import quantize
from scripts import check_conformance as reader, make_conformance_vectors as make
from tests.devices import to_device
from tests.dtypes.block_inputs import public_blocks
from tests.dtypes.every_input import unit
from tests.structure.tree import ROOT

FOLDER = ROOT / make.FOLDER
ROWS = sorted(path.stem for path in FOLDER.glob("*.npz") if path.stem != "elements")
FIELDS = ("element", "block", "scale", "tensor_scale", "nonfinite", "power_of_two_scales", "scale_rule",
          "four_over_six", "per_row_tensor_scale")  # fmt: skip


@cache
def load(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def test_the_files_are_what_the_script_makes() -> None:
    """To the byte: another rule, input or setting shows here. Twice the same, on any day."""
    made, told = make.files(), "run python scripts/make_conformance_vectors.py"
    stored = {path.stem: path.read_bytes() for path in FOLDER.glob("*.npz")}
    assert set(made) == set(stored) == {"elements", "user_formats", *FORMATS}, told
    for name, arrays in made.items():
        assert make.npz(arrays) == make.npz(dict(arrays)) == stored[name], f"{name}.npz is stale: {told}"
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 1_500_000


def test_files_explain_themselves() -> None:
    for name in ("elements", *ROWS):
        about = str(load(name)["about"])
        for word in ("make_conformance_vectors.py", "version 1", "Apache-2.0", "docs/formats.md"):
            assert word in about
        assert all(value.dtype.kind in "USuf" for value in load(name).values())
    assert "conformance/" in (ROOT / "tests" / "data" / "README.md").read_text()


def settings_of(name: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(load(name)["cases"].item())
    return found


def test_every_choice_is_there() -> None:
    """What a row can be asked for: rules, overflow, rounding, the other axis, NVFP4's variants."""
    for name in FORMATS:
        cases = list(settings_of(name).values())
        assert {case["rounding"] for case in cases} == {"even", "toward_zero", "stochastic"}
        assert {case["overflow"] for case in cases} == {"saturate", "nonsat"}
        assert {case["nonfinite"] for case in cases} == {"saturate", "nan_block"}
        assert {case["axis"] for case in cases} >= ({-1} if FORMATS[name].block is None else {-1, 0})
        rules = {"ceil", "floor", "even"} if FORMATS[name].scale_family == "e8m0" else {"ceil"}
        assert {case["scale_rule"] for case in cases} == rules
        assert any(case["input"].endswith("bfloat16") for case in cases)
    cases = list(settings_of("nvfp4").values())
    assert {case["four_over_six"] for case in cases} == {None, "mae_256", "mse_256", "mae_448", "mse_448"}
    assert {str(case["block"]) for case in cases} == {"16", "[16, 16]"}
    assert {case["per_row_tensor_scale"] for case in cases} == {False, True}


def by_device(x: np.ndarray, fmt: QuantDType, case: dict[str, Any], device: Device) -> nf.QuantizedArray:
    """`nf.quantize`; for stochastic rounding the kernel below it, which takes the place in the random sequence."""
    options = {key: case[key] for key in ("axis", "overflow", "rounding")}
    if case["rounding"] != "stochastic":
        return nf.quantize(nf.asarray(x, device=device), fmt, **options, **case.get("given", {}))
    place = case["random"]
    rng = Rng(place["key"], place["ordinal"], to_device(np.asarray(place["step"], np.int64), device))
    return quantized(quantize(to_device(x, device), fmt, **options, rng=rng).side("row"))


@pytest.mark.parametrize("name", ROWS)
def test_devices_reproduce(device: Device, name: str) -> None:
    """Codes, scales, tensor scales and values, bit for bit."""
    arrays = load(name)
    for told, case in settings_of(name).items():
        block = case["block"]
        fields = {**{key: case[key] for key in FIELDS}, "block": tuple(block) if isinstance(block, list) else block}
        x = arrays[case["input"]]
        x = x.view(ml_dtypes.bfloat16) if case["input"].endswith(".bfloat16") else x
        q = by_device(x, QuantDType(told, **fields), case, device)
        mine: ExactBlocks = public_blocks(q)
        tensor_scale = arrays.get(f"{told}.tensor_scale")
        np.testing.assert_array_equal(mine.codes, arrays[f"{told}.codes"], err_msg=told)
        assert not reader.difference(mine.scale, arrays[f"{told}.scale"]), told
        assert not reader.difference(mine.tensor_scale, tensor_scale), told
        assert not reader.difference(nf.asnumpy(nf.dequantize(q)), arrays[f"{told}.values"]), told


@pytest.mark.parametrize("element", [e for e in ELEMENTS.values() if e.bits <= 8], ids=lambda e: e.name)
def test_devices_reproduce_casts(device: Device, element: Element) -> None:
    arrays, name = load("elements"), element.name
    rng = Rng(make.KEY, make.ORDINAL, to_device(np.asarray(make.STEP, np.int64), device))
    for key in (key for key in arrays if key.startswith(name) and key.count(".") == 3):
        source, overflow, rounding = key.split(".")[1:]
        x = arrays[f"{name}.{source}"]
        on: Any = nf.asarray(x, device=device)
        if rounding == "stochastic":
            one = to_device(np.asarray(1, np.float32), device)
            options: dict[str, Any] = {"scale": one, "overflow": overflow, "rounding": rounding, "rng": rng}
            mine = public_blocks(quantized(quantize(on.raw, unit(element), **options).side("row"))).codes
        elif element.dtype in NARROW:
            mine = nf.asnumpy(on.astype(element.dtype, overflow=overflow, rounding=rounding)).view(np.uint8)
        else:
            q = nf.quantize(on, unit(element), scale=1.0, overflow=overflow, rounding=rounding)
            mine = public_blocks(q).codes
        np.testing.assert_array_equal(mine, arrays[key], err_msg=key)


def test_a_reader_without_nvfp(capsys: pytest.CaptureFixture[str]) -> None:
    """scripts/check_conformance.py imports nothing of nvfp, decodes every case and quantizes MX by itself."""
    text = (ROOT / "scripts" / "check_conformance.py").read_text()
    assert "nvfp." not in text.split('"""', 2)[2]
    assert "import nvfp" not in text
    assert reader.main([str(FOLDER)]) == 0
    printed = capsys.readouterr().out
    assert "mxfp4: 18 cases decoded, 9 of them quantized" in printed
    assert "0 differences" in printed


def wrong_rule(x: np.ndarray, case: dict[str, Any], random: np.ndarray | None) -> Any:
    """A quantizer with the other scale rule."""
    other = {"ceil": "floor", "floor": "ceil"}.get(case["scale_rule"], "even")
    return reader.mx_quantize(x, {**case, "scale_rule": other}, random)


def test_the_reader_finds_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert reader.main([str(FOLDER), "--quantize", f"{__name__}:wrong_rule"]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"mxfp4 default.finite: scale, \d+ of \d+ entries differ\n", printed)
    assert "values" not in printed


def wide(x: np.ndarray, case: dict[str, Any], random: np.ndarray | None) -> Any:
    """A quantizer with codes of another dtype, scales of another shape and a third part too many."""
    found = reader.mx_quantize(x, case, random)
    return found and (found[0].astype(np.int64), found[1][..., None], np.ones((), np.float32))


def test_the_reader_tells_dtypes_and_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    assert reader.main([str(FOLDER), "--quantize", f"{__name__}:wide"]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"mxfp4 default.finite: codes, int64 (\(.*\)) in place of uint8 \1\n", printed)
    assert re.search(r"mxfp4 default.finite: scale, uint8 \(.*, 1\) in place of uint8 \(.*\)\n", printed)
    assert "mxfp4 default.finite: tensor_scale, float32 () in place of none\n" in printed
    a = np.array([1.0, np.nan, 0.0, 2.0], np.float32)
    assert reader.difference(a, np.array([1.0, -np.nan, -0.0, 3.0], np.float32)) == "2 of 4 entries differ"
    assert not any(reader.difference(part, part) for part in (a, a[:0], a[0], None))


def without_tensor_scale(x: np.ndarray, case: dict[str, Any], random: np.ndarray | None) -> Any:
    """A quantizer that forgets the third part."""
    found = reader.mx_quantize(x, case, random)
    return found and found[:2]


def test_the_reader_says_what_it_cannot_use(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert reader.main([str(FOLDER), "--quantize", f"{__name__}:without_tensor_scale"]) == 1
    assert "mxfp4 default.finite: 2 parts in place of 3" in capsys.readouterr().out
    for arguments, told in (([str(tmp_path)], "no vectors in"), (["--quantize", "json"], "MODULE:FUNCTION")):
        with pytest.raises(SystemExit, match="2"):
            reader.main(arguments)
        assert told in capsys.readouterr().err
    (tmp_path / "mine_of_reader.py").write_text("def none(x, settings, random): return None")
    command = [sys.executable, ROOT / "scripts" / "check_conformance.py", FOLDER, "--quantize", "mine_of_reader:none"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "mxfp4: 18 cases decoded, 0 of them quantized" in done.stdout


def test_packing_of_the_random_numbers() -> None:
    """The Philox numbers of the vectors are those of a case: one sequence, read as bytes or as pairs."""
    arrays = load("elements")
    assert arrays["philox.uint8"][:8].view("<u2").tolist() == arrays["philox.uint16"][:4].tolist()
    np.testing.assert_array_equal(load("mxfp4")["stochastic.finite.random"].ravel()[:64], arrays["philox.uint8"])
