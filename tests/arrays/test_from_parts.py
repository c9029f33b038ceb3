"""`QuantizedArray.from_parts`: every bit comes back, for all rows and rows of users; what does not fit is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import nvfp as nf
from nvfp.dtypes.conventions import STACKS
from nvfp.dtypes.formats import FORMATS
from nvfp.errors import ArgumentError, DeviceError, DTypeError, ShapeError

ROWS: list[Any] = [
    *FORMATS.values(),
    nf.QuantDType("e3m2_b24", element="float6_e3m2fn", block=24, scale="float8_e5m2"),
    nf.QuantDType("int4_b32", element="int4", block=32, scale="bfloat16"),
    nf.QuantDType("int4_2d", element="int4", block=(4, 6), scale="float16", nonfinite="saturate"),
    nf.QuantDType("fp4_tensor", element="float4_e2m1fn", block=None, scale="float32"),
    nf.QuantDType("b32", element="float8_e5m2", block=32, scale="float32"),
    nf.nvfp4.replace(per_row_tensor_scale=True),
    nf.nvfp4.replace(four_over_six="mae_256"),
    nf.nvfp4.replace(four_over_six="mse_448", block=(16, 16)),
    nf.nvfp4.replace(block=(16, 16)),
    nf.mxfp8.replace(block=(8, 3)),
    nf.fp8_e4m3_b128.replace(block=(128, 128)),
]
make = nf.QuantizedArray.from_parts


def values(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * np.exp2(rng.integers(-6, 7, shape))).astype(np.float32)


def parts(q: Any) -> list[Any]:
    """The bits of what a user reads."""
    return [
        None if p is None else (p.dtype, p.shape, np.asarray(p).tobytes()) for p in (q.codes, q.scale, q.tensor_scale)
    ]


def again(q: Any, form: Any = lambda part: part) -> Any:
    word = None if q.tensor_scale is None else form(q.tensor_scale)
    return make(form(q.codes), form(q.scale), q.dtype, axis=q.axis, tensor_scale=word, shape=q.shape)


def apart(part: Any) -> np.ndarray:
    """A NumPy array whose elements do not lie side by side and run backward."""
    x = np.asarray(part)
    if x.ndim == 0:
        return x
    wide = np.zeros(tuple(2 * n for n in x.shape), x.dtype)
    view = wide[tuple(slice(None, None, -2) for _ in x.shape)]
    view[...] = x
    return view


@pytest.mark.parametrize("row", ROWS, ids=str)
@pytest.mark.parametrize("shape", [(17, 33), (3, 5, 7), (0, 33), (2, 0)], ids=str)
def test_round_trip_of_every_axis(device: Any, row: Any, shape: tuple[int, ...]) -> None:
    across = (row.block_shape or (1, 1))[0]
    for axis in range(len(shape) - 2 if across > 1 else 0, len(shape)):
        q = nf.quantize(nf.asarray(values(shape)), row, axis=axis)
        for form in (lambda part: part, np.asarray, apart):
            for source in (q, q.mT):
                back = again(source, form)
                assert (back.dtype, back.axis, back.shape) == (row, source.axis, source.shape)
                assert parts(back) == parts(source)
                np.testing.assert_array_equal(np.asarray(back), np.asarray(source))
        assert back.nbytes == q.nbytes


@settings(max_examples=30)
@given(
    row=st.sampled_from(ROWS), seed=st.integers(0, 99),
    bad=st.sampled_from([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42]), stack=st.sampled_from([None, *STACKS]),
)  # fmt: skip
def test_what_quantize_makes_is_accepted(row: Any, seed: int, bad: float, stack: str | None) -> None:
    """Its scales are never refused: NaN blocks, all-zero ones, infinities that saturate, every stack's rule."""
    x = values((9, 70), seed)
    x[3, 5] = x[4] = bad
    try:
        q = nf.quantize(nf.asarray(x), row, convention=stack)
    except ArgumentError:
        return  # that stack does not have this format
    assert parts(again(q)) == parts(q)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_files_and_pickles_keep_the_record(device: Any, row: Any, tmp_path: Path) -> None:
    q = nf.quantize(nf.asarray(values((20, 33))), row, axis=0)
    nf.save(tmp_path / "x", {"q": q, "t": q.T})
    back = nf.load(tmp_path / "x")
    for got, want in ((back["q"], q), (back["t"], q.T), (pickle.loads(pickle.dumps(q.T)), q.T)):
        assert (got.dtype, got.axis, got.shape, got.device) == (row, want.axis, want.shape, want.device)
        assert parts(got) == parts(want)


def test_files_keep_every_field(tmp_path: Path) -> None:
    row = nf.mxfp4.replace(scale_rule="even", nonfinite="saturate", block=(2, 8), name="mine")
    nf.save(tmp_path / "x", nf.quantize(nf.asarray(values((4, 16))), row))
    content = (tmp_path / "x").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    told = json.loads(header["__metadata__"]["nvfp.quantized"])["nvfp.array"]["format"]
    assert set(told) == set(row.__dataclass_fields__) and told["scale_rule"] == "even"
    assert nf.load(tmp_path / "x").dtype == row


