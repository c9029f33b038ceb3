"""What only a GPU shows: native paths are taken, launches, graph capture, long sums, the library itself."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest

from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e4m3_b128, fp8_e5m2, mxfp8_e4m3, nvfp4
from nvfp.errors import ArgumentError, DeviceError, ShapeError
from nvfp.kernels import gemm as contract
from nvfp.kernels.cublaslt import binding, plan
from nvfp.kernels.cuda import gemm as launcher
from nvfp.kernels.cuda._launch import count_launches
from nvfp.kernels.gemm import gemm
from nvfp.kernels.operand import Operand
from nvfp.kernels.quantize import quantize
from tests.devices import to_device, to_numpy
from tests.kernels.gemm_operands import BF16, F16, F32, F64, SQUARE128, dense, operand
from tests.oracles import gemm as oracle
from tests.tolerances import check

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def every_call_is_looked_up(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that are known by their arguments leave no trace in the cache that `last_record` reads."""
    if "know_their_kind" not in request.node.name:
        monkeypatch.setattr(contract, "known_calls", [])


def sides(left: QuantDType, right: QuantDType, m: int, n: int, k: int) -> tuple[Operand, Operand]:
    rng = np.random.default_rng(60)
    return operand(rng, left, (m, k)), operand(rng, right, (n, k)).T


def on_gpu(*arrays: Any) -> tuple[Any, ...]:
    return tuple(to_device(x, "cuda") for x in arrays)


def last_record() -> Any:
    """The problem record of the call used last."""
    return next(reversed(launcher._calls()._entries.values())).plan.problem  # type: ignore[attr-defined]


def capability() -> tuple[int, int]:
    from nvfp.device import Device

    found = Device("cuda").compute_capability
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize("right", [fp8_e4m3, fp8_e5m2], ids=str)
def test_fp8_runs_as_it_is_and_launches_nothing_else(right: QuantDType, dtype: np.dtype) -> None:
    if capability() < (8, 9):
        pytest.skip("no CUDA device: FP8 needs compute capability 8.9")
    a, b = on_gpu(*sides(fp8_e4m3, right, 64, 48, 96))
    (bias,) = on_gpu(dense(np.random.default_rng(61), (48,), BF16 if dtype == F32 else dtype))
    for extra in (
        {},
        {"bias": bias},
        {"fast_accumulation": True},
        {"out": on_gpu(np.zeros((64, 48), dtype))[0], "accumulate": True},
    ):
        gemm(a, b, dtype=dtype, **extra)
        with count_launches() as count:
            gemm(a, b, dtype=dtype, **extra)
        record = last_record()
        # Adding to a 16-bit result goes through float32 (one rounding): a cast there and back.
        assert count.n == (2 if "accumulate" in extra and dtype != F32 else 0)
        assert record.x.scale == record.w.scale == "SCALAR_32F" and record.w.dtype == right.element.name
        assert (record.bias is not None) == ("bias" in extra)


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize(
    ("left", "right", "modes"),
    [
        (fp8_e4m3_b128, fp8_e4m3_b128, ("VEC128_32F", "VEC128_32F")),
        (fp8_e4m3_b128, SQUARE128, ("VEC128_32F", "BLK128x128_32F")),
        (SQUARE128, fp8_e4m3_b128, ("BLK128x128_32F", "VEC128_32F")),
    ],
)
def test_blocks_of_128_run_as_they_are(
    left: QuantDType, right: QuantDType, modes: tuple[str, str], dtype: np.dtype
) -> None:
    if capability() != (9, 0):
        pytest.skip("no CUDA device: block scale modes need compute capability 9.0")
    rng = np.random.default_rng(64)
    x, w = on_gpu(dense(rng, (64, 384), BF16), dense(rng, (48, 384), BF16))
    bias, out = on_gpu(dense(rng, (48,), BF16), np.zeros((64, 48), F32))
    for layout, launches in (("k_major128", 0), ("plain", 2)):
        a, b = (quantize(s, f, scale_layout=layout).row for s, f in ((x, left), (w, right)))
        assert a is not None and b is not None
        for extra in ({}, {"bias": bias}, {"out": out, "accumulate": True} if dtype == F32 else {}):
            gemm(a, b.T, dtype=dtype, **extra)
            with count_launches() as count:
                gemm(a, b.T, dtype=dtype, **extra)
            record = last_record()
            assert count.n == launches and (record.x.scale, record.w.scale) == modes
            assert (record.bias is not None) == ("bias" in extra)


