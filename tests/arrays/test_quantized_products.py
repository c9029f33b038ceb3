"""Products of dense and quantized arrays in any mix, against float64 over the dequantized values; their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import nvfp as nf
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import DeviceError, DTypeError, ShapeError
from nvfp.kernels import gemm as contract
from tests.arrays.quantized_cases import FORMATS, same, values
from tests.kernels.test_gemm_operands import row_name
from tests.tolerances import check

DENSE = ("float32", "bfloat16", "float16", "float64", "int32", "float8_e4m3fn")
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((37,), (37,)), ((37,), (37, 6)), ((5, 37), (37,)), ((5, 37), (37, 6)), ((2, 5, 37), (37, 6)),
    ((5, 37), (3, 37, 6)), ((2, 5, 32), (2, 32, 6)), ((2, 1, 5, 33), (3, 33, 4)), ((4, 0), (0, 3)), ((0, 16), (16, 3)),
    ((2, 5, 48), (48, 0)),
    ((0, 5, 16), (16, 6)), ((2, 3, 64), (64,)), ((64,), (2, 64, 3)),
]  # fmt: skip


def side(draw: Any, kind: Any, shape: tuple[int, ...], seed: int) -> Any:
    """An operand of a dense dtype or quantized format: blocks along any axis, perhaps a transposed view."""
    format = FORMATS.get(kind)
    x = values(shape, seed) / 64
    if format is None:
        x = np.rint(4 * x) if kind == "int32" else x
        flip = len(shape) >= 2 and draw(st.booleans())
        return nf.asarray(x.swapaxes(-1, -2)).astype(kind).mT if flip else nf.asarray(x).astype(kind)
    if isinstance(format.block, tuple) and len(shape) < 2:
        return nf.asarray(x)
    axis = draw(st.integers(len(shape) - 2 if isinstance(format.block, tuple) else 0, len(shape) - 1))
    if len(shape) >= 2 and draw(st.booleans()):
        other = {len(shape) - 1: len(shape) - 2, len(shape) - 2: len(shape) - 1}.get(axis, axis)
        return nf.quantize(nf.asarray(x.swapaxes(-1, -2)), format, axis=other).mT
    return nf.quantize(nf.asarray(x), format, axis=axis)


def wide(x: Any) -> np.ndarray:
    return np.asarray(x.astype("float32") if x.dtype != nf.float64 else x).astype(np.float64)


def agrees(got: Any, a: Any, b: Any, function: Any) -> None:
    """Within the row of GEMMs, in units of the product of magnitudes."""
    row = "gemm"
    if isinstance(a, nf.QuantizedArray) and isinstance(b, nf.QuantizedArray):
        row = row_name(a.operand, b.operand)
        row = "gemm_fp8_drawn" if row == "gemm_fp8" and got.device.type == "cuda" else row
    # A float64 product multiplies factors of whole tensors in float64, where the values here are float32's.
    blocks = isinstance(a, nf.QuantizedArray) or isinstance(b, nf.QuantizedArray)
    dtype = "float32" if blocks and got.dtype == nf.float64 else got.dtype
    scale = function(np.abs(wide(a)), np.abs(wide(b)))
    if got.dtype == nf.float16:
        scale = np.maximum(scale, 2.0**-5)  # atol then covers half a step of float16's subnormals
    check(np.asarray(got), function(wide(a), wide(b)), row, dtype, scale=scale)


@pytest.mark.parametrize("left", [*FORMATS, *DENSE])
@settings(max_examples=12)
@given(data=st.data())
def test_matmul_of_any_mix(left: str, data: Any, device: Any) -> None:
    right = data.draw(st.sampled_from(sorted(FORMATS)) | st.sampled_from(DENSE))
    shapes = data.draw(st.sampled_from(SHAPES))
    a, b = (side(data.draw, kind, shape, i) for i, (kind, shape) in enumerate(zip((left, right), shapes, strict=True)))
    if data.draw(st.booleans()):
        a, b = b, a
        if a.ndim > 1 and b.ndim > 1:
            a, b = a.mT, b.mT
        elif a.ndim != b.ndim:
            a, b = b, a
    dtype = data.draw(st.sampled_from([None, None, "float32", "bfloat16", "float16", "float64"]))
    integers = {a.dtype, b.dtype} == {nf.int32}
    if integers and dtype is not None:
        return
    got = a @ b if dtype is None else nf.matmul(a, b, dtype=dtype)
    want = nf.result_type(a.dtype, b.dtype) if dtype is None else np.dtype(nf.result_type(dtype))
    assert type(got) is nf.Array and got.dtype == want and got.device == device
    assert got.shape == np.matmul(np.zeros(a.shape), np.zeros(b.shape)).shape
    if integers:
        same(got, np.asarray(a) @ np.asarray(b))
    else:
        agrees(got, a, b, np.matmul)


@pytest.mark.parametrize("left", FORMATS)
@settings(max_examples=8)
@given(data=st.data())
def test_other_products(left: str, data: Any, device: Any) -> None:
    right = data.draw(st.sampled_from([*sorted(FORMATS), "float32", "bfloat16"]))
    case = data.draw(st.sampled_from(PRODUCTS))
    shapes, function, numpy = case
    a, b = (side(data.draw, kind, shape, i) for i, (kind, shape) in enumerate(zip((left, right), shapes, strict=True)))
    got = function(a, b)
    assert type(got) is nf.Array and got.dtype == nf.result_type(a.dtype, b.dtype) and got.device == device
    agrees(got, a, b, numpy)


def einsum(case: str) -> Any:
    return lambda a, b: nf.einsum(case, a, b), lambda a, b: np.einsum(case, a, b)


PRODUCTS: list[Any] = [
    (((3, 4, 32), (32, 5)), lambda a, b: nf.tensordot(a, b, axes=1), lambda a, b: np.tensordot(a, b, 1)),
    (((3, 4, 32), (4, 32, 5)), lambda a, b: nf.tensordot(a, b), np.tensordot),
    (((32, 4, 3), (5, 32)), lambda a, b: nf.tensordot(a, b, axes=((0,), (1,))),
     lambda a, b: np.tensordot(a, b, ((0,), (1,)))),
    (((3, 4), (2, 5)), lambda a, b: nf.tensordot(a, b, axes=0), lambda a, b: np.tensordot(a, b, 0)),
    (((2, 3, 33), (4, 33)), nf.inner, np.inner),
    (((2, 3, 33), (4, 33, 5)), nf.dot, np.dot),
    (((3, 4), (12,)), nf.vdot, np.vdot),
    (((2, 3, 33), (3, 33)), nf.vecdot, np.vecdot),
    (((2, 32, 3), (1, 32, 3)), lambda a, b: nf.vecdot(a, b, axis=1), lambda a, b: np.vecdot(a, b, axis=1)),
    (((33,), (17,)), nf.outer, np.outer),
    (((5, 33), (7, 33)), *einsum("ik,jk->ij")),
    (((33, 5), (33, 7)), *einsum("ki,kj")),
    (((2, 5, 33), (2, 33, 7)), *einsum("bik,bkj->bij")),
    (((2, 5, 33), (33, 7)), *einsum("...ik,kj->...ij")),
    (((2, 5, 3, 4), (2, 7, 3, 4)), *einsum("bqhd,bkhd->bhqk")),
    (((5, 33), (5, 33)), *einsum("ij,ij->i")),
    (((5, 33), (33,)), *einsum("ij,j->ji")),
    (((5, 5), (5, 3)), *einsum("ii,ij->j")),
    (((5, 33), (7, 1)), *einsum("ik,jk->ij")),
]  # fmt: skip


def test_einsum_and_tensordot_use_the_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an einsum is one matrix product, the operands arrive at `gemm` as they are."""
    seen: list[tuple[bool, bool]] = []
    from nvfp.arrays.functions import matmul as room

    def counted(a: Any, b: Any, **kwargs: Any) -> Any:
        seen.append((not isinstance(a, np.ndarray), not isinstance(b, np.ndarray)))
        return contract.gemm(a, b, **kwargs)

    monkeypatch.setattr(room, "gemm", counted)
    q, w = nf.quantize(nf.asarray(values((5, 64))), nf.mxfp8), nf.quantize(nf.asarray(values((7, 64))), nf.nvfp4)
    for case in ("ik,jk->ij", "ik,jk->ji", "...k,jk->...j"):
        nf.einsum(case, q, w)
    nf.tensordot(q, w, axes=((1,), (1,)))
    nf.inner(q, w)
    nf.vecdot(q, w[:5])
    assert seen == [(True, True)] * 6


