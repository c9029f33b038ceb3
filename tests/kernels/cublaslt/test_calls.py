"""What the launcher asks cuBLASLt for: which products, how many calls, which plans, and what it does when refused."""

from __future__ import annotations

import dataclasses
import gc
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.formats import fp8_e4m3, fp8_e4m3_b128, fp8_e5m2, mxfp8_e4m3, nvfp4
from nvfp.errors import ArgumentError, KernelError
from nvfp.kernels.cublaslt import feed, plan, typemap as tm
from nvfp.kernels.cublaslt.binding import Unsupported
from nvfp.kernels.cublaslt.problem import GemmProblem
from nvfp.kernels.cuda import _gemm_build, gemm as launcher
from nvfp.kernels.cuda._gemm_call import Call
from nvfp.kernels.gemm import gemm
from nvfp.kernels.quantize import quantize
from tests.kernels.cublaslt.emulator import FakeLt, cuBLASLtError
from tests.kernels.gemm_operands import BF16, F32, SQUARE128, dense, operand, padded
from tests.kernels.test_gemm import agree
from tests.tolerances import check


def problems() -> list[GemmProblem]:
    """The records that have plans, oldest first."""
    return [] if 0 not in plan._plans else list(plan._plans[0]._entries)


def fp8_sides(m: int, n: int, k: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(40)
    return operand(rng, fp8_e4m3, (m, k)), operand(rng, fp8_e5m2, (n, k)).T


def test_fp8_goes_in_as_it_is(device: Device, lt: FakeLt) -> None:
    a, b = fp8_sides(24, 16, 32)
    agree(device, a, b, "gemm_fp8", dtype=BF16, fast_accumulation=True)
    (record,) = problems()
    assert (record.x.dtype, record.w.dtype, record.y.dtype) == ("float8_e4m3fn", "float8_e5m2", "bfloat16")
    assert record.x.scale == record.w.scale == "SCALAR_32F" and record.fast_accumulation and not record.device_alpha
    assert str(record).startswith("Y[24, 16] bfloat16 ld 16 align 16 = X[24, 32] float8_e4m3fn ld 32 scale SCALAR_32F")
    assert len(lt.calls) == 1


@pytest.mark.parametrize(
    ("left", "right", "dtype"),
    [
        (fp8_e5m2, fp8_e5m2, "bfloat16"),
        (mxfp8_e4m3, nvfp4, "bfloat16"),
        (fp8_e4m3.replace(block=128), fp8_e4m3, "float32"),
        (fp8_e4m3_b128, fp8_e4m3, "bfloat16"),
        (SQUARE128, SQUARE128, "bfloat16"),
    ],
)
def test_others_are_expanded(device: Device, left: Any, right: Any, dtype: str) -> None:
    rng = np.random.default_rng(41)
    a, b = operand(rng, left, (24, 256)), operand(rng, right, (16, 256)).T
    agree(device, a, b)
    (record,) = problems()
    assert record.x.dtype == record.w.dtype == dtype and record.x.scale is None
    assert record.w.transposed and not record.x.transposed  # stored orders are kept
    assert record.device_alpha == (left.tensor_scale or right.tensor_scale or None in (left.block, right.block))


@pytest.mark.parametrize(
    ("left", "right", "modes"),
    [
        (fp8_e4m3_b128, fp8_e4m3_b128, ("VEC128_32F", "VEC128_32F")),
        (fp8_e4m3_b128, SQUARE128, ("VEC128_32F", "BLK128x128_32F")),
        (SQUARE128, fp8_e4m3_b128, ("BLK128x128_32F", "VEC128_32F")),
    ],
)
def test_blocks_of_128_go_in_as_they_are(
    device: Device, lt: FakeLt, monkeypatch: pytest.MonkeyPatch, left: Any, right: Any, modes: tuple[str, str]
) -> None:
    copied: list[Any] = []
    move = feed.scale_layout
    monkeypatch.setattr(feed, "scale_layout", lambda *args: copied.append(args) or move(*args))
    rng = np.random.default_rng(53)
    x, w = dense(rng, (24, 300)), dense(rng, (40, 300))
    for layout in ("k_major128", "plain"):
        a, b = (quantize(s, f, scale_layout=layout).row for s, f in ((x, left), (w, right)))
        assert a is not None and b is not None
        bias = dense(rng, (40,), BF16)
        gemm(a, b.T, dtype=BF16, bias=bias, fast_accumulation=True)
        assert len(copied) == (0 if layout == "k_major128" else 2)
    (record,) = problems()
    assert (record.m, record.n, record.k) == (24, 40, 304) and (record.x.scale, record.w.scale) == modes
    assert not record.fast_accumulation and record.bias == "bfloat16" and not record.device_alpha
    numbers = {tm.A_SCALE_MODE: tm.SCALE_MODE[modes[1]], tm.B_SCALE_MODE: tm.SCALE_MODE[modes[0]]}
    assert numbers.items() <= dict(record.attributes()).items()


def test_rows_and_columns_of_blocks_are_padded(device: Device, lt: FakeLt) -> None:
    rng = np.random.default_rng(54)
    a, b = operand(rng, fp8_e4m3_b128, (21, 200)), operand(rng, fp8_e4m3_b128, (19, 200)).T
    agree(device, a, b, "gemm_block128", dtype=BF16)
    (record,) = problems()
    assert (record.m, record.n, record.k, record.y.ld) == (24, 24, 208, 24)
    lt.refuse = ("fp8",)  # then they are expanded
    a, b = operand(rng, fp8_e4m3_b128, (22, 180)), operand(rng, fp8_e4m3_b128, (19, 180)).T
    agree(device, a, b, "gemm_block128", dtype=BF16)
    assert problems()[-1].x.dtype == "bfloat16"


@pytest.mark.parametrize("chip", [(8, 9), (10, 0)])
def test_elsewhere_blocks_of_128_are_expanded(
    device: Device, monkeypatch: pytest.MonkeyPatch, chip: tuple[int, int]
) -> None:
    monkeypatch.setattr(_gemm_build, "Device", lambda name: SimpleNamespace(compute_capability=chip))
    rng = np.random.default_rng(55)
    for row, dtype in ((fp8_e4m3_b128, "bfloat16"), (fp8_e4m3_b128.replace(power_of_two_scales=False), "float32")):
        agree(device, operand(rng, row, (24, 256)), operand(rng, row, (16, 256)).T)
        assert problems()[-1].x.dtype == problems()[-1].w.dtype == dtype


def test_before_8_9_fp8_is_expanded(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_gemm_build, "Device", lambda name: SimpleNamespace(compute_capability=(8, 0)))
    a, b = fp8_sides(24, 16, 32)
    bias = dense(np.random.default_rng(42), (16,), BF16)
    agree(device, a, b, bias=bias)
    assert [r.x.dtype for r in problems()] == ["bfloat16"] and problems()[0].bias == "float32"


def test_exact_is_float32(device: Device) -> None:
    a, b = fp8_sides(24, 16, 32)
    agree(device, a, b, exact=True)
    agree(device, a, dense(np.random.default_rng(43), (32, 16), BF16), exact=True)
    assert [r.x.dtype for r in problems()] == ["float32"] * 2


def test_padded_codes_are_not_copied(device: Device) -> None:
    a, b = fp8_sides(21, 19, 50)
    pa, pb = padded(a, zeros=True), padded(b.T, zeros=True).T
    agree(device, pa, pb, "gemm_fp8")
    (record,) = problems()
    assert (record.m, record.n, record.k, record.x.ld, record.w.ld, record.y.ld) == (21, 20, 64, 64, 64, 20)
    call = next(iter(launcher._calls()._entries.values()))
    assert isinstance(call, Call) and call.make_x is call.make_w is None


def test_rows_of_a_batch_are_one_product(device: Device, lt: FakeLt) -> None:
    rng = np.random.default_rng(44)
    agree(device, dense(rng, (3, 4, 5, 8)), dense(rng, (8, 6)))
    assert lt.calls == [{"stream": 7, "m": 6, "n": 60, "batch": 1, "epilogue": 1, "algorithm": 0}]
    lt.calls.clear()
    agree(device, dense(rng, (3, 4, 5, 8)), dense(rng, (3, 4, 8, 6)))
    agree(device, dense(rng, (5, 8)), dense(rng, (4, 8, 6)))
    assert [(c["n"], c["batch"]) for c in lt.calls] == [(5, 12), (5, 4)]
    lt.calls.clear()
    agree(device, dense(rng, (2, 1, 5, 8)), dense(rng, (3, 8, 6)))
    assert [(c["n"], c["batch"]) for c in lt.calls] == [(5, 3)] * 2
    lt.calls.clear()
    x = operand(rng, fp8_e4m3, (3, 5, 32))
    agree(device, x, operand(rng, fp8_e4m3, (16, 32)).T, "gemm_fp8")
    assert [(c["n"], c["batch"]) for c in lt.calls] == [(15, 1)]


def test_plans_are_shared_and_pointers_are_not(device: Device, lt: FakeLt) -> None:
    rng = np.random.default_rng(45)
    for _ in range(4):
        a, b = fp8_sides(16, 16, 32)
        agree(device, a, b, "gemm_fp8", bias=dense(rng, (16,), BF16), dtype=BF16)
    agree(device, *fp8_sides(16, 16, 32), "gemm_fp8", dtype=BF16)
    assert len(problems()) == 2 and plan.plan_stats(0).misses == 2


def test_a_bias_that_no_epilogue_takes(device: Device, lt: FakeLt) -> None:
    rng = np.random.default_rng(46)
    lt.refuse = ("bias",)
    a, b, bias = dense(rng, (9, 20), BF16), dense(rng, (20, 12), BF16), dense(rng, (12,), BF16)
    agree(device, a, b, bias=bias)
    agree(device, a, b, bias=bias, out=dense(rng, (9, 12), BF16), accumulate=True)
    agree(device, *fp8_sides(9, 7, 20), "gemm_fp8", bias=dense(rng, (7,), BF16))
    assert all(r.bias is None and r.accumulate for r in problems())
    # Float32 even for a bfloat16 result: with beta = 1 cuBLASLt rounds the product before it adds.
    assert [(r.x.dtype, r.y.dtype) for r in problems()] == [("bfloat16", "float32"), ("float8_e4m3fn", "float32")]


def test_fp8_that_has_no_algorithm_is_expanded(device: Device, lt: FakeLt) -> None:
    lt.refuse = ("fp8",)
    agree(device, *fp8_sides(9, 7, 20), bias=dense(np.random.default_rng(47), (7,), BF16))
    assert [r.x.dtype for r in problems()] == ["bfloat16"]


def test_refusals_and_failures_name_the_problem(device: Device, lt: FakeLt, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(48)
    a, b = dense(rng, (9, 20), BF16), dense(rng, (20, 12), BF16)
    lt.refuse = ("all",)
    with pytest.raises(Unsupported, match=r"status 15.*Y\[9, 12\] bfloat16 ld 12 align 16 = X\[9, 20\]"):
        gemm(a, b)
    lt.refuse = ()

    def fail(*arguments: int) -> None:
        raise cuBLASLtError(13, "no")

    monkeypatch.setattr(lt, "matmul", fail)
    with pytest.raises(KernelError, match="status 13"):
        gemm(a, b)
    monkeypatch.setattr(lt, "matmul_algo_get_heuristic", fail)
    with pytest.raises(KernelError, match="status 13") as caught:
        gemm(a, b, dtype=F32)
    assert not isinstance(caught.value, Unsupported)


def test_workspace_belongs_to_the_stream(device: Device, lt: FakeLt) -> None:
    rng = np.random.default_rng(49)
    lt.workspace = 4096
    for _ in range(2):
        agree(device, dense(rng, (9, 20)), dense(rng, (20, 12)))
    state = next(iter(launcher._calls()._entries.values())).plan._state
    assert list(state._workspaces) == [7]


def test_alignments_are_told(device: Device) -> None:
    rng = np.random.default_rng(50)
    a, b = dense(rng, (16 * 32 + 1,), BF16)[1:].reshape(16, 32), dense(rng, (32 * 24 + 6,), BF16)[6:].reshape(32, 24)
    gemm(a, b)
    (record,) = problems()
    assert record.x.align == 2 and record.w.align == 4 and record.y.align == 16


def test_descriptors_are_per_thread_and_nothing_leaks(device: Device, lt: FakeLt) -> None:
    rng = np.random.default_rng(51)
    a, b, bias = dense(rng, (9, 20), BF16), dense(rng, (20, 12), BF16), dense(rng, (12,), BF16)
    gemm(a, b, bias=bias)
    descriptors = {h for h, fields in lt.objects.items() if "compute" in fields}
    thread = threading.Thread(target=lambda: gemm(a, b, bias=bias))
    thread.start()
    thread.join()
    gc.collect()
    assert {h for h, fields in lt.objects.items() if "compute" in fields} == descriptors and len(descriptors) == 1
    plan.forget_plans()
    gc.collect()
    assert [fields for fields in lt.objects.values() if fields] == []


def test_formats_in_keys_stay_alive(device: Device) -> None:
    """Calls are known by the identity of a format; another row at the same address must not be taken for it."""
    rng = np.random.default_rng(52)
    for i in range(40):
        fmt = (fp8_e4m3 if i % 2 else mxfp8_e4m3).replace(name=f"row{i}")
        a, b = operand(rng, fmt, (8, 32)), operand(rng, fmt, (16, 32)).T
        agree(device, a, b, "gemm_fp8" if i % 2 else "gemm")
        del a, b, fmt


@pytest.mark.parametrize("refused", ["epilogue", "run"])
def test_epilogues_that_the_library_refuses(device: Device, lt: FakeLt, refused: str) -> None:
    """Refused by the heuristics or when it runs: the product runs alone, kernels of ours behind it."""
    rng = np.random.default_rng(56)
    a, b, bias = dense(rng, (16, 24), BF16), dense(rng, (24, 8), BF16), dense(rng, (8,), BF16)
    aux = np.zeros((16, 8), BF16)
    native = gemm(a, b, bias=bias, epilogue="gelu", aux_out=aux)
    assert [c["epilogue"] for c in lt.calls] == [164]
    plan.forget_plans()
    lt.refuse = (refused,)
    for _ in range(2):
        lt.calls.clear()
        other = np.zeros((16, 8), BF16)
        found = gemm(a, b, bias=bias, epilogue="gelu", aux_out=other)
        assert [c["epilogue"] for c in lt.calls] == [4]
        check(found, native.astype(np.float64), "gemm")
        np.testing.assert_array_equal(other, aux)


def test_which_epilogues_the_library_gets(device: Device, lt: FakeLt) -> None:
    rng = np.random.default_rng(57)
    a, b = fp8_sides(16, 32, 32)
    x, w, aux = dense(rng, (16, 32), BF16), dense(rng, (32, 32), BF16), dense(rng, (16, 32), BF16)
    word, wide = np.asarray(np.float32(1)), np.zeros((16, 40), BF16)
    cases: list[tuple[int, dict[str, Any]]] = [
        (32, {"epilogue": "gelu"}),
        (160, {"epilogue": "gelu", "aux_out": aux}),
        (160, {"epilogue": "gelu", "aux_out": wide[:, :32]}),
        (1, {"epilogue": "gelu", "aux_out": wide[:, 1:33]}),  # not aligned
        (1, {"epilogue": "gelu", "aux_out": np.zeros((32, 16), BF16).T}),
        (192, {"epilogue": "dgelu", "aux": aux, "bias_grad": np.zeros(32, BF16)}),
        (1, {"bias_grad": np.zeros(16, BF16)}),
    ]
    for number, arguments in cases:
        for left, right in ((x, w), (a, b)):
            lt.calls.clear()
            gemm(left, right, dtype=BF16, **arguments)
            behind = number == 192 and left is a  # a kernel of ours is faster with quantized operands
            assert [c["epilogue"] for c in lt.calls] == [1 if behind else number]
    gemm(a, b, out_format=fp8_e4m3, out_scale=word, amax_out=word.copy())
    assert problems()[-1].y.dtype == "float8_e4m3fn" and problems()[-1].amax
    gemm(a, b, out_format=fp8_e5m2, out_scale=word, epilogue="gelu")
    assert problems()[-1].y.dtype == "float8_e5m2" and not problems()[-1].amax
    for left, right, more in ((x, w, {}), (a, b, {"epilogue": "gelu", "aux_out": aux})):
        plan.forget_plans()
        gemm(left, right, out_format=fp8_e4m3, out_scale=word, **more)
        assert problems()[-1].y.dtype == "float32"


def test_a_scale_per_row_goes_in_as_it_is(device: Device, lt: FakeLt) -> None:
    rng = np.random.default_rng(58)
    a, b = operand(rng, fp8_e4m3.replace(block=100), (21, 100)), operand(rng, fp8_e4m3.replace(block=120), (19, 100)).T
    agree(device, a, b, "gemm_fp8", dtype=BF16, fast_accumulation=True)
    (record,) = problems()
    assert record.x.scale == record.w.scale == "OUTER_VEC_32F" and record.fast_accumulation
    assert (record.m, record.n, record.k) == (21, 24, 112)
    agree(device, a, operand(rng, fp8_e4m3.replace(block=50), (19, 100)).T)  # two blocks along K
    assert problems()[-1].x.dtype == "float32"


def test_repeated_calls_are_known_without_their_checks(device: Device, lt: FakeLt) -> None:
    rng = np.random.default_rng(59)
    x, w, out = dense(rng, (16, 32), BF16), dense(rng, (32, 8), BF16), np.zeros((16, 8), BF16)
    want = gemm(x, w)
    flags = (False,) * 4
    np.testing.assert_array_equal(launcher.known(x, w, None, None, None, *flags), want)
    assert launcher.known(x, w, None, out, None, *flags) is None
    gemm(x, w, out=out)
    assert launcher.known(x, w, None, out, None, *flags) is out
    assert launcher.known(x, w, None, out[:8], None, *flags) is None
    assert launcher.known(x, w, None, None, F32, *flags) is None
    assert launcher.known([1.0], w, None, None, None, *flags) is None
    rotated = operand(rng, nvfp4, (16, 32))
    gemm(rotated, rotated.T)
    with pytest.raises(ArgumentError, match="rotated"):
        gemm(dataclasses.replace(rotated, rotation="rht16"), rotated.T)
