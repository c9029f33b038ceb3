"""`QuantizedArray`: dense results, refusals and their remedies, attributes, parts (the law: test_quantized_law)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, BlockIndexError, DTypeError, GradientError, ShapeError
from tests.arrays.quantized_cases import FORMATS, quantized, same, values
from tests.devices import to_numpy

SIMPLE = [nf.fp8_e4m3, nf.mxfp8_e4m3, nf.nvfp4, nf.nvfp4.replace(block=(16, 16))]


def dense(a: Any) -> nf.Array:
    """The values as a dense array beside ``a``."""
    return nf.asarray(np.asarray(a), device=a.device)


JOINS = [lambda a: nf.concat([a, dense(a)]), lambda a: nf.stack([a, dense(a)], axis=0)]
DENSE: list[Any] = [
    *JOINS,
    lambda a: a + 1.0, lambda a: 2 * a, lambda a: a == a, lambda a: a < 0.5, lambda a: nf.exp(a * 0.01), lambda a: -a,
    lambda a: nf.sum(a), lambda a: a.mean(axis=0), lambda a: nf.where(a > 0, a, 0.0), lambda a: nf.clip(a, -1, 1),
    lambda a: nf.sort(a), lambda a: a.astype("float64"), lambda a: nf.dequantize(a, "bfloat16") if a.dtype != "float32"
    else a.astype("bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_other_functions_give_dense_results_of_the_values(name: str, device: Any) -> None:
    shape = (5, 33) if isinstance(FORMATS[name].block, tuple) else (3, 2, 37)
    q = quantized(FORMATS[name], shape, seed=len(name))
    d = nf.asarray(np.asarray(q))
    for f in DENSE:
        got = f(q)
        assert type(got) is nf.Array
        same(got.astype("float64"), f(d).astype("float64"))
    assert float(q.max()) in q and 1e30 not in q and q.tolist() == d.tolist()


def test_formats_do_not_mix_in_one_array() -> None:
    a, b = quantized(nf.mxfp8, (2, 32)), quantized(nf.nvfp4, (2, 32))
    got = nf.concat([a, b])
    assert type(got) is nf.Array and got.dtype == nf.float32
    assert nf.concat([a, nf.ones((1, 32), dtype=nf.bfloat16)]).dtype == nf.bfloat16
    assert nf.stack([a, nf.ones((2, 32), dtype=nf.bfloat16)]).dtype == nf.bfloat16


@pytest.mark.parametrize("format", [nf.nvfp4, nf.fp8_e4m3, nf.nvfp4.replace(per_row_tensor_scale=True)], ids=str)
def test_scales_of_whole_tensors_must_be_equal_to_join(format: QuantDType, device: Any) -> None:
    a, b = quantized(format, (2, 32)), quantized(format, (2, 32), seed=1)
    if format.per_row_tensor_scale:
        same(nf.concat([a, b]), np.concatenate([np.asarray(a), np.asarray(b)]))
        a, b = a.T, b.T
    with pytest.raises(ShapeError, match=r"\[concat\] expected .* equal tensor scales, got scales that differ"):
        nf.concat([a, b])
    with pytest.raises(ShapeError, match=r"\[stack\]" if not format.per_row_tensor_scale else r"\[concat\]"):
        nf.stack([a, b]) if not format.per_row_tensor_scale else nf.concat([a, b])
    again = a.copy()  # equal words in memory of their own
    same(nf.concat([a, again]), np.concatenate([np.asarray(a)] * 2))


def test_joins_that_break_a_block_name_the_remedy() -> None:
    q = quantized(nf.mxfp8, (2, 40))
    for call, op in ((lambda: nf.concat([q, q], axis=1), "concat"), (lambda: nf.tile(q, 2), "tile")):
        with pytest.raises(ShapeError) as error:
            call()
        assert str(error.value) == (
            f"[{op}] mxfp8_e4m3 length 40 cuts a block of 32 on axis 1; "
            "join lengths that are multiples of 32, or dequantize with q.astype(nf.float32) first"
        )
    with pytest.raises(ShapeError, match=r"\[concat\] expected mxfp8_e4m3 arrays with one block axis, got \[0, 1\]"):
        nf.concat([q, quantized(nf.mxfp8, (40, 2)).T.reshape(2, 40), quantized(nf.mxfp8, (2, 40), axis=0)])
    with pytest.raises(ShapeError, match=r"\[broadcast_to\] .* breaks a block of 32 on axis 1; dequantize"):
        nf.broadcast_to(quantized(nf.mxfp8, (2, 1)), (2, 3))
    with pytest.raises(BlockIndexError, match=r"\[flip\] .* cuts a block of 32 on axis 1"):
        nf.flip(q)
    for call, op in (
        (lambda: nf.roll(q, 1, axis=1), "roll"), (lambda: nf.split(q, [8], axis=1), "split"),
        (lambda: nf.repeat(q, 2, axis=1), "repeat"), (lambda: nf.take(q, [0], axis=1), "take"),
        (lambda: nf.unstack(q, axis=1), "unstack"),
    ):  # fmt: skip
        with pytest.raises(BlockIndexError, match=rf"\[{op}\] mxfp8_e4m3 .* cuts a block of 32 on axis 1; slice at"):
            call()
    with pytest.raises(BlockIndexError, match=r"index array cuts a block of 32"):
        nf.take_along_axis(q, nf.zeros((2, 40), dtype=nf.int64), axis=0)


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
    with pytest.raises(BlockIndexError, match="index arrays that broadcast"):
        quantized(nf.mxfp8, (3, 3, 32))[[0, 1], [0, 1, 2]]
    if q.device.type == "cpu":
        with pytest.raises(BlockIndexError, match=r"\[getitem\] expected indices within \(4, 64\)"):
            q[[0, 4]]


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
    i = quantized(nf.mxint8, (3, 40))
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


VIEWS = [
    lambda w: w, lambda w: w.T, lambda w: w[:].mT, lambda w: nf.reshape(w, (1, 2, 32)), lambda w: nf.flip(w, axis=0),
    lambda w: nf.expand_dims(w, 0), lambda w: nf.squeeze(w[None]), lambda w: nf.broadcast_to(w, (2, 2, 32)),
    lambda w: nf.permute_dims(w, (1, 0)),
]  # fmt: skip


@pytest.mark.parametrize("view", VIEWS)
def test_backward_sees_that_a_quantized_parameter_was_written(view: Any, device: Any) -> None:
    w = nf.parameter(quantized(nf.mxfp8, (2, 32)), requires_grad=False)
    y = view(w)
    x = nf.ones((3, y.shape[-2]), requires_grad=True)
    z = (x @ y).sum()
    w.storage.write_(quantized(nf.mxfp8, (2, 32), seed=1).operand)
    with pytest.raises(GradientError, match="written"):
        z.backward()


def test_a_transposed_operand_of_four_axes_has_values() -> None:
    """Its axes do not fold in logical order: this once never ended on the CPU."""
    for axis in range(4):
        q = quantized(nf.mxfp8, (2, 3, 4, 5), axis)
        x = np.asarray(q)
        same(q.mT, np.swapaxes(x, -1, -2))
        order = (2, 3, 0, 1)
        same(nf.permute_dims(q.mT, order), np.swapaxes(x, -1, -2).transpose(order))
        same(q.mT @ nf.ones((4, 2)), (q.mT.astype(nf.float32) @ nf.ones((4, 2))))


def test_masks_and_index_arrays_together(device: Any) -> None:
    q = quantized(nf.nvfp4, (4, 3, 2, 32))
    x, mask = np.asarray(q), np.array([True, False, True, False])
    same(q[nf.asarray(mask), [0, 2]], x[mask, [0, 2]])
    same(q[nf.asarray(mask), :, [1, 0]], x[mask, :, [1, 0]])
    same(q[0, :, [1, 0, 1]], x[0, :, [1, 0, 1]])
    both = x[..., 0, 0] > 0
    same(q[nf.asarray(both)], x[both])
    same(q[nf.asarray(both), 1], x[both, 1])
    with pytest.raises(BlockIndexError, match=r"expected a mask of shape \(4,\) on axis 0, got \(3,\)"):
        q[nf.asarray(mask[:3]), [0, 2]]


def test_text_and_scalars() -> None:
    q = quantized(nf.fp8_e4m3, (2, 2))
    assert f"{q}" == str(q) == repr(q) and repr(q.T).startswith("nf.QuantizedArray([[")
    one = nf.quantize(nf.asarray([1.5]), nf.fp8_e4m3)
    assert f"{one:.2f}" == "1.50" and one.item() == 1.5 and one[0].shape == ()
    with pytest.raises(ShapeError, match="one element"):
        format(q, ".2f")
    with pytest.raises(DTypeError, match=r"dequantize with q\.astype"):
        float(one[0])
    assert repr(q[:0]).endswith("one scale)") and len(q[:0]) == 0 and list(q[:0]) == []
    with pytest.raises(TypeError):
        len(one[0])


def test_wrong_uses_are_told_by_type() -> None:
    q = quantized(nf.mxfp8, (4, 32))
    with pytest.raises(DTypeError, match=r"\[getitem\] expected integers, slices or index arrays, got mxfp8"):
        nf.ones((4, 32))[q]
    with pytest.raises(DTypeError, match=r"\[getitem\] .*got mxfp8"):
        nf.take_along_axis(q, q, axis=0)
    with pytest.raises(DTypeError, match="immutable"):
        q[q] = q
    with pytest.raises(ShapeError, match="each of 2 axes once"):
        nf.permute_dims(q, 1)  # type: ignore[arg-type]
    same(nf.tril(q), np.tril(np.asarray(q)))
    for dtype in (nf.bool, nf.int8, nf.bfloat16, nf.float64):
        assert nf.triu(nf.ones((2, 2), dtype=dtype)).dtype == dtype


def test_tensor_scales_of_rows_are_in_logical_order() -> None:
    q = quantized(nf.nvfp4.replace(per_row_tensor_scale=True), (16, 3, 2), axis=0)
    assert q.tensor_scale is not None and q.mT.tensor_scale is not None
    same(q.mT.tensor_scale, np.asarray(q.tensor_scale).T)
    parts = nf.QuantizedArray.from_parts(q.mT.codes, q.mT.scale, q.dtype, axis=0, tensor_scale=q.mT.tensor_scale)
    same(parts, np.asarray(q.mT))
