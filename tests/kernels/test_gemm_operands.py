"""GEMM of Operands on every device against float64 over the dequantized operands: formats, storage, padding."""

from __future__ import annotations

import threading
from itertools import product
from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e5m2, mxfp8_e4m3, nvfp4
from nvfp.errors import ArgumentError
from nvfp.kernels.cublaslt.typemap import native_fp8
from nvfp.kernels.gemm import gemm
from nvfp.kernels.operand import Operand
from nvfp.kernels.quantize import quantize
from tests.devices import to_device, to_numpy
from tests.kernels.gemm_operands import BF16, DENSE, F16, F32, F64, FORMATS, dense, operand, padded
from tests.kernels.test_gemm import agree
from tests.oracles import gemm as oracle
from tests.tolerances import check

SHAPES = [(16, 32, 64), (33, 40, 80), (5, 7, 19), (1, 1, 1), (48, 9, 112), (1, 40, 33)]  # M, N, K
IDS = {"ids": lambda f: f.name}


def row_name(a: Any, b: Any, fast: bool = False) -> str:
    """The tolerance row: FP8 tensor cores keep fewer bits than float32 sums."""
    modes = native_fp8(a.format, b.format) if isinstance(a, Operand) and isinstance(b, Operand) else None
    if modes is None:
        return "gemm"
    return "gemm_block128" if modes[0].block else "gemm_fp8_fast" if fast else "gemm_fp8"


def sides(
    rng: np.random.Generator, left: QuantDType, right: QuantDType, m: int, n: int, k: int
) -> tuple[Operand, Operand]:
    """Operands as fprop has them: [M, K] stored so, [K, N] stored [N, K]; blocks along K."""
    return operand(rng, left, (m, k)), operand(rng, right, (n, k)).T


@pytest.mark.parametrize("right", FORMATS, **IDS)
@pytest.mark.parametrize("left", FORMATS, **IDS)
def test_every_pair_of_formats(device: Device, left: QuantDType, right: QuantDType) -> None:
    rng = np.random.default_rng(20)
    for m, n, k in SHAPES:
        a, b = sides(rng, left, right, m, n, k)
        assert agree(device, a, b, row_name(a, b)).dtype == F32


@pytest.mark.parametrize("fmt", FORMATS, **IDS)
def test_every_storage(device: Device, fmt: QuantDType) -> None:
    rng = np.random.default_rng(21)
    m, n, k = 33, 24, 50
    for axis_a, stored_a, axis_b, stored_b in product((0, 1), (False, True), (0, 1), (False, True)):
        a = operand(rng, fmt, (m, k), axis_a, transposed=stored_a)
        b = operand(rng, fmt, (k, n), axis_b, transposed=stored_b)
        agree(device, a, b, row_name(a, b))
        agree(device, b.T, a.T, row_name(a, b))


@pytest.mark.parametrize("dtype", DENSE, ids=str)
@pytest.mark.parametrize("fmt", FORMATS, **IDS)
def test_dense_partner(device: Device, fmt: QuantDType, dtype: np.dtype) -> None:
    rng = np.random.default_rng(22)
    for m, n, k in ((16, 32, 64), (5, 7, 19)):
        a, b = sides(rng, fmt, fmt, m, n, k)
        x, w = dense(rng, (m, k), dtype), dense(rng, (n, k), dtype).T
        assert agree(device, a, w).dtype == dtype
        assert agree(device, x, b).dtype == dtype


@pytest.mark.parametrize("result", [F32, BF16, F16, F64], ids=str)
@pytest.mark.parametrize("fmt", [fp8_e4m3, mxfp8_e4m3, nvfp4], **IDS)
def test_bias_alpha_accumulate_and_dtype(device: Device, fmt: QuantDType, result: np.dtype) -> None:
    rng = np.random.default_rng(23)
    word = np.asarray(np.float32(0.75))
    for m, n, k in ((16, 32, 64), (9, 21, 40)):
        a, b = sides(rng, fmt, fmt, m, n, k)
        name = "gemm" if result == F64 else row_name(a, b)
        bias = dense(rng, (n,), BF16).astype(result)  # also what an FP8 epilogue rounds it to
        assert agree(device, a, b, name, dtype=result, bias=bias).dtype == result
        agree(device, a, b, name, out=dense(rng, (m, n), result), accumulate=True)
        agree(device, a, b, name, out=dense(rng, (m, n), result), accumulate=True, bias=bias, alpha=word)
        agree(device, a, b, name, dtype=result, alpha=word)
        agree(device, a, b, dtype=result, exact=True)


