"""`QuantizedArray`: the law ``asarray(op(q)) == op(asarray(q))`` over formats and shapes, refusals, parts, copies."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import nvfp as nf
from nvfp.arrays.blocks import blocked_axes
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, BlockIndexError, DTypeError, ShapeError
from tests.devices import to_numpy

FORMATS = {
    f.name: f
    for f in (
        nf.fp8_e4m3,
        nf.fp8_e5m2,
        nf.fp8_e4m3_b128,
        nf.fp8_e4m3_b128.replace(block=(128, 128)),
        nf.mxfp8_e4m3,
        nf.mxfp8_e5m2,
        nf.nvfp4,
        nf.nvfp4.replace(block=(16, 16)),
        nf.nvfp4.replace(per_row_tensor_scale=True),
        nf.nvfp4.replace(four_over_six="mae_256", block=(16, 16)),
        nf.mxfp6_e2m3,
        nf.mxfp6_e3m2,
        nf.mxfp4,
        nf.mxint8,
        QuantDType("b128", "float8_e4m3fn", 128, "float32"),
        QuantDType("three", "float8_e5m2", 3, "float8_e4m3fn"),
        QuantDType("e3m2", "float6_e3m2fn", 24, "float8_e5m2"),
        QuantDType("int4", "int4", 32, "bfloat16"),
        QuantDType("int4_2d", "int4", (4, 6), "float16"),
        QuantDType("four5", "float4_e2m1fn", 5, "float8_e8m0fnu"),
        QuantDType("tile", "float8_e4m3fn", (4, 8), "float32"),
        QuantDType("fp4", "float4_e2m1fn", None, "float32"),
    )
}
SIMPLE = [nf.fp8_e4m3, nf.mxfp8_e4m3, nf.nvfp4, nf.nvfp4.replace(block=(16, 16))]


def values(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    rng = np.random.Generator(np.random.PCG64(seed))
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape))).astype(np.float32)


def quantized(format: QuantDType, shape: tuple[int, ...], axis: int = -1, seed: int = 0) -> Any:
    return nf.quantize(nf.asarray(values(shape, seed)), format, axis=axis)


def same(got: Any, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))


@st.composite
def cases(draw: Any) -> tuple[Any, np.ndarray]:
    """A quantized array of 1 to 3 axes, blocks along any allowed axis, and its values."""
    format = FORMATS[draw(st.sampled_from(sorted(FORMATS)))]
    pair = isinstance(format.block, tuple)
    ndim = draw(st.integers(2 if pair else 1, 3))
    shape = tuple(draw(st.lists(st.integers(1, 40), min_size=ndim, max_size=ndim)))
    axis = draw(st.integers(ndim - 2 if pair else 0, ndim - 1))
    q = quantized(format, shape, axis, draw(st.integers(0, 99)))
    if draw(st.booleans()) and ndim >= 2:
        q = q.mT  # a transposed operand: a flag, not a copy
    return q, np.asarray(q)


def key_for(draw: Any, q: Any) -> tuple[Any, ...]:
    """A key that cuts no block."""
    units = blocked_axes(q.operand)
    key: list[Any] = []
    for axis, n in enumerate(q.shape):
        if axis in units:
            unit = units[axis]
            start = draw(st.integers(0, n // unit)) * unit
            stop = min(n, draw(st.integers(start // unit, -(-n // unit))) * unit)
            key.append(slice(start, stop))
        else:
            key.append(draw(st.sampled_from([slice(None), slice(1, None, 2), slice(None, None, -1), 0, -1])))
    return tuple(key)


@settings(max_examples=150)
@given(st.data())
def test_law_of_basic_index(data: Any) -> None:
    q, x = data.draw(cases())
    key = key_for(data.draw, q)
    if len(blocked_axes(q.operand)) < 2 and data.draw(st.booleans()):
        key = (*key[:1], None, *key[1:])
    got = q[key]
    assert isinstance(got, nf.QuantizedArray) and got.dtype is q.dtype
    same(got, x[key])


@settings(max_examples=80)
@given(st.data())
def test_law_of_index_arrays_on_other_axes(data: Any) -> None:
    q, x = data.draw(cases())
    free = [a for a in range(q.ndim) if a not in blocked_axes(q.operand)]
    if not free:
        return
    axis = data.draw(st.sampled_from(free))
    n = q.shape[axis]
    index = data.draw(
        st.sampled_from(
            [np.array([0, n - 1, 0, -1]), np.array([[0], [n - 1]]), np.arange(n) % 2 == 0, np.zeros(0, np.int64)]
        )
    )
    key = (slice(None),) * axis + (index,)
    same(q[key], x[key])
    if index.dtype != bool:
        same(nf.take(q, index, axis=axis), np.take(x, index, axis=axis))


@settings(max_examples=100)
@given(st.data())
def test_law_of_axes(data: Any) -> None:
    q, x = data.draw(cases())
    order = data.draw(st.permutations(range(q.ndim)))
    try:
        same(nf.permute_dims(q, order), np.transpose(x, order))
    except ShapeError:
        assert len(blocked_axes(q.operand)) == 2
    if q.ndim >= 2:
        same(q.mT, np.swapaxes(x, -1, -2))
        assert q.mT.mT.axis == q.axis
    place = data.draw(st.integers(0, q.ndim))
    if len(blocked_axes(q.operand)) < 2 or place <= q.ndim - 2:
        wide = nf.expand_dims(q, place)
        same(wide, np.expand_dims(x, place))
        same(nf.squeeze(wide, place), x)


@settings(max_examples=100)
@given(st.data())
def test_law_of_reshape(data: Any) -> None:
    q, x = data.draw(cases())
    keep = len(blocked_axes(q.operand))
    last = q.shape[q.ndim - keep :]
    shape = (-1, 1, *last) if keep else (1, -1)
    if set(blocked_axes(q.operand)) == set(range(q.ndim - keep, q.ndim)):
        same(nf.reshape(q, shape), x.reshape(shape))
    else:
        with pytest.raises(ShapeError, match="keeps its blocked axes"):
            nf.reshape(q, shape)


@settings(max_examples=60)
@given(cases())
def test_law_of_copies(case: tuple[Any, np.ndarray]) -> None:
    q, x = case
    for other in (q.copy(), copy.deepcopy(q), pickle.loads(pickle.dumps(q)), q.to_device(q.device), q.astype(q.dtype)):
        assert other.dtype == q.dtype and other.axis == q.axis and other.shape == q.shape
        same(other, x)
    parts = nf.QuantizedArray.from_parts(
        q.codes, q.scale, q.dtype, axis=q.axis, tensor_scale=q.tensor_scale, shape=q.shape
    )
    same(parts, x)
    same(q.astype("float64"), x.astype(np.float64))
    same(nf.dequantize(q, "bfloat16"), np.asarray(nf.asarray(x).astype("bfloat16")))


@settings(max_examples=60)
@given(cases())
def test_other_functions_give_dense_results_of_the_values(case: tuple[Any, np.ndarray]) -> None:
    q, x = case
    d = nf.asarray(x)
    for f in (
        lambda a: a + 1.0,
        lambda a: nf.exp(a * 0.01),
        lambda a: nf.sum(a),
        lambda a: nf.flip(a),
        lambda a: nf.concat([a, a]),
    ):
        got = f(q)
        assert type(got) is nf.Array
        same(got, np.asarray(f(d)))


@pytest.mark.parametrize("format", SIMPLE, ids=str)
def test_quantizing_again_reproduces(format: QuantDType) -> None:
    q = quantized(format, (32, 64))
    again = q.astype(nf.float32).astype(format)
    if not format.tensor_scale:
        same(again, np.asarray(q))


@pytest.mark.parametrize("a", [nf.float32, nf.bfloat16, *SIMPLE], ids=str)
@pytest.mark.parametrize("b", [nf.float32, nf.bfloat16, *SIMPLE], ids=str)
@pytest.mark.parametrize("axes", [(-1, -2), (0, 1), (-1, -1)], ids=str)
def test_matmul_of_any_mix(a: Any, b: Any, axes: tuple[int, int]) -> None:
    def made(dtype: Any, shape: tuple[int, ...], axis: int, seed: int) -> Any:
        x = nf.asarray(values(shape, seed) / 64)
        return nf.quantize(x, dtype, axis=axis) if isinstance(dtype, QuantDType) else x.astype(dtype)

    x, y = made(a, (5, 37), axes[0], 1), made(b, (37, 6), axes[1], 2)
    got = x @ y
    expected = np.asarray(x, np.float64) @ np.asarray(y, np.float64)
    size = np.abs(np.asarray(x, np.float64)) @ np.abs(np.asarray(y, np.float64))
    assert got.dtype == nf.result_type(x.dtype, y.dtype)
    unit = 2.0**-8 if got.dtype == nf.bfloat16 else 2.0**-20
    assert (np.abs(np.asarray(got, np.float64) - expected) <= unit * size + 1e-30).all()
    assert nf.matmul(x, y, dtype=nf.float64).dtype == nf.float64


def test_matmul_with_vectors_and_batches() -> None:
    q = quantized(nf.mxfp8, (2, 3, 64))
    w = quantized(nf.nvfp4, (5, 64), seed=1)
    x = np.asarray(q, np.float64) @ np.asarray(w, np.float64).T
    np.testing.assert_allclose(np.asarray(q @ w.T, np.float64), x, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(np.asarray(q[0, 0] @ w.T, np.float64), x[0, 0], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(np.asarray(w @ q[1, 2], np.float64), x[1, 2], rtol=1e-4, atol=1e-3)


def test_slices_that_cut_a_block_name_the_remedy() -> None:
    q = quantized(nf.mxfp8_e4m3, (4, 64))
    with pytest.raises(BlockIndexError) as error:
        q[:, 8:40]
    assert str(error.value) == (
        "[getitem] mxfp8_e4m3 slice 8:40 cuts a block of 32 on axis 1; "
        "slice at multiples of 32 or dequantize with q.astype(nf.float32) first"
    )
    assert isinstance(error.value, IndexError)
    for key in (
        (slice(None), 3),
        (slice(None), slice(0, 64, 2)),
        (slice(None), slice(None, None, -1)),
        (slice(None), [0, 1]),
        (..., nf.asarray([True] * 64)),
    ):
        with pytest.raises(
            BlockIndexError, match=r"cuts a block of 32 on axis 1; slice at multiples of 32 or dequantize"
        ):
            q[key]
    with pytest.raises(BlockIndexError, match="index of 4 elements"):
        q[4]
    with pytest.raises(BlockIndexError, match="index in steps"):
        q[0, ..., [0]]


def test_reshape_and_axes_that_break_a_block_name_the_remedy() -> None:
    q = quantized(nf.nvfp4, (4, 64))
    with pytest.raises(ShapeError, match=r"\[reshape\] .*nvfp4 .*q\.astype\(nf\.float32\) first"):
        q.reshape(8, 32)
    with pytest.raises(ShapeError, match=r"\[reshape\]"):
        q.ravel()
    square = quantized(nf.nvfp4.replace(block=(16, 16)), (2, 32, 48))
    with pytest.raises(ShapeError, match=r"\[permute_dims\] .*blocks of \(16, 16\) on the last two axes"):
        nf.permute_dims(square, (1, 0, 2))
    with pytest.raises(BlockIndexError, match="on the last two axes"):
        square[..., None]


def test_immutable() -> None:
    q = quantized(nf.mxfp8, (2, 32))
    with pytest.raises(TypeError, match=r"\[setitem\] .*immutable"):
        q[0] = 1.0
    with pytest.raises(TypeError, match=r"\[\+=\]"):
        q += 1
    with pytest.raises(TypeError, match="floating dtype"):
        q.requires_grad = True
    with pytest.raises(TypeError):
        bool(quantized(nf.fp8_e4m3, ()))
    with pytest.raises(TypeError, match="nbytes"):
        _ = q.itemsize
    with pytest.raises(TypeError):
        hash(q)


def test_attributes() -> None:
    q = quantized(nf.nvfp4, (3, 50))
    assert (q.shape, q.ndim, q.size, q.axis, len(q)) == ((3, 50), 2, 150, 1, 3)
    assert q.codes.shape == (3, 25) and q.codes.dtype == nf.uint8
    assert q.scale.shape == (3, 4) and q.scale.dtype == nf.float8_e4m3fn
    assert q.tensor_scale is not None and q.tensor_scale.shape == () and q.tensor_scale.dtype == nf.float32
    assert q.nbytes == 75 + 12 + 4 and isinstance(q, nf.Array)
    assert q.T.codes.shape == (25, 3) and q.T.axis == 0
    e = quantized(nf.mxfp8_e5m2, (3, 50))
    assert e.codes.dtype == nf.float8_e5m2 and e.scale.dtype == nf.float8_e8m0fnu and e.tensor_scale is None
    assert [row.shape for row in e] == [(50,)] * 3
    assert e.tolist() == np.asarray(e).tolist()
    i = quantized(FORMATS["mxint8"], (3, 40))
    assert i.codes.dtype == nf.int8 and (i.codes + 0).tolist() == to_numpy(i.codes.raw).tolist()


def test_codes_scales_and_tensor_scale_make_the_values() -> None:
    q = quantized(nf.nvfp4, (3, 48))
    assert q.tensor_scale is not None
    low, high = to_numpy(q.codes.raw) & 15, to_numpy(q.codes.raw) >> 4
    codes = np.stack([low, high], -1).reshape(3, 48)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    elements = np.where(codes & 8, -1, 1) * table[codes & 7]
    scaled = (elements * np.repeat(np.asarray(q.scale, np.float32), 16, 1)).astype(np.float32)
    same(q, scaled * np.float32(q.tensor_scale.item()))


def test_repr() -> None:
    q = nf.asarray([[1.0, 2.0]]).astype(nf.nvfp4)
    assert repr(q) == "nf.QuantizedArray([[1., 2.]], dtype=nvfp4, block=16 on axis 1)"
    assert "one scale" in repr(q.astype(nf.fp8_e4m3)) and "block=(16,16)" in repr(quantized(SIMPLE[3], (2, 2)))


def test_given_scales_are_decode_factors() -> None:
    x = nf.asarray([0.3, 7.0, 448.0])
    q = nf.quantize(x, nf.fp8_e4m3, scale=0.3)
    assert q.scale.item() == np.float32(0.3)
    inverse = np.float32(1) / np.float32(0.3)
    expected = np.clip(np.asarray(x) * inverse, -448, 448).astype(nf.float8_e4m3fn)
    same(q.codes, expected)
    q = nf.quantize(x, nf.nvfp4, tensor_scale=1.0)
    assert q.tensor_scale is not None and q.tensor_scale.item() == 1.0
    with pytest.raises(ArgumentError, match="scale"):
        nf.quantize(x, nf.mxfp8, scale=1.0)
    with pytest.raises(ArgumentError, match="positive and finite, got -1; pass the largest magnitude of the tensor"):
        nf.dequantize(q, convention="te", amax=-1)
    with pytest.raises(ArgumentError, match=r"amax as a scalar, got shape \(2,\); pass the largest magnitude"):
        nf.dequantize(q, convention="te", amax=[1.0, 2.0])
    with pytest.raises(ArgumentError, match=r"scale as a scalar, .* pass a decode factor of the tensor"):
        nf.quantize(x, nf.fp8_e4m3, scale=[1.0, 2.0])
    with pytest.raises(DTypeError, match="quantized dtype"):
        nf.quantize(x, nf.bfloat16)
    with pytest.raises(DTypeError, match="floating array"):
        nf.quantize(nf.asarray([1, 2]), nf.mxfp8)


def test_from_parts_checks_shapes_and_dtypes() -> None:
    q = quantized(nf.mxfp8, (2, 40))
    make = nf.QuantizedArray.from_parts
    with pytest.raises(ShapeError, match=r"scales of shape \(2, 2\), got \(2, 1\)"):
        make(q.codes, q.scale[:, :1], q.dtype)
    with pytest.raises(DTypeError, match="codes as uint8"):
        make(q.astype(nf.float32), q.scale, q.dtype)
    with pytest.raises(DTypeError, match="no tensor_scale"):
        make(q.codes, q.scale, q.dtype, tensor_scale=1.0)
    with pytest.raises(DTypeError, match="a tensor_scale for nvfp4"):
        make(np.zeros((1, 8), np.uint8), np.zeros((1, 1), np.uint8), nf.nvfp4)
    with pytest.raises(ShapeError, match=r"codes of shape \(1, 8\) for \(1, 15\), got \(1, 9\)"):
        make(np.zeros((1, 9), np.uint8), np.zeros((1, 1), np.uint8), nf.nvfp4, tensor_scale=1.0, shape=(1, 15))
    for axis in ("a", 1.0, True, None):
        with pytest.raises(DTypeError, match="axis in whole numbers"):
            make(q.codes, q.scale, q.dtype, axis=axis)
    for shape in ((2,), (2, 40, 1), "ab", (2, 40.0)):
        with pytest.raises(ShapeError, match="a shape of 2 lengths"):
            make(q.codes, q.scale, q.dtype, shape=shape)
    for shape in ((-2, 40), (2, -40)):
        with pytest.raises(ShapeError, match=r"lengths of 0 or more, got \(-?2, -?40\)"):
            make(q.codes, q.scale, q.dtype, shape=shape)
    with pytest.raises(DTypeError, match="scale as float32, got float64; cast it to float32"):
        make(np.zeros((1, 8), np.uint8), np.ones(()), nf.fp8_e4m3)
    with pytest.raises(DTypeError, match="got float32; cast it to float8_e8m0fnu"):
        make(q.codes, q.scale.astype(nf.float32), q.dtype)
    with pytest.raises(ShapeError, match="a tensor_scale of shape"):
        make(np.zeros((1, 8), np.uint8), np.zeros((1, 1), np.uint8), nf.nvfp4, tensor_scale=[1.0, 2.0])
    with pytest.raises(ShapeError, match="codes with an axis"):
        make(np.zeros((), np.uint8), np.zeros((), np.uint8), nf.mxfp8)


def test_numpy_reads_a_copy() -> None:
    q = quantized(nf.mxfp8, (2, 32))
    assert np.asarray(q).dtype == np.float32 and np.mean(q) == nf.mean(q.astype(nf.float32))
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(q, copy=False)
    with pytest.raises(BufferError, match=r"export q\.codes and q\.scale"):
        np.from_dlpack(q)


def test_straight_through_gradient_passes_block_operations() -> None:
    x = nf.asarray(values((4, 64)), requires_grad=True)
    q = x.astype(nf.mxfp8)
    (q[1:3, 32:].T * 2.0).sum().backward()
    expected = np.zeros((4, 64), np.float32)
    expected[1:3, 32:] = 2
    assert x.grad is not None
    same(x.grad, expected)


def test_quantized_parameter_is_written_through_its_storage() -> None:
    q = nf.parameter(quantized(nf.mxfp8, (2, 32)), requires_grad=False)
    address = q.operand.codes.ctypes.data if isinstance(q.operand.codes, np.ndarray) else q.operand.codes.data.ptr
    other = quantized(nf.mxfp8, (2, 32), seed=5)
    q.storage.write_(other.operand)
    same(q, np.asarray(other))
    now = q.operand.codes.ctypes.data if isinstance(q.operand.codes, np.ndarray) else q.operand.codes.data.ptr
    assert now == address and q.storage.version == 1
    with pytest.raises(DTypeError, match=r"storage\.write_"):
        q.storage.write_(quantized(nf.mxfp8_e5m2, (2, 32)).operand)