def test_three_operands(device: Any) -> None:
    a, b, c = (
        nf.quantize(nf.asarray(values(s, i) / 64), f)
        for i, (s, f) in enumerate((((3, 32), nf.mxfp8), ((32, 4), nf.nvfp4), ((4, 5), nf.fp8_e4m3)))
    )
    got = nf.einsum("ij,jk,kl->il", a, b, c)
    expected = wide(a) @ wide(b) @ wide(c)
    check(np.asarray(got), expected, "gemm", scale=np.abs(wide(a)) @ np.abs(wide(b)) @ np.abs(wide(c)))


@pytest.mark.parametrize("format", [nf.mxfp8, nf.nvfp4, nf.fp8_e4m3, nf.nvfp4.replace(block=(16, 16))], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_quantized_constant_passes_the_gradient_on(format: QuantDType, dtype: str, device: Any) -> None:
    w = nf.quantize(nf.asarray(values((6, 32))), format)
    x = nf.asarray(values((2, 5, 32), 1)).astype(dtype)
    g = nf.asarray(values((2, 5, 6), 2)).astype(dtype)
    v = x.copy()
    v.requires_grad = True
    (v @ w.mT).backward(g)
    assert v.grad is not None and v.grad.dtype == x.dtype
    expected = wide(g) @ wide(w)
    check(np.asarray(v.grad), expected, "gemm", scale=np.abs(wide(g)) @ np.abs(wide(w)))
    for function in (
        lambda a: nf.einsum("bik,jk->bij", a, w),
        lambda a: nf.tensordot(a, w, axes=((2,), (1,))),
        lambda a: nf.inner(a, w),
        lambda a: nf.dot(a, w.mT),
    ):
        u = x.copy()
        u.requires_grad = True
        function(u).backward(g)
        same(u.grad, v.grad)


def test_straight_through_operands(device: Any) -> None:
    x, w = nf.asarray(values((4, 32)), requires_grad=True), nf.asarray(values((6, 32), 1), requires_grad=True)
    q, p = x.astype(nf.mxfp8), w.astype(nf.nvfp4)
    g = nf.asarray(values((4, 6), 2))
    (q @ p.T).backward(g)
    assert x.grad is not None and w.grad is not None
    check(np.asarray(x.grad), wide(g) @ wide(p), "gemm", scale=np.abs(wide(g)) @ np.abs(wide(p)))
    check(np.asarray(w.grad), wide(g).T @ wide(q), "gemm", scale=np.abs(wide(g)).T @ np.abs(wide(q)))
    x.grad = None
    nf.concat([x.astype(nf.mxfp8), nf.flip(x.astype(nf.mxfp8), axis=0)]).sum().backward()
    assert x.grad is not None and (np.asarray(x.grad) == 2).all()
    with nf.no_grad():
        assert not (x.astype(nf.mxfp8) @ p.T).requires_grad
    constant = nf.asarray(values((4, 32))).astype(nf.mxfp8)
    assert not (constant @ constant.T).requires_grad and not q.detach().requires_grad and q.requires_grad


def test_moves_of_blocks_pass_gradients(device: Any) -> None:
    """What moves blocks moves gradients back: against the same moves of a dense array."""
    moves = [
        lambda a: nf.repeat(a, 2, axis=0), lambda a: nf.tile(a, (2, 1)), lambda a: nf.roll(a, 1, axis=0),
        lambda a: nf.stack([a, a], axis=0), lambda a: nf.broadcast_to(a, (3, *a.shape)), lambda a: a[[0, 0, 2]],
        lambda a: nf.concat(nf.split(a, [32], axis=1)[::-1], axis=1), lambda a: nf.unstack(a)[1],
        lambda a: nf.take_along_axis(a, nf.asarray([[2], [0]]), axis=0), lambda a: nf.reshape(a, (1, 3, 64)),
    ]  # fmt: skip
    for move in moves:
        x, d = (nf.asarray(values((3, 64)), requires_grad=True) for _ in range(2))
        y, z = move(x.astype(nf.nvfp4)), move(d) if move is not moves[8] else d[nf.asarray([2, 0])]
        g = nf.asarray(values(y.shape, 3))
        y.astype(nf.float32).backward(g)
        z.backward(g)
        same(x.grad, d.grad)


def test_errors() -> None:
    q, x = nf.ones((4, 32)).astype(nf.mxfp8), nf.ones((4, 32))
    for call in (lambda: q @ x, lambda: nf.matmul(q, q), lambda: q[:, :0] @ q.T):
        with pytest.raises(ShapeError, match=r"\[matmul\] expected equal inner lengths"):
            call()
    with pytest.raises(ShapeError, match="arrays with axes"):
        q @ nf.quantize(nf.asarray(1.0), nf.fp8_e4m3)
    with pytest.raises(ShapeError, match=r"\[outer\] expected two vectors"):
        nf.outer(q, q)
    with pytest.raises(ShapeError, match=r"\[tensordot\]"):
        nf.tensordot(q, q, axes=1)
    for dtype in (nf.int32, nf.bool, nf.mxfp8, nf.float8_e4m3fn):
        with pytest.raises(DTypeError, match=r"\[matmul\] expected a .*dtype"):
            nf.matmul(q, q.T, dtype=dtype)
    assert nf.matmul(nf.ones((2, 2), dtype=nf.int8), nf.ones((2, 2), dtype=nf.int8), dtype=nf.int64).dtype == nf.int64


@pytest.mark.gpu
def test_devices_do_not_mix() -> None:
    a, b = (nf.ones((4, 32), device=d).astype(nf.mxfp8) for d in ("cpu", "cuda"))
    calls = (
        lambda: a @ b.T, lambda: nf.einsum("ij,kj->ik", a, b), lambda: nf.concat([a, b]), lambda: nf.inner(a, b),
        lambda: nf.stack([a, b.astype(nf.float32)]), lambda: nf.vdot(a, b),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(DeviceError, match=r"one device.*to_device"):
            call()