def small() -> tuple[Any, Any]:
    return np.zeros((2, 32), np.uint8), np.full((2, 1), 127, np.uint8)


def test_scales_that_are_no_decode_factors() -> None:
    codes, _ = small()
    mine = nf.QuantDType("mine", element="float8_e4m3fn", block=32, scale="bfloat16")
    for row, scale in (
        (nf.fp8_e4m3, np.float32(-1)),
        (nf.fp8_e4m3, np.float32(np.nan)),
        (nf.fp8_e4m3, np.float32(np.inf)),
        (nf.QuantDType("b", element="float8_e4m3fn", block=32, scale="float32"), np.float32([[1], [-np.inf]])),
        (mine, np.array([[1], [-2]], nf.bfloat16)),
        (mine, np.array([[0x3F80], [0xBF80]], np.uint16)),
        (nf.mxfp8.replace(scale="float8_e5m2", name="e5m2 scales"), np.array([[0x3C], [0x7C]], np.uint8)),
    ):
        with pytest.raises(ArgumentError, match=r"\[from_parts\] expected scale as decode factors >= 0 and finite"):
            make(codes, scale, row)
    half = codes[:, :16]
    with pytest.raises(ArgumentError, match="scale as decode factors"):
        make(half, np.full((2, 2), 0xB8, np.uint8), nf.nvfp4, tensor_scale=1.0)  # e4m3's -1
    for word in (-1.0, np.nan, np.inf, np.float32(-0.5)):
        with pytest.raises(ArgumentError, match="tensor_scale as decode factors"):
            make(half, np.full((2, 2), 0x38, np.uint8), nf.nvfp4, tensor_scale=word)
    with pytest.raises(ArgumentError, match=r"scale as decode factors .*, or NaN for a NaN block"):
        make(
            codes, np.float32([[-1], [np.nan]]), nf.QuantDType("n", element="float8_e4m3fn", block=32, scale="float32")
        )


def test_codes_wider_than_the_element() -> None:
    codes, scale = small()
    codes[1, 3] = 64
    with pytest.raises(ArgumentError, match="codes below 64 for float6_e2m3fn, got code 64"):
        make(codes, scale, nf.mxfp6_e2m3)
    make(codes, scale, nf.mxfp8)


def test_dtypes_of_parts() -> None:
    codes, scale = small()
    for wrong in (codes.astype(np.int8), codes.astype(np.float32), codes.astype(nf.float8_e5m2), codes.tolist()):
        with pytest.raises(DTypeError, match="codes as uint8 or float8_e4m3fn"):
            make(wrong, scale, nf.mxfp8)
    for wrong in (scale.astype(np.float32), scale.view(nf.float8_e4m3fn), scale.astype(np.int64)):
        with pytest.raises(DTypeError, match="scale as uint8 or float8_e8m0fnu"):
            make(codes, wrong, nf.mxfp8)
    nibbles, e4m3 = codes[:, :16], np.full((2, 2), 0x38, np.uint8)
    for word in (np.ones(1), True, 1j, np.float32([1, 1])[:1].astype(np.float16)):
        with pytest.raises(DTypeError, match="tensor_scale as float32, or one number"):
            make(nibbles, e4m3, nf.nvfp4, tensor_scale=word)
    for word in (1, 1.0, np.float64(1), np.float32(1), nf.asarray(1.0)):
        kept = make(nibbles, e4m3, nf.nvfp4, tensor_scale=word).tensor_scale
        assert kept is not None and kept.dtype == nf.float32 and kept.item() == 1.0
    with pytest.raises(DTypeError, match="a quantized dtype"):
        make(codes, scale, nf.float32)


def test_shapes_of_parts() -> None:
    square = nf.mxfp8.replace(block=(16, 16))
    with pytest.raises(ShapeError, match="one of the last two axes for blocks"):
        make(np.zeros((32, 32, 32), np.uint8), np.zeros((2, 2, 32), np.uint8), square, axis=0)
    with pytest.raises(ShapeError, match="one of the last two axes for blocks"):
        make(np.zeros(32, np.uint8), np.zeros(2, np.uint8), square)
    codes, scale = small()
    for shape in (5, (True, 32), (2.0, 32), "ab", (2, -32), (2, 31), (32, 2)):
        with pytest.raises(ShapeError, match=r"\[from_parts\]"):
            make(codes, scale, nf.mxfp8, shape=shape)
    assert make(codes, scale, nf.mxfp8, shape=[np.int64(2), 32]).shape == (2, 32)  # type: ignore[arg-type]


@pytest.mark.gpu
def test_parts_on_two_devices() -> None:
    codes, scale = (nf.asarray(part, device="cpu") for part in small())
    with pytest.raises(DeviceError, match="scale on cpu, where the codes are, got cuda:0"):
        make(codes, scale.to_device("cuda"), nf.mxfp8)
    moved = make(codes.to_device("cuda"), np.asarray(scale), nf.mxfp8)
    assert moved.scale.device is moved.codes.device


def test_debug_reads_values_on_cuda(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    codes, _ = small()
    monkeypatch.setenv("NVFP_DEBUG", "1")
    with pytest.raises(ArgumentError, match="decode factors"):
        make(codes, np.float32(-1), nf.fp8_e4m3)