@pytest.mark.parametrize("k", [128, 400, 4096])
def test_which_shapes_of_blocks_run_as_they_are(k: int) -> None:
    """Shapes that no tile divides: each runs, natively or expanded, and is right."""
    native = []
    for m, n in ((1, 1), (4, 8), (5, 7), (33, 65), (128, 24), (260, 136)):
        for right in (fp8_e4m3_b128, SQUARE128):
            a, b = sides(fp8_e4m3_b128, right, m, n, k)
            expected = oracle.gemm(a, b)
            for dtype in (BF16, F16, F32):
                check(to_numpy(gemm(*on_gpu(a, b), dtype=dtype)), expected.value, "gemm_block128", scale=expected.scale)
                if last_record().x.dtype == "float8_e4m3fn":
                    native.append((m, n, dtype.name))
    print(f"native at K = {k}: {len(native)} of 36")


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
def test_epilogues_take_the_bias(dtype: np.dtype) -> None:
    """Not needed for right results (a refused bias is added beforehand), but for one launch less."""
    rng = np.random.default_rng(62)
    a, b, bias = on_gpu(dense(rng, (64, 96), dtype), dense(rng, (96, 48), dtype), dense(rng, (48,), dtype))
    with count_launches() as count:
        gemm(a, b, bias=bias)
    assert last_record().bias == dtype.name and count.n == 0


@pytest.mark.parametrize(("fmt", "launches"), [(mxfp8_e4m3, 2), (nvfp4, 3)], ids=str)
def test_launches_of_expanded_operands(fmt: QuantDType, launches: int) -> None:
    a, b = on_gpu(*sides(fmt, fmt, 64, 48, 96))
    gemm(a, b, dtype=BF16)
    with count_launches() as count:
        gemm(a, b, dtype=BF16)
    assert count.n == launches
    record = last_record()
    assert record.x.dtype == record.w.dtype == "bfloat16" and record.w.transposed


def test_graph_capture_replays_the_bits_and_reads_alpha_anew() -> None:
    import cupy

    rng = np.random.default_rng(63)
    x, w = on_gpu(dense(rng, (64, 96), BF16), dense(rng, (96, 48), BF16))
    fa, fb = on_gpu(*sides(fp8_e4m3, fp8_e4m3, 64, 48, 96))
    na, nb = on_gpu(*sides(nvfp4, nvfp4, 33, 17, 50))
    (alpha,) = on_gpu(np.asarray(np.float32(2.0)))
    stream = cupy.cuda.Stream(non_blocking=True)

    def step() -> list[Any]:
        return [gemm(x, w, alpha=alpha), gemm(fa, fb, dtype=BF16), gemm(na, nb), gemm(fa, fb, alpha=alpha)]

    cupy.cuda.Device().synchronize()
    with stream:
        eager = [to_numpy(y) for y in step()]
        stream.begin_capture()
        captured = step()
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        for y, expected in zip(captured, eager, strict=True):
            assert to_numpy(y).tobytes() == expected.tobytes()
        alpha.set(np.asarray(np.float32(-4.0)), stream=stream)
        graph.launch(stream)
        stream.synchronize()
        for i in (0, 3):
            np.testing.assert_array_equal(to_numpy(captured[i]).astype(F64), -2 * eager[i].astype(F64))


@pytest.mark.parametrize("fast", [False, True])
def test_long_sums_of_fp8(fast: bool) -> None:
    a, b = sides(fp8_e4m3, fp8_e4m3, 32, 48, 4096)
    expected = oracle.gemm(a, b)
    da, db = on_gpu(a, b)
    for dtype in (F32, BF16):
        found = to_numpy(gemm(da, db, dtype=dtype, fast_accumulation=fast))
        check(found, expected.value, "gemm_fp8_fast" if fast else "gemm_fp8", scale=expected.scale)


def test_every_small_shape_of_fp8() -> None:
    """Shapes that no tile divides: each runs, natively or expanded, and is right."""
    native = 0
    for m, n, k in ((1, 1, 1), (1, 16, 16), (16, 1, 16), (3, 5, 7), (17, 33, 65), (128, 8, 16), (5, 256, 31)):
        a, b = sides(fp8_e4m3, fp8_e5m2, m, n, k)
        expected = oracle.gemm(a, b)
        for dtype in (BF16, F32):
            check(to_numpy(gemm(*on_gpu(a, b), dtype=dtype)), expected.value, "gemm_fp8", scale=expected.scale)
            native += last_record().x.dtype == "float8_e4m3fn"
    print(f"native: {native} of 14")