def test_fp8_bias_is_bfloat16_beside_a_float32_result(device: Device) -> None:
    rng = np.random.default_rng(24)
    a, b = sides(rng, fp8_e4m3, fp8_e5m2, 16, 32, 64)
    bias = dense(rng, (32,)) * 100
    agree(device, a, b, bias=bias, exact=True)
    expected = oracle.gemm(a, b, bias=bias.astype(BF16))
    found = to_numpy(gemm(to_device(a, device), to_device(b, device), bias=to_device(bias, device)))
    check(found, expected.value, "gemm_fp8", scale=expected.scale)


def test_fast_accumulation(device: Device) -> None:
    rng = np.random.default_rng(25)
    for left, right, result in ((fp8_e4m3, fp8_e4m3, BF16), (fp8_e5m2, fp8_e4m3, F32), (mxfp8_e4m3, nvfp4, BF16)):
        a, b = sides(rng, left, right, 48, 64, 256)
        agree(device, a, b, row_name(a, b, fast=True), dtype=result, fast_accumulation=True)


@pytest.mark.parametrize("left", [fp8_e4m3, fp8_e5m2], **IDS)
def test_padding_is_never_read_as_data(device: Device, left: QuantDType) -> None:
    rng = np.random.default_rng(26)
    for m, n, k in ((16, 32, 64), (5, 7, 19), (17, 24, 31), (16, 20, 48), (1, 1, 3)):
        a, b = sides(rng, left, fp8_e4m3, m, n, k)
        plain = agree(device, a, b, "gemm_fp8", dtype=BF16)
        for zeros in (True, False):
            pa, pb = padded(a, zeros=zeros), padded(b.T, zeros=zeros).T
            for x, w in ((pa, pb), (pa, b), (a, pb)):
                found = agree(device, x, w, "gemm_fp8", dtype=BF16)
                np.testing.assert_array_equal(found, plain)


