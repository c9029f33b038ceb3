"""Every declared kernel of the quantize family compiles for Hopper as it should, and the command that does it works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nvfp.kernels import compile as command
from nvfp.kernels.cuda import _loader
from nvfp.kernels.cuda._loader import Instance
from nvfp.kernels.cuda.instances import declared, instances, one_per_source
from tests.kernels.cuda.nvrtc import need_nvrtc, sass

STEMS = ("amax", "cast", "dequantize", "quantize", "scale_layout", "transpose")
DECLARED = [instance for stem in STEMS for instance in instances(stem)]
# Kernels that move their data 16 bytes at a time.
WIDE = {
    "amax_flat",
    "cast_flat",
    "dequantize_rows",
    "quantize_tensor",
    "quantize_block1d",
    "quantize_block2d",
    "quantize_block128",
    "quantize_pair",
}


@pytest.mark.parametrize("instance", DECLARED, ids=str)
def test_hopper_code(instance: Instance, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = sass(instance, "sm_90a", tmp_path_factory.getbasetemp())
    assert f"Function : {instance.name}" in text
    # What the compiler brings for integer division, and for special cases of a correctly rounded one, may flush.
    division = r"F2I|FADD|FSETP" if instance.source.startswith("quantize") else "F2I"
    flushing = {word for word in re.findall(r"\w+[\w.]*\.FTZ", text) if not re.match(division, word)}
    assert not flushing, f"flushes subnormals: {flushing}"
    if not instance.source.startswith("quantize"):  # a division is made of fused products
        assert "FFMA" not in text, "contracts a product and a sum"
    assert not {"LDL", "STL"} & set(text.replace(".", " ").split()), "uses local memory"
    if instance.name in WIDE:
        assert ".128" in text, "moves less than 16 bytes at a time"
    row = dict(instance.defines).get("ELEMENT" if instance.source != "cast.cu" else "TARGET", "")
    if instance.source.startswith("quantize_") and str(row).startswith("8,4,3"):
        assert "F2FP.SATFINITE.E4M3" in text, "converts in software"


@pytest.mark.parametrize("instance", one_per_source(DECLARED), ids=str)
def test_no_warnings_and_no_spills(instance: Instance) -> None:
    need_nvrtc()
    for arch in ("sm_80", "sm_100f"):
        _, log = _loader.compile_cubin(instance, arch)
        assert not log, log
        used = command.usage(instance, arch)
        assert used.registers > 0
        assert (used.stack, used.spills) == (0, 0)


def test_blackwell_converts_fp4_in_hardware(tmp_path: Path) -> None:
    e2m1 = "4,2,1,1,7,7,7,4"
    fp4 = [i for i in DECLARED if i.name == "quantize_pair" and dict(i.defines)["ELEMENT"] == e2m1]
    fp4 = [i for i in fp4 if not dict(i.defines)["ROUNDING"]]  # random numbers are added in software
    for instance in fp4:
        assert "F2FP.SATFINITE.E2M1" in sass(instance, "sm_100f", tmp_path)
    assert fp4


def test_the_list_is_small() -> None:
    assert len(declared(instances())) <= 150
    assert len(set(instances())) == len(instances())
    assert {i.source for i in one_per_source(instances())} == {p.name for p in _loader.SOURCES.glob("*.cu")}


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list", "--one-per-source"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(one_per_source(instances()))
    assert any(line.startswith("cast.cu:") for line in lines)


def test_fills_the_cache_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need_nvrtc()
    monkeypatch.setenv("NVFP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(command, "has", lambda package: False)  # plain progress, no CuPy: sm_90a
    assert command.main(["--stem", "scale_layout", "--fail-on-spills"]) == 0
    assert "registers" in capsys.readouterr().out
    monkeypatch.setattr(_loader, "compile_cubin", lambda *a: pytest.fail("not cached"))
    for instance in instances("scale_layout"):
        assert _loader.cubin(instance, "sm_90a")
    _loader._store.cache_clear()


def test_failures_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    need_nvrtc()
    monkeypatch.setenv("NVFP_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(command, "instances", lambda stem: [Instance("cast.cu", "cast_flat")])
    assert command.main(["--arch", "sm_90a"]) == 1
    assert "T_IN" in capsys.readouterr().err
    monkeypatch.setattr(command, "usage", lambda instance, arch: command.Usage(255, 8, 64))
    monkeypatch.setattr(command, "instances", lambda stem: instances("scale_layout")[:1])
    assert command.main(["--arch", "sm_90a", "--report"]) == 0
    assert command.main(["--arch", "sm_90a", "--fail-on-spills"]) == 1
    _loader._store.cache_clear()
