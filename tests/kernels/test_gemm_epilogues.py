"""GEMM's epilogues on every device against float64: gelu and its gradient, column sums, FP8 results, TF32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes.formats import QuantDType, fp8_e4m3, fp8_e4m3_b128, fp8_e5m2, mxfp8_e4m3
from nvfp.errors import ArgumentError, DTypeError, NotBuiltError, ShapeError
from nvfp.kernels.bias_grad import bias_grad
from nvfp.kernels.gemm import gemm
from tests.devices import to_device, to_numpy
from tests.kernels.gemm_operands import BF16, F16, F32, F64, dense, moved, operand, padded
from tests.oracles import gemm as oracle
from tests.oracles.gemm import Product, values
from tests.tolerances import check

SHAPES = [(16, 32, 64), (9, 21, 40), (1, 8, 16)]  # M, N, K
SIDES = [F32, BF16, fp8_e4m3, fp8_e4m3_b128, mxfp8_e4m3, fp8_e4m3.replace(block=64)]
IDS = {"ids": str}


def sides(rng: np.random.Generator, kind: Any, m: int, n: int, k: int) -> tuple[Any, Any]:
    """[M, K] and [K, N] as fprop has them."""
    if isinstance(kind, QuantDType):
        return operand(rng, kind, (m, k)), operand(rng, kind, (n, k)).T
    return dense(rng, (m, k), kind), dense(rng, (n, k), kind).T


def there(device: Device, *arrays: Any) -> list[Any]:
    return [None if x is None else to_device(x, device) for x in arrays]


def result_of(kind: Any) -> np.dtype:
    return BF16 if isinstance(kind, QuantDType) else kind


@pytest.mark.parametrize("kind", SIDES, **IDS)
def test_gelu(device: Device, kind: Any) -> None:
    rng = np.random.default_rng(80)
    for m, n, k in SHAPES:
        a, b = sides(rng, kind, m, n, k)
        for dtype in {F32, result_of(kind)}:
            bias = dense(rng, (n,), BF16).astype(dtype)
            for given in (None, bias):
                product = oracle.gemm(a, b, bias=given)
                da, db, on = there(device, a, b, given)
                found = to_numpy(gemm(da, db, bias=on, dtype=dtype, epilogue="gelu"))
                check(found, oracle.gelu(product).value, "gemm_gelu", scale=product.scale)
                (aux,) = there(device, np.full((m, n), np.nan, dtype))
                again = to_numpy(gemm(da, db, bias=on, dtype=dtype, epilogue="gelu", aux_out=aux))
                check(again, oracle.gelu(product).value, "gemm_gelu", scale=product.scale)
                check(to_numpy(aux), product.value, "gemm_gelu", scale=product.scale)


@pytest.mark.parametrize("kind", SIDES, **IDS)
def test_gelu_gradient_and_its_sums(device: Device, kind: Any) -> None:
    rng = np.random.default_rng(81)
    for m, n, k in SHAPES:
        a, b = sides(rng, kind, m, n, k)
        for dtype in {F32, result_of(kind)}:
            aux = dense(rng, (m, n), dtype)
            product = oracle.gemm(a, b)
            expected = oracle.dgelu(product, aux)
            da, db, on, sums = there(device, a, b, aux, np.full(n, np.nan, dtype))
            found = to_numpy(gemm(da, db, dtype=dtype, epilogue="dgelu", aux=on))
            check(found, expected.value, "gemm_dgelu", scale=product.scale)
            out = to_device(np.zeros((m, n), dtype), device)
            assert gemm(da, db, out=out, epilogue="dgelu", aux=on, bias_grad=sums) is out
            assert to_numpy(out).tobytes() == found.tobytes()
            assert to_numpy(sums).tobytes() == to_numpy(bias_grad(out)).tobytes()


@pytest.mark.parametrize("kind", SIDES, **IDS)
def test_sums_of_operands(device: Device, kind: Any) -> None:
    """Linear's wgrad with its bias gradient, and the sums of the other side."""
    rng = np.random.default_rng(82)
    for m, n, k in SHAPES:
        a, b = sides(rng, kind, m, n, k)
        for dtype in {F32, result_of(kind)}:
            for of, side in (("a", values(a)), ("b", values(b).T)):
                da, db, sums = there(device, a, b, np.full(side.shape[0], np.nan, dtype))
                found = to_numpy(gemm(da, db, dtype=dtype, bias_grad=sums, bias_grad_of=of))
                product = oracle.gemm(a, b)
                check(found, product.value, "gemm_block128", scale=product.scale)
                check(to_numpy(sums), side.sum(axis=1), "bias_grad", scale=np.abs(side).sum(axis=1))
        total, (da, db, sums) = dense(rng, (m, n)), there(device, a, b, np.zeros(m, F32))
        (out,) = there(device, total.copy())
        gemm(da, db, out=out, accumulate=True, bias_grad=sums)
        product = oracle.gemm(a, b, out=total)
        check(to_numpy(out), product.value, "gemm_block128", scale=product.scale)
        check(to_numpy(sums), values(a).sum(axis=1), "bias_grad", scale=np.abs(values(a)).sum(axis=1))