@pytest.mark.parametrize("fmt", [fp8_e4m3, mxfp8_e4m3, nvfp4], **IDS)
@pytest.mark.parametrize(
    ("left", "right"),
    [((3, 5, 48), (48, 16)), ((3, 5, 48), (3, 48, 16)), ((2, 1, 5, 19), (3, 19, 9)), ((5, 40), (3, 40, 7))],
)
def test_batches(device: Device, fmt: QuantDType, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(27)
    stored = (*right[:-2], right[-1], right[-2])
    for a in (operand(rng, fmt, left), operand(rng, fmt, left, transposed=True)):
        for b in (operand(rng, fmt, stored).T, operand(rng, fmt, right, -2)):
            agree(device, a, b, row_name(a, b), dtype=BF16)


def test_nan_codes_reach_the_result(device: Device) -> None:
    rng = np.random.default_rng(28)
    for fmt in (fp8_e4m3, mxfp8_e4m3):
        a, b = sides(rng, fmt, fmt, 16, 16, 32)
        a.codes[3, 7] = 0x7F
        found = to_numpy(gemm(to_device(a, device), to_device(b, device)))
        np.testing.assert_array_equal(np.isnan(found), np.arange(16)[:, None].repeat(16, 1) == 3)


LINEAR = [(fp8_e4m3, fp8_e5m2), (mxfp8_e4m3, mxfp8_e4m3), (nvfp4, nvfp4)]


@pytest.mark.sanitizer
@pytest.mark.parametrize(("fmt", "grad"), LINEAR, ids=lambda f: f.name)
@pytest.mark.parametrize("shape", [(32, 48, 64), (21, 35, 50)])
def test_the_three_products_of_linear(
    device: Device, fmt: QuantDType, grad: QuantDType, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(29)
    m, n, k = shape
    weight = fmt.replace(block=(16, 16)) if fmt is nvfp4 else fmt
    x, w, dy = (
        quantize(to_device(dense(rng, s, BF16), device), f, col=True)
        for s, f in (((m, k), fmt), ((n, k), weight), ((m, n), grad))
    )
    assert x.row and x.col and w.row and w.col and dy.row and dy.col
    for a, b in ((x.row, w.row.T), (dy.row, w.col), (dy.col.T, x.col)):
        expected = oracle.gemm(_host(a), _host(b))
        for result in (BF16, F32):
            check(to_numpy(gemm(a, b, dtype=result)), expected.value, row_name(a, b), scale=expected.scale)
        twice = (to_numpy(gemm(a, b, dtype=BF16)).tobytes() for _ in range(2))
        assert next(twice) == next(twice)


def _host(x: Operand) -> Operand:
    arrays = {f: getattr(x, f) for f in ("codes", "scale", "tensor_scale")}
    return x.__class__(
        **{f: getattr(x, f) for f in x.__slots__} | {f: None if v is None else to_numpy(v) for f, v in arrays.items()}
    )


def codes_of(text: str, length: int) -> np.ndarray:
    """Hex bytes, filled with zeros, as one row."""
    found = np.frombuffer(bytes.fromhex(text), np.uint8)
    return np.pad(found, (0, length - found.size))[None]


def one_row(fmt: QuantDType, codes: np.ndarray, scale: Any, length: int, tensor_scale: float | None = None) -> Operand:
    word = None if tensor_scale is None else np.asarray(tensor_scale, np.float32)
    return Operand(codes=codes, scale=np.asarray(scale), tensor_scale=word, format=fmt, shape=(1, length), axis=1)


def test_transformer_engine_examples(device: Device) -> None:
    """Codes and results of TE's own arithmetic: per-tensor FP8, MXFP8 (exact sums), NVFP4 (to 1e-6)."""
    x = one_row(fp8_e4m3, codes_of("7DF265C0267D", 16), np.float32(2.0**-9), 16)
    w = one_row(fp8_e4m3, codes_of("7CE87470F860", 16), np.float32(2.0**-8), 16)
    check(agree(device, x, w.T, "gemm_fp8"), [[1.47222900390625]], "gemm_fp8", scale=2.0)
    x = one_row(mxfp8_e4m3, codes_of("77E85AB010720088", 32), np.uint8([[121]]), 32)
    w = one_row(mxfp8_e4m3, codes_of("7068EC7872E27070", 32), np.uint8([[120]]), 32)
    assert agree(device, x, w.T).item() == 2.2191162109375
    x = one_row(nvfp4, codes_of("D7124860 1F315C09 D75108F3 264A510E", 16), np.uint8([[0x7E, 0x5F]]), 32, 6.5 / 2688)
    w = one_row(nvfp4, codes_of("B572C630 00000000 573D0000 00000000", 16), np.uint8([[0x7E, 0x7E]]), 32, 1 / 2688)
    assert abs(agree(device, x, w.T).item() / 5.50855684 - 1) < 1e-6


def test_threads(device: Device) -> None:
    """Two threads (on CUDA: two streams) share plans and caches and get the bits that one gets alone."""
    rng = np.random.default_rng(30)
    jobs = [sides(rng, fp8_e4m3, fp8_e4m3, 48, 32, 64), sides(rng, nvfp4, mxfp8_e4m3, 33, 40, 80)]
    bias = to_device(dense(rng, (32,), BF16), device)
    moved = [tuple(to_device(x, device) for x in job) for job in jobs]
    alone = [
        to_numpy(gemm(a, b, dtype=BF16, bias=bias if i == 0 else None)).tobytes() for i, (a, b) in enumerate(moved)
    ]
    found: list[list[bytes]] = [[], []]
    errors: list[BaseException] = []

    def work(which: int) -> None:
        try:
            with _stream(device):
                for i in range(20):
                    job = (i + which) % 2
                    y = gemm(*moved[job], dtype=BF16, bias=bias if job == 0 else None)
                    found[job].append(to_numpy(y).tobytes())
        except BaseException as error:
            errors.append(error)

    _stream(device).synchronize()
    threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [set(bits) for bits in found] == [{bits} for bits in alone]


class _Nothing:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        return None

    def synchronize(self) -> None:
        return None


def _stream(device: Device) -> Any:
    if device.type == "cpu":
        return _Nothing()
    import cupy

    cupy.cuda.Device().synchronize()
    return cupy.cuda.Stream(non_blocking=True)


def test_rotations_must_match(device: Device) -> None:
    rng = np.random.default_rng(31)
    a, b = sides(rng, nvfp4, nvfp4, 16, 16, 32)
    rotated = a.__class__(**{f: getattr(a, f) for f in a.__slots__} | {"rotation": "rht16"})
    with pytest.raises(ArgumentError, match="rotated along K"):
        agree(device, rotated, b)
