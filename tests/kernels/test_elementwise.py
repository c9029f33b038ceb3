"""`elementwise`: every op of the table against Python's numbers, in every dtype, on both devices."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from nvfp.device import Device
from nvfp.errors import ArgumentError, DTypeError, ShapeError
from nvfp.kernels.cuda._launch import count_launches
from nvfp.kernels.cuda.elementwise import walk
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.elementwise_table import OPS
from tests.devices import to_device, to_numpy
from tests.oracles import elementwise as oracle
from tests.tolerances import check

BF16, F16, F32, F64 = (np.dtype(t) for t in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64))
FLOATS, INTEGERS = (F32, BF16), ("int64", "int8", "uint64")
EDGES = (
    0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.0, 1e-40, -1e-40, 1e-8, 0.1,
    1e30, -1e30, 3.4e38, 2.0, -2.0, 7.0, 100.0, -100.0, 88.5, -104.0, 8388607.5, 16777217.0, 1e5,
)  # fmt: skip
EITHER_ZERO = ("maximum", "minimum", "clip")  # of 0 and -0 either may win


def floats(arity: int, dtype: np.dtype) -> list[np.ndarray]:
    """Special values crossed with each other, and normal numbers."""
    rng = np.random.default_rng(arity)
    grid = np.array(np.meshgrid(EDGES, EDGES)).reshape(2, -1)
    rows = [*grid, rng.permutation(grid[0])][:arity]
    with np.errstate(all="ignore"):
        return [np.concatenate([row, rng.standard_normal(64) * 4]).astype(dtype) for row in rows]


def integers(arity: int, dtype: np.dtype) -> list[np.ndarray]:
    """Extremes, small numbers and their combinations."""
    limits = np.iinfo(dtype)
    some = sorted({limits.min, limits.min + 1, -7, -2, -1, 0, 1, 2, 3, 8, 63, 64, limits.max // 2 + 1, limits.max})
    some = [v for v in some if limits.min <= v <= limits.max]
    grid = np.array(np.meshgrid(*[np.array(some, dtype)] * min(arity, 2))).reshape(min(arity, 2), -1)
    return [*grid, np.random.default_rng(0).permutation(grid[0])][:arity]


def rounded(values: list[Any], result: np.dtype, compute: np.dtype = F32) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.array(values, F64 if result != np.bool_ else np.bool_).astype(compute).astype(result)


def same(actual: np.ndarray, expected: np.ndarray, op: str, args: list[np.ndarray]) -> None:
    """Assert equal values and signs of zeros; NaN is NaN."""
    assert actual.dtype == expected.dtype
    a, e = (x.ravel() if x.dtype.kind in "biu" else x.astype(F64).ravel() for x in (actual, expected))
    ok = a == e
    if e.dtype == F64:
        ok = ok & ((np.signbit(a) == np.signbit(e)) | (op in EITHER_ZERO)) | (np.isnan(a) & np.isnan(e))
    if not ok.all():
        i = int(np.flatnonzero(~ok)[0])
        raise AssertionError(
            f"{op}{tuple(x.ravel()[i] for x in args)}: got {a[i]}, expected {e[i]}; {(~ok).sum()} differ"
        )


def run(op: str, args: list[np.ndarray], device: Device, **more: Any) -> np.ndarray:
    return to_numpy(elementwise(op, *(to_device(a, device) for a in args), **more))


def drawn(op: str, dtype: np.dtype) -> list[np.ndarray]:
    """Arguments for an op, its condition made bool."""
    arity = OPS[op].arity
    args = floats(arity, dtype) if dtype in (*FLOATS, F64) else integers(arity, dtype)
    return [args[0] != 0, *args[1:]] if OPS[op].mask else args


def test_every_op_has_an_oracle() -> None:
    known = {*oracle.EXACT, *oracle.CLOSE, *oracle.INTEGER, *oracle.BOOL, "floor_divide", "nextafter"}
    assert known == set(OPS)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", sorted(set(oracle.EXACT) & set(OPS)))
def test_exact_floats(op: str, dtype: np.dtype, device: Device) -> None:
    args = drawn(op, dtype)
    result = np.dtype(np.bool_) if OPS[op].result == "bool" else dtype
    same(run(op, args, device), rounded(oracle.value(oracle.EXACT[op], *args), result), op, args)


@pytest.mark.parametrize("op", sorted(set(oracle.EXACT) - {"multiply_add", "rsqrt", "remainder"}))
def test_exact_doubles(op: str, device: Device) -> None:
    args = drawn(op, F64)
    result = np.dtype(np.bool_) if OPS[op].result == "bool" else F64
    same(run(op, args, device), rounded(oracle.value(oracle.EXACT[op], *args), result, F64), op, args)


@pytest.mark.parametrize("dtype", (*FLOATS, F64), ids=str)
@pytest.mark.parametrize("op", sorted(oracle.CLOSE))
def test_close_floats(op: str, dtype: np.dtype, device: Device) -> None:
    args = drawn(op, dtype)
    expected = np.array(oracle.value(oracle.CLOSE[op], *args))
    with np.errstate(all="ignore"):  # what overflows the dtype is an infinity
        limits = ml_dtypes.finfo(dtype)
        expected = np.where(np.abs(expected) > float(limits.max), np.copysign(np.inf, expected), expected)
    near = np.abs(expected) > 0.99 * float(limits.max)  # may round either way
    actual = run(op, args, device)
    actual[near] = expected[near].astype(dtype)
    check(actual, expected.astype(F64), "elementwise", dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", sorted(oracle.INTEGER))
def test_integers(op: str, dtype: str, device: Device) -> None:
    args = drawn(op, np.dtype(dtype))
    values = oracle.value(oracle.INTEGER[op], *args)
    boolean = OPS[op].result == "bool"
    expected = np.array(values, np.bool_) if boolean else oracle.wrapped(values, np.dtype(dtype))
    same(run(op, args, device), expected, op, args)


@pytest.mark.parametrize("op", sorted(oracle.BOOL))
def test_bools(op: str, device: Device) -> None:
    grid = np.array(np.meshgrid(*[[False, True]] * OPS[op].arity)).reshape(OPS[op].arity, -1)
    expected = np.array([oracle.BOOL[op](*row) for row in grid.T.tolist()], np.bool_)
    same(run(op, list(grid), device), expected, op, list(grid))


def test_floor_divide(device: Device) -> None:
    a, b = drawn("floor_divide", F32)
    finite = np.isfinite(a) & np.isfinite(b) & (b != 0)
    exact = [float(Fraction(float(p)) / Fraction(float(q)) // 1) for p, q in zip(a[finite], b[finite])]
    actual = run("floor_divide", [a, b], device)
    check(actual[finite], np.where(np.abs(exact) > 3.4e38, np.copysign(np.inf, exact), exact), "elementwise", F32)
    with np.errstate(all="ignore"):
        same(actual, np.floor_divide(a, b), "floor_divide", [a, b])


@pytest.mark.parametrize("dtype", (F32, F64), ids=str)
def test_nextafter(dtype: np.dtype, device: Device) -> None:
    a, b = drawn("nextafter", dtype)
    with np.errstate(all="ignore"):
        same(run("nextafter", [a, b], device), np.nextafter(a, b), "nextafter", [a, b])


@pytest.mark.parametrize("dtype", (np.complex64, np.complex128))
@pytest.mark.parametrize("op", sorted(name for name, row in OPS.items() if "c" in row.kinds))
def test_complex_is_numpys(op: str, dtype: Any, device: Device) -> None:
    rng = np.random.default_rng(3)
    args = [(rng.standard_normal(9) + 1j * rng.standard_normal(9)).astype(dtype) for _ in range(OPS[op].arity)]
    args = [args[0].real > 0, *args[1:]] if OPS[op].mask else args
    by_formula = {
        "power": np.power,
        "multiply_add": lambda a, b, c: a * b + c,
        "where": np.where,
        "copy": np.copy,
        "real": np.real,
        "imag": np.imag,
        "reciprocal": lambda a: dtype(1) / a,
    }
    expected = np.asarray(by_formula.get(op, OPS[op].numpy)(*args))
    actual = run(op, args, device)
    assert actual.dtype == expected.dtype
    if device.type == "cpu":
        assert np.array_equal(actual, expected)
    assert np.allclose(actual, expected, rtol=1e-5)


def test_one_rounding_from_float64(device: Device) -> None:
    """1 + 2**-9 + 2**-30 is above a tie of bfloat16: through float32 it would fall on the tie and round down."""
    x = np.array([1 + 2.0**-8 + 2.0**-30, 1 + 2.0**-11 + 2.0**-40], F64)
    assert to_numpy(elementwise("copy", to_device(x, device), dtype=BF16)).tolist() == [1.0078125, 1.0]
    out = to_device(np.zeros(2, F16), device)
    assert to_numpy(elementwise("positive", to_device(x, device), out=out)).tolist()[1] == 1.0009765625


@pytest.mark.parametrize(
    ("op", "kinds", "expected"),
    [
        ("add", ("bfloat16", 2.0), "bfloat16"),
        ("add", ("int32", 2), "int32"),
        ("multiply", ("int32", 2.5), "float32"),
        ("add", ("int8", "bfloat16"), "bfloat16"),
        ("add", ("float16", "float64"), "float16"),
        ("add", ("bool", 2), "int64"),
        ("add", ("bool", True), "bool"),
        ("exp", ("int32",), "float32"),
        ("exp", ("bool",), "float32"),
        ("less", ("uint8", 300), "bool"),
        ("where", (True, "float16", 0.0), "float16"),
        ("where", ("bool", 1.0, "bfloat16"), "bfloat16"),
        ("isnan", ("int32",), "bool"),
    ],
)
def test_default_dtype(op: str, kinds: tuple[Any, ...], expected: str, device: Device) -> None:
    args = [to_device(np.ones(3).astype(k), device) if isinstance(k, str) else k for k in kinds]
    assert to_numpy(elementwise(op, *args)).dtype == np.dtype(expected)


@pytest.mark.parametrize("shape", [(544, 1000), (2, 600, 500)], ids=str)
def test_large_transposed_operands(shape: tuple[int, ...], device: Device) -> None:
    """CUDA turns them by tiles first; the output may be the memory that they view."""
    x, y = (np.random.default_rng(k).standard_normal(shape, np.float32) for k in (0, 1))
    turned = np.ascontiguousarray(y.swapaxes(-1, -2))
    got = elementwise("subtract", to_device(x, device), to_device(turned, device).swapaxes(-1, -2))
    assert to_numpy(got).tobytes() == (x - y).tobytes()
    square = to_device(np.ascontiguousarray(x[..., :500, :500]), device)
    wanted = to_numpy(square) + to_numpy(square).swapaxes(-1, -2)
    elementwise("add", square, square.swapaxes(-1, -2), out=square)
    assert to_numpy(square).tobytes() == wanted.tobytes()


def test_scalars(device: Device) -> None:
    x = to_device(np.arange(5, dtype=F32), device)
    tenth = np.float32(0.1)
    assert to_numpy(elementwise("multiply", x, 0.1)).tolist() == (np.arange(5, dtype=F32) * tenth).tolist()
    assert to_numpy(elementwise("subtract", 1e300, x))[0] == np.inf
    assert to_numpy(elementwise("add", x, np.int64(2))).tolist() == [2, 3, 4, 5, 6]
    assert to_numpy(elementwise("add", x, ml_dtypes.bfloat16(0.5))).dtype == F32
    word = to_device(np.asarray(3.0, F32), device)  # a 0-d device array broadcasts
    assert to_numpy(elementwise("maximum", x, word)).tolist() == [3, 3, 3, 3, 4]
    assert to_numpy(elementwise("copy", word)).shape == ()


def test_square_root_by_power(device: Device) -> None:
    x = to_device(np.array([-np.inf, -0.0, 4.0, -1.0], F32), device)
    same(to_numpy(elementwise("power", x, 0.5)), np.array([np.inf, 0.0, 2.0, np.nan], F32), "power", [])


def test_fill_and_masks(device: Device) -> None:
    out = to_device(np.zeros((4, 6), BF16), device)[::2, 1:]
    assert elementwise("copy", 2.5, out=out) is out
    assert to_numpy(out).astype(float).tolist() == [[2.5] * 5] * 2
    x = to_device(np.array([-1.0, 2.0], F32), device)
    assert to_numpy(elementwise("greater", x, 0.0, dtype=F32)).tolist() == [0.0, 1.0]


def test_output_may_be_an_operand(device: Device) -> None:
    base = np.arange(100_003, dtype=F32)
    x = to_device(base.copy(), device)
    elementwise("multiply_add", x, 2.0, x, out=x)
    assert np.array_equal(to_numpy(x), base * 3)


@pytest.mark.parametrize("n", (50, 300_000))
def test_overlapping_output(n: int, device: Device) -> None:
    base = np.arange(n, dtype=F32)
    x = to_device(base.copy(), device)
    elementwise("add", x[:-1], x[1:], out=x[1:])
    assert np.array_equal(to_numpy(x)[1:], base[:-1] + base[1:])
    x = to_device(base.copy(), device)
    elementwise("negative", x[::-1], out=x)
    assert np.array_equal(to_numpy(x), -base[::-1])


def test_read_only_input() -> None:
    x = np.ones(4, BF16)
    x.flags.writeable = False
    assert elementwise("add", x, x).tolist() == [2.0] * 4


@pytest.mark.parametrize("dtype", (F32, BF16), ids=str)
@pytest.mark.parametrize(
    "shapes", [((700, 601), (700, 1)), ((600, 1), (1, 700)), ((3, 150_001), ()), ((420_000,), (1,))]
)
def test_many_tiles(shapes: tuple[tuple[int, ...], ...], dtype: np.dtype, device: Device) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    expected = (a.astype(F32) * b.astype(F32)).astype(dtype)
    assert np.array_equal(run("multiply", [a, b], device), expected)
    one = np.float32(1)
    with np.errstate(all="ignore"):
        t = np.exp(-np.abs(a.astype(F32)))
        check(run("sigmoid", [a], device), (np.where(a >= 0, one, t) / (one + t)).astype(F64), "elementwise", dtype)


@st.composite
def operands(draw: st.DrawFn, dtypes: tuple[Any, ...]) -> list[np.ndarray]:
    """Arrays of any layout (steps, reversed, transposed, broadcast, 0-d, empty) that broadcast together."""
    shape = draw(st.lists(st.integers(0, 9), max_size=4))
    found = []
    for seed, dtype in enumerate(dtypes):
        own = [1 if draw(st.booleans()) else n for n in shape][draw(st.integers(0, len(shape))) :]
        steps = [draw(st.sampled_from((1, 1, 2, -1, -2))) for _ in own]
        order = draw(st.permutations(range(len(own))))
        numbers = np.random.default_rng(seed).integers(-9, 9, [own[a] * abs(steps[a]) for a in order])
        base = np.asarray(numbers > 0 if dtype is bool else numbers).astype(dtype)
        cut = np.asarray(base[tuple(slice(None, None, steps[a]) for a in order)])
        view = cut.transpose(np.argsort(order).tolist())
        wide = [n if m == 1 else m for m, n in zip(own, shape[len(shape) - len(own) :])]
        found.append(np.broadcast_to(view, wide) if draw(st.booleans()) else view)
    return found


LAYOUTS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "multiply_add": ((F32, BF16, F32), lambda a, b, c: a * b + c),
    "where": ((bool, BF16, BF16), np.where),
    "clip": ((np.int8,) * 3, lambda a, b, c: np.minimum(np.maximum(a, b), c)),
}


@pytest.mark.sanitizer
@pytest.mark.parametrize("op", LAYOUTS)
@settings(max_examples=60)
@given(data=st.data())
def test_layouts(data: st.DataObject, op: str, device: Device) -> None:
    dtypes, formula = LAYOUTS[op]
    args = data.draw(operands(dtypes))
    expected = formula(*(a.astype(F32) if a.dtype == BF16 else a for a in args)).astype(dtypes[-1])
    actual = run(op, args, device)
    assert actual.shape == expected.shape
    assert np.array_equal(actual, expected)
    assert actual.flags.c_contiguous


@pytest.mark.gpu
def test_one_launch() -> None:
    x = to_device(np.ones((65, 33), BF16), "cuda")
    for op, args in (("add", (x, x)), ("multiply", (x.T, 2.0)), ("where", (True, x[::-1], x[:1]))):
        with count_launches() as count:
            elementwise(op, *args)
        assert count.n == 1


def test_errors(device: Device) -> None:
    x, i = (to_device(np.ones((2, 3), t), device) for t in (F32, np.int32))
    u, b = (to_device(np.ones((2, 3), t), device) for t in (np.uint64, np.bool_))
    c = to_device(np.ones((2, 3), np.complex64), device)
    cases: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (ArgumentError, "maximun", (x, x), {}),
        (ArgumentError, "add", (x,), {}),
        (ArgumentError, "add", (1.0, 2.0), {}),
        (ArgumentError, "add", (i, 2**70), {}),
        (ShapeError, "add", (x, x[:, :2]), {}),
        (ShapeError, "add", (x, x), {"out": x[0]}),
        (ShapeError, "add", (x, x), {"dtype": F64, "out": x}),
        (DTypeError, "add", (x, x), {"dtype": np.dtype(np.int32)}),
        (DTypeError, "bitwise_and", (x, x), {}),
        (DTypeError, "subtract", (b, b), {}),
        (DTypeError, "add", (x, [1.0]), {}),
        (DTypeError, "where", (x, x, x), {}),
        (DTypeError, "add", (u, i), {}),
        (DTypeError, "less", (c, c), {}),
        (DTypeError, "nextafter", (to_device(np.ones(2, BF16), device),) * 2, {}),
        (DTypeError, "add", (x, x), {"dtype": np.dtype(ml_dtypes.float8_e4m3fn)}),
    ]  # fmt: skip
    for error, op, args, more in cases:
        with pytest.raises(error, match=r"^\[\w+\] expected .*, got .*; "):
            elementwise(op, *args, **more)


@given(args=operands((F32, BF16, np.float64)))
def test_cuda_walk_visits_every_element(args: list[np.ndarray]) -> None:
    """The launcher's collapsed axes, strides and packs, walked as the kernel walks them."""
    shape = np.broadcast_shapes(*(a.shape for a in args))
    out = np.empty(shape, F32)
    if out.size == 0:
        return
    arrays = [*args, out]
    views = tuple((a.dtype, a.shape, a.strides, a.__array_interface__["data"][0] % 16) for a in arrays)
    lengths, strides, per = walk(views)
    assert np.prod(lengths) == out.size
    assert len(lengths) == 1 or lengths[-1] % per == 0
    index = np.indices(lengths).reshape(len(lengths), -1)
    for array, steps, view in zip(arrays, strides, views):
        at = (np.array(steps)[:, None] * index).sum(0) * array.dtype.itemsize
        full = np.broadcast_to(array, shape)
        grid = np.indices(shape).reshape(len(shape), -1) if shape else np.zeros((0, 1), int)
        assert np.array_equal(at, (np.array(full.strides, int)[:, None] * grid).sum(0) if shape else [0])
        if per > 1 and steps[-1] == 1:
            starts = at[::per] + view[3]
            assert not (starts % min(16, per * array.dtype.itemsize)).any()