@pytest.mark.parametrize("epilogue", [None, "gelu"])
@pytest.mark.parametrize("row", [fp8_e4m3, fp8_e5m2], **IDS)
@pytest.mark.parametrize("kind", [F32, BF16, fp8_e4m3, mxfp8_e4m3], **IDS)
def test_fp8_results(device: Device, kind: Any, row: QuantDType, epilogue: Any) -> None:
    rng = np.random.default_rng(83)
    for m, n, k in SHAPES:
        a, b = sides(rng, kind, m, n, k)
        bias = dense(rng, (n,), BF16)
        product = oracle.gemm(a, b, bias=bias)
        product = oracle.gelu(product) if epilogue else product
        for top in (8.0, 512.0):  # the second lets some saturate
            scale = np.asarray(np.float32(top * 50 / np.abs(product.value).max()))
            da, db, dbias, word = there(device, a, b, bias, scale)
            seen = to_device(np.asarray(np.float32(0.25)), device)
            y = gemm(da, db, bias=dbias, epilogue=epilogue, out_format=row, out_scale=word, amax_out=seen)
            assert y.format == row and y.shape == (m, n) and y.axis == 1 and y.scale.shape == ()
            assert to_numpy(y.scale) == np.float32(1) / scale
            largest = np.abs(product.value).max()
            check(to_numpy(seen), max(0.25, largest), "gemm_gelu", scale=product.scale.max())
            limit = row.element.max / float(scale)
            codes = to_numpy(y.codes).view(row.element.dtype).astype(F64) / float(scale)
            expected = np.clip(product.value, -limit, limit)
            floor = row.element.smallest_subnormal / float(scale) / 3e-4
            check(codes, expected, "gemm_to_fp8", row.element.dtype, scale=product.scale + floor)
        kept = to_numpy(seen)
        gemm(da, db, out_format=row, out_scale=word)
        assert to_numpy(seen) == kept


def test_batches_and_strange_places(device: Device) -> None:
    rng = np.random.default_rng(84)
    a, b, bias = dense(rng, (2, 3, 8, 16), BF16), dense(rng, (2, 3, 16, 8), BF16), dense(rng, (8,), BF16)
    for right in (b, b[0, 0]):
        product = oracle.gemm(a, right, bias=bias)
        da, db, dbias, aux = there(device, a, right, bias, np.zeros((2, 3, 8, 8), BF16))
        found = to_numpy(gemm(da, db, bias=dbias, epilogue="gelu", aux_out=aux))
        check(found, oracle.gelu(product).value, "gemm_gelu", scale=product.scale)
        check(to_numpy(aux), product.value, "gemm_gelu", scale=product.scale)
    whole, room = to_device(np.zeros((30, 40), BF16), device), to_device(np.zeros((30, 40), BF16), device)
    x, w = a[0, 0], b[0, 0]
    for aux, out in (
        (whole[:8, :8], room[:8, :8]),
        (whole[::2, ::3][:8, :8], room[8:0:-1, :8]),
        (whole[:8, :8].T, None),
    ):
        product = oracle.gemm(x, w)
        found = to_numpy(gemm(*there(device, x, w), out=out, epilogue="gelu", aux_out=aux))
        check(found, oracle.gelu(product).value, "gemm_gelu", scale=product.scale)
        check(to_numpy(aux), product.value, "gemm_gelu", scale=product.scale)


