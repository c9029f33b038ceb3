"""Drawn shapes, strides, rows and values against the exact twin; and threads, processes and repetition."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numba
import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.block import dequantize_exact, quantize_exact
from nvfp.dtypes.conventions import CONVENTIONS, PLAIN
from nvfp.dtypes.formats import QuantDType, mxfp8, nvfp4
from nvfp.dtypes.stochastic import COL_LANE, ROW_LANE, random_numbers
from nvfp.errors import ArgumentError, DTypeError
from nvfp.kernels._check import check_format
from nvfp.kernels._stochastic import Rng
from nvfp.kernels.cpu._njit import njit
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.quantize import quantize
from tests.devices import to_device
from tests.kernels.quantized import BUILT, DTYPES, F32, MADE, check_operand, nvfp4_2d, same_bits, values

# Bits of float32 numbers where rules part: zeros, subnormals, powers of two and their neighbours, NaN, inf.
_SPECIAL = [0, 1, 0x400000, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F800001, 0x3FE00000, 0x40C00000, 0x43E00000, 0x43E00001,
            0x47600000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7F800001]  # fmt: skip


@st.composite
def arrays(draw: Any) -> np.ndarray:
    """A small array of any float dtype, some of its values special, seen through random strides."""
    shape = tuple(draw(st.lists(st.integers(0, 40), min_size=1, max_size=3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    steps = draw(st.lists(st.sampled_from([1, 1, 2, -1, -3]), min_size=len(shape), max_size=len(shape)))
    order = draw(st.permutations(range(len(shape))))
    whole = tuple(n * abs(s) for n, s in zip(shape, steps, strict=True))
    bits = rng.integers(0, 2**32, whole, np.uint32) if draw(st.booleans()) else None
    x = rng.standard_normal(whole).astype(F32) if bits is None else bits.view(F32)
    odd = rng.random(whole) < draw(st.sampled_from([0.0, 0.02, 0.5]))
    sign = rng.integers(0, 2, whole, np.uint32) << np.uint32(31)
    x = np.where(odd, (rng.choice(np.array(_SPECIAL, np.uint32), whole) | sign).view(F32), x)
    with np.errstate(over="ignore", invalid="ignore"):
        x = x.astype(draw(st.sampled_from(DTYPES)))
    return x[tuple(slice(None, None, s) for s in steps)].transpose(order)


@hypothesis.given(x=arrays(), data=st.data())
@hypothesis.settings(max_examples=200, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_anything(device: Device, x: np.ndarray, data: Any) -> None:
    # CUDA compiles kernels for each row and input dtype; the CPU none.
    fmt = data.draw(st.sampled_from((*BUILT, *MADE) if device.type == "cpu" else BUILT))
    across = (fmt.block_shape or (1, 1))[0]
    axes = range(x.ndim - 2, x.ndim) if across > 1 else range(x.ndim)
    hypothesis.assume(across == 1 or x.ndim > 1)
    axis = data.draw(st.sampled_from(axes))
    exact = quantize_exact(x, fmt, axis=axis)
    made = quantize(to_device(x, device), fmt, axis=axis).row
    assert made is not None
    check_operand(made, exact, fmt, axis)
    dtype = data.draw(st.sampled_from(DTYPES))
    with np.errstate(over="ignore"):
        assert same_bits(
            dequantize(made, dtype), np.array(dequantize_exact(exact, fmt, x.shape, axis, dtype), order="C")
        )


@st.composite
def formats(draw: Any) -> QuantDType:
    """A row of any fields that go together."""
    scale = draw(st.sampled_from(["float8_e8m0fnu", "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32",
                                  "float6_e3m2fn", "float4_e2m1fn"]))  # fmt: skip
    fields: dict[str, Any] = {
        "element": draw(st.sampled_from(["float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn",
                                         "float4_e2m1fn", "int8", "int4"])),
        "block": draw(st.integers(1, 40) | st.tuples(st.integers(1, 9), st.integers(1, 9)) | st.none()),
        "tensor_scale": draw(st.booleans()), "nonfinite": draw(st.sampled_from(["nan_block", "saturate"])),
        "scale_rule": draw(st.sampled_from(["ceil", "floor", "even"])) if scale == "float8_e8m0fnu" else "ceil",
        "power_of_two_scales": scale == "float32" and draw(st.booleans()),
        "per_row_tensor_scale": draw(st.booleans()),
    }  # fmt: skip
    if draw(st.booleans()):
        searched = draw(st.sampled_from([None, "mae_256", "mse_448"]))
        fields.update(element="float4_e2m1fn", tensor_scale=True, four_over_six=searched)
        scale = "float8_e4m3fn"
    try:
        fmt = QuantDType(scale=scale, **fields)  # type: ignore[arg-type]
        check_format("quantize", fmt)
    except ArgumentError:
        hypothesis.reject()
    return fmt


_WORDS = [1.0, 37.5, 0.003, 2.0**-149, 3e-39, 1e-30, 1e30, 3.4e38, 0.0, np.inf, np.nan]


@hypothesis.given(x=arrays(), fmt=formats(), data=st.data())
@hypothesis.settings(
    max_examples=50, suppress_health_check=[hypothesis.HealthCheck.filter_too_much, hypothesis.HealthCheck.too_slow]
)
def test_any_format_and_any_options(x: np.ndarray, fmt: QuantDType, data: Any) -> None:
    """Both sides under drawn words, rounding, overflow and conventions. (CUDA would compile each of these rows.)"""
    across, draw = (fmt.block_shape or (1, 1))[0], data.draw
    hypothesis.assume(across == 1 or x.ndim > 1)
    axis = draw(st.sampled_from(range(x.ndim - 2, x.ndim) if across > 1 else range(x.ndim)))
    options: dict[str, Any] = {"overflow": draw(st.sampled_from(["saturate", "nonsat"]))}
    word = np.array(draw(st.sampled_from(_WORDS)), F32)
    one_level = fmt.tensor_scale and not fmt.per_row_tensor_scale
    names = [*(("amax",) if one_level or fmt.block is None else ()), *(("tensor_scale",) if one_level else ())]
    names += ["scale"] if fmt.block is None and fmt.scale_family == "float32" else []
    name = draw(st.sampled_from([None, *names]))
    options.update({} if name is None else {name: word})
    stacks = [c.stack for c in CONVENTIONS if c.covers(fmt) and (not fmt.leveled or c.steps == PLAIN)]
    stack = draw(st.sampled_from([None, *stacks]))
    if stack is not None:
        options["convention"] = stack
    elif not fmt.leveled:
        options["rounding"] = draw(st.sampled_from(["even", "toward_zero", "stochastic"]))
    random, rng = {}, {}
    if options.get("rounding") == "stochastic":
        rng = {"rng": Rng(7, 3, np.asarray(5, np.int64))}
        for lane in (ROW_LANE, COL_LANE):
            random[lane] = {"random": random_numbers(x.shape, fmt.element, key=7, ordinal=3, lane=lane, step=5)}
    col = x.ndim == 2 and axis == 1
    pair = quantize(x, fmt, axis=axis, col=col, **options, **rng)
    assert pair.row is not None
    check_operand(pair.row, quantize_exact(x, fmt, axis=axis, **options, **random.get(ROW_LANE, {})), fmt, axis)
    if pair.col is not None:
        lane, along = (ROW_LANE if fmt.square else COL_LANE), int(fmt.square and fmt.four_over_six is not None)
        exact = quantize_exact(x, fmt, axis=along, **options, **random.get(lane, {}))
        check_operand(pair.col, exact, fmt, 0, swap=True)


@pytest.mark.parametrize("fmt", (*BUILT, MADE[3]), ids=lambda fmt: fmt.name)
def test_bits_do_not_depend_on_threads(fmt: QuantDType, monkeypatch: pytest.MonkeyPatch) -> None:
    x = values("nonfinite", (300, 500))
    seen = set()
    for count in (1, 2, 3, 8, 2):
        monkeypatch.setenv("NVFP_NUM_THREADS", str(count))
        pair = quantize(x, fmt, col=True)
        parts = [a.tobytes() for side in (pair.row, pair.col) for a in (side.arrays() if side else ())]
        seen.add((*parts, dequantize(pair.side("col"), F32).tobytes()))
    assert len(seen) == 1


def test_bad_thread_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFP_NUM_THREADS", "many")
    with pytest.raises(ValueError, match="NVFP_NUM_THREADS"):
        quantize(values("normal", (300, 500)), mxfp8)


def test_calls_from_many_threads(device: Device) -> None:
    inputs = [values("normal", (100 + i, 900), seed=i) for i in range(6)]
    wanted = [quantize_exact(x, nvfp4) for x in inputs]
    raws = [to_device(x, device) for x in inputs]
    problems: list[BaseException] = []

    def work(i: int) -> None:
        try:
            for _ in range(5):
                row = quantize(raws[i], nvfp4).row
                assert row is not None
                check_operand(row, wanted[i], nvfp4, 1)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def _child(x: np.ndarray, wanted: bytes, queue: Any) -> None:
    row = quantize(x, mxfp8).row
    queue.put(row is not None and row.codes.tobytes() == wanted)


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_makes_its_own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFP_NUM_THREADS", "3")
    x = values("normal", (300, 500))
    row = quantize(x, mxfp8).row  # the parent's pool exists now
    assert row is not None
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(x, row.codes.tobytes(), queue))
    child.start()
    assert queue.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0


def test_repeats_its_bits(device: Device) -> None:
    x = to_device(values("wide", (130, 700)), device)
    for fmt in (nvfp4, nvfp4_2d, BUILT[0]):
        first = quantize(x, fmt, col=True)
        for _ in range(3):
            again = quantize(x, fmt, col=True)
            for one, two in ((first.row, again.row), (first.col, again.col)):
                assert one is not None
                assert two is not None
                assert all((a == b).all() for a, b in zip(one.arrays(), two.arrays(), strict=True))


_FIRST = """
import time
start = time.process_time()
import numpy as np
from nvfp.dtypes.formats import mxfp8
from nvfp.kernels.quantize import quantize
quantize(np.ones((64, 64), np.float32), mxfp8)
print(time.process_time() - start)
"""


def _first_quantize(cache: Path, **env: str) -> float:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", _FIRST], env={**os.environ, "NUMBA_CACHE_DIR": str(cache), **env},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return float(run.stdout)


def test_first_quantize_of_a_fresh_machine_and_the_next(tmp_path: Path) -> None:
    cold, warm = _first_quantize(tmp_path), _first_quantize(tmp_path)
    assert cold < 5.0, f"compiling took {cold:.1f} s of CPU time"
    assert warm < cold, f"{warm:.1f} s from the cache, {cold:.1f} s without"


def test_kernels_compile_where_nothing_can_be_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba raises when it finds no writeable place (read-only install and home); kernels then stay in memory."""
    compile_ = numba.njit

    def refuse(function: Any, **options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return compile_(function, **options)

    monkeypatch.setattr(numba, "njit", refuse)

    def double(x: int) -> int:
        return 2 * x

    assert njit(double)(21) == 42


def test_an_axis_of_another_type_is_refused_and_not_remembered() -> None:
    x = np.ones((4, 64), np.float32)
    row = nvfp4.replace(block=4)  # its own: nothing about it was asked before
    for axis in (True, 1.0, "1", None):
        with pytest.raises(DTypeError, match=r"\[quantize\] expected axis in whole numbers"):
            quantize(x, row, axis=axis)  # type: ignore[arg-type]
    assert quantize(x, row, axis=1).side("row").axis == 1
    with pytest.raises(DTypeError):
        quantize(x, row, axis=True)