def test_codes_at_an_odd_address() -> None:
    import cupy

    a, b = sides(fp8_e4m3, fp8_e4m3, 32, 48, 64)
    expected = oracle.gemm(a, b)
    da, db = on_gpu(a, b)
    buffer = cupy.full(32 * 64 + 16, 0x7F, np.uint8)
    moved = buffer[3 : 3 + 32 * 64].reshape(32, 64)
    moved[...] = da.codes
    found = gemm(dataclasses.replace(da, codes=moved), db)
    check(to_numpy(found), expected.value, "gemm_fp8", scale=expected.scale)


def test_plans_are_kept_and_the_library_answers() -> None:
    a, b = on_gpu(*sides(fp8_e4m3, fp8_e4m3, 64, 48, 96))
    gemm(a, b)
    before = plan.plan_stats(0)
    for _ in range(3):
        gemm(a, b)
    assert plan.plan_stats(0).misses == before.misses
    assert binding.version() >= 120000


def test_split_k_products_of_threads_on_one_stream_do_not_mix() -> None:
    """A 1 x 1 product is split over K: its two kernels share a workspace with other threads' (seen to mix)."""
    wrong: list[tuple[float, float]] = []

    def work(value: float) -> None:
        x, w = (to_device(np.full((1, 1), v, np.float32), "cuda") for v in (1.0, value))
        for _ in range(300):
            got = float(to_numpy(gemm(x, w.T))[0, 0])
            if got != value:
                wrong.append((value, got))

    threads = [threading.Thread(target=work, args=(float(i + 1),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("right", [fp8_e4m3, fp8_e5m2], ids=str)
def test_a_scale_per_row_runs_as_it_is(right: QuantDType) -> None:
    if capability() != (9, 0):
        pytest.skip("no CUDA device: block scale modes need compute capability 9.0")
    a, b = on_gpu(*sides(fp8_e4m3.replace(block=96), right.replace(block=96), 64, 48, 96))
    (bias,) = on_gpu(dense(np.random.default_rng(65), (48,), BF16))
    for extra in ({}, {"bias": bias}, {"fast_accumulation": True}):
        gemm(a, b, dtype=BF16, **extra)
        with count_launches() as count:
            gemm(a, b, dtype=BF16, **extra)
        record = last_record()
        assert count.n == 0 and record.x.scale == record.w.scale == "OUTER_VEC_32F"


def test_epilogues_of_the_library_are_used() -> None:
    """Right results do not need them, but launches do. Those listed ran on an H200."""
    rng = np.random.default_rng(66)
    x, w, bias, aux = on_gpu(*(dense(rng, s, BF16) for s in ((64, 96), (96, 48), (48,), (64, 48))))
    for extra, name in (
        ({"bias": bias, "epilogue": "gelu", "aux_out": aux}, "gelu"),
        ({"epilogue": "gelu"}, "gelu"),
        ({"epilogue": "dgelu", "aux": aux}, "dgelu"),
    ):
        gemm(x, w, **extra)
        with count_launches() as count:
            gemm(x, w, **extra)
        assert last_record().epilogue == name and count.n == 0


def test_repeated_calls_know_their_kind_and_check_the_next_one() -> None:
    """A call that ran before is found by its key; one that differs in anything checked is not."""
    rng = np.random.default_rng(67)
    x, w, out = on_gpu(dense(rng, (64, 96), BF16), dense(rng, (96, 48), BF16), np.zeros((64, 48), BF16))
    first = to_numpy(gemm(x, w)).tobytes()
    assert launcher.known(x, w, None, None, None, False, False, False, False) is not None
    assert to_numpy(gemm(x, w, out=out)).tobytes() == first == to_numpy(gemm(x, w, out=out)).tobytes()
    assert launcher.known(x, w, None, to_numpy(out), None, False, False, False, False) is None
    with pytest.raises(DeviceError):
        gemm(x, w, out=to_numpy(out))
    with pytest.raises(ShapeError):
        gemm(x, w, out=out[:32])
    with pytest.raises(ArgumentError):
        gemm(x, w, accumulate=True)
    with pytest.raises(ShapeError):
        gemm(x, w[:64])