def test_alpha_and_empty(device: Device) -> None:
    rng = np.random.default_rng(85)
    a, b, word = dense(rng, (8, 16)), dense(rng, (16, 8)), np.asarray(np.float32(-0.5))
    product = oracle.gemm(a, b, alpha=word)
    da, db, alpha = there(device, a, b, word)
    check(
        to_numpy(gemm(da, db, alpha=alpha, epilogue="gelu")),
        oracle.gelu(product).value,
        "gemm_gelu",
        scale=product.scale,
    )
    for m, n, k in ((0, 8, 16), (8, 8, 0)):
        bias, sums = there(device, np.ones(n, F32), np.full(n, np.nan, F32))
        da, db = there(device, np.ones((m, k), F32), np.ones((k, n), F32))
        check(to_numpy(gemm(da, db, bias=bias, epilogue="gelu")), np.full((m, n), 0.8411919906), "gemm_gelu")
        (aux,) = there(device, np.ones((m, n), F32))
        assert not to_numpy(gemm(da, db, epilogue="dgelu", aux=aux, bias_grad=sums)).any()
        assert not to_numpy(sums).any()


def test_one_scale_per_row(device: Device) -> None:
    """FP8 with one block over the whole of K: native on compute capability 9.0, with fast accumulation."""
    rng = np.random.default_rng(86)
    for m, n, k in ((16, 32, 64), (21, 19, 100), (1, 16, 300), (130, 8, 32)):
        for left, right in ((fp8_e4m3, fp8_e4m3), (fp8_e5m2, fp8_e4m3)):
            a = operand(rng, left.replace(block=k), (m, k))
            b = operand(rng, right.replace(block=k + 5), (n, k)).T
            col = operand(rng, left.replace(block=k), (k, m), 0, transposed=True).T
            for x in (a, col):
                product = oracle.gemm(x, b)
                for dtype, fast in ((F32, False), (BF16, True), (F16, False)):
                    bias = dense(rng, (n,), BF16).astype(dtype)
                    da, db, on = there(device, x, b, bias)
                    with_bias = oracle.gemm(x, b, bias=bias)
                    name = "gemm_fp8_fast" if fast else "gemm_fp8"
                    found = to_numpy(gemm(da, db, dtype=dtype, fast_accumulation=fast))
                    check(found, product.value, name, scale=product.scale)
                    found = to_numpy(gemm(da, db, dtype=dtype, bias=on))
                    check(found, with_bias.value, "gemm_fp8", scale=with_bias.scale)


def test_padding_of_rows_with_a_scale_each_is_never_read_as_data(device: Device) -> None:
    rng = np.random.default_rng(88)
    for m, n, k in ((16, 32, 64), (17, 20, 31)):
        row = fp8_e4m3.replace(block=k)
        a, b = operand(rng, row, (m, k)), operand(rng, row, (n, k))
        da, db = there(device, a, b)
        plain = to_numpy(gemm(da, db.T, dtype=BF16)).tobytes()
        for zeros in (True, False):
            x, w = (moved(padded(side, zeros=zeros), device) for side in (a, b))
            assert to_numpy(gemm(x, w.T, dtype=BF16)).tobytes() == plain


def test_tf32(device: Device) -> None:
    rng = np.random.default_rng(87)
    a, b, bias = dense(rng, (33, 64)), dense(rng, (64, 40)), dense(rng, (40,))
    product = oracle.gemm(a, b, bias=bias)
    da, db, on = there(device, a, b, bias)
    check(to_numpy(gemm(da, db, bias=on, tf32=True)), product.value, "gemm_tf32", scale=product.scale)
    gelu = oracle.gelu(product)
    found = gemm(da, db, bias=on, tf32=True, epilogue="gelu")
    check(to_numpy(found), gelu.value, "gemm_gelu", scale=4 * product.scale)
    x, w = a.astype(BF16), b.astype(BF16)  # no effect
    dx, dw = there(device, x, w)
    assert to_numpy(gemm(dx, dw, tf32=True)).tobytes() == to_numpy(gemm(dx, dw)).tobytes()


def test_refused_epilogues(device: Device) -> None:
    a, b, out = there(device, np.ones((2, 3), F32), np.ones((3, 4), F32), np.ones((2, 4), F32))
    word, vector = there(device, np.asarray(np.float32(1)), np.ones(4, F32))
    wide = to_device(np.ones((2, 3), F64), device)
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ArgumentError, "epilogue out of", {"epilogue": "relu"}),
        (ArgumentError, "aux= with epilogue='dgelu'", {"epilogue": "dgelu"}),
        (ArgumentError, "aux= with epilogue='dgelu'", {"aux": out}),
        (ArgumentError, "aux_out= with epilogue='gelu'", {"aux_out": out}),
        (ArgumentError, "no accumulate", {"epilogue": "gelu", "out": out, "accumulate": True}),
        (ArgumentError, "no bias", {"epilogue": "dgelu", "aux": out, "bias": vector}),
        (ShapeError, "out as float32", {"epilogue": "gelu", "aux_out": vector}),
        (ArgumentError, "bias_grad_of out of", {"bias_grad": vector, "bias_grad_of": "c"}),
        (
            ArgumentError,
            "bias_grad of a dense result",
            {
                "epilogue": "gelu",
                "bias_grad": vector,
                "out_format": fp8_e4m3,
                "out_scale": word,
            },
        ),
        (DTypeError, "with bias_grad", {"bias_grad": vector, "bias_grad_of": "result", "dtype": F64}),
        (DTypeError, "with bias_grad", {"bias_grad": vector.astype(np.int32)}),
        (ShapeError, r"out as float32 \(2,\)", {"bias_grad": vector}),
        (ArgumentError, "out_scale= with out_format=", {"out_format": fp8_e4m3}),
        (ArgumentError, "out_scale= with out_format=", {"out_scale": word}),
        (ArgumentError, "amax_out= with out_format=", {"amax_out": word}),
        (ArgumentError, "no out and dtype", {"out_format": fp8_e4m3, "out_scale": word, "out": out}),
        (NotBuiltError, "one float32 scale", {"out_format": mxfp8_e4m3, "out_scale": word}),
        (DTypeError, "out_scale as a float32", {"out_format": fp8_e4m3, "out_scale": 2.0}),
        (DTypeError, "with an epilogue", {"epilogue": "gelu", "dtype": F64}),
    ]
    for kind, text, arguments in wrong:
        with pytest.raises(kind, match=text):
            gemm(a, b, **arguments)
    with pytest.raises(DTypeError, match="with an epilogue"):
        gemm(wide, b, dtype=F32, epilogue="gelu")
    np.testing.assert_array_equal(to_numpy(out), np.ones((2, 4)))


def test_the_oracle_knows_itself() -> None:
    product = Product(np.float64([[1.0]]), np.float64([[1.0]]))
    assert abs(oracle.gelu(product).value.item() - 0.8411919906082768) < 1e-15
    assert abs(oracle.dgelu(product, np.float64([[0.0]])).value.item() - 0.5) < 1e-15
