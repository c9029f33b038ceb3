"""Drawn shapes, strides, dtypes and special values through every stem.

On CUDA each case is compared with the CPU twin: 2,040 of them, bits where bits are promised. On the CPU a few of the
same cases are compared with themselves on contiguous copies, so that what is drawn stays true where no GPU is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from nvfp.device import Device
from nvfp.dtypes import elements as el
from nvfp.kernels.activation import KINDS, activation, activation_vjp
from nvfp.kernels.amax import amax
from nvfp.kernels.bias_grad import bias_grad
from nvfp.kernels.cast import cast
from nvfp.kernels.cross_entropy import cross_entropy
from nvfp.kernels.dequantize import dequantize
from nvfp.kernels.dropout import dropout
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.embedding import embedding, embedding_vjp
from nvfp.kernels.gemm import gemm
from nvfp.kernels.hadamard import hadamard
from nvfp.kernels.layer_norm import layer_norm, layer_norm_vjp
from nvfp.kernels.operand import Operand, OperandPair
from nvfp.kernels.quantize import quantize
from nvfp.kernels.reduce import reduce
from nvfp.kernels.rms_norm import rms_norm, rms_norm_vjp
from nvfp.kernels.rope import rope
from nvfp.kernels.softmax import softmax, softmax_vjp
from nvfp.kernels.transpose import transpose
from tests.devices import to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F16, F32, SPECIAL, bits
from tests.kernels.quantized import BUILT, MADE
from tests.tolerances import check

EACH = 120  # cases of a stem on CUDA
FEW = 3  # on the CPU
F64 = np.dtype(np.float64)
Rng = np.random.Generator


@dataclass
class Case:
    """One call: arrays, what is done with them, and how near the devices must be.

    Attributes:
        arrays: inputs, NumPy.
        call: from arrays of a device to results of that device.
        row: tolerance row; None: the same bits.
        scale: unit of the row's atol: one for all results, or a list of one per result.
    """

    arrays: Sequence[Any]
    call: Callable[..., Any]
    row: str | None = None
    scale: Any = 1.0


def pick(rng: Rng, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def lengths(rng: Rng, ndim: int, most: int = 400) -> tuple[int, ...]:
    """Lengths that are even in their logarithm; now and then 0."""
    found = [int(most ** rng.random()) for _ in range(ndim)]
    if rng.random() < 0.03:
        found[int(rng.integers(ndim))] = 0
    return tuple(found)


def drawn(rng: Rng, shape: tuple[int, ...], dtype: np.dtype, *, special: bool = False, scale: float = 2.0) -> Any:
    """Normal numbers of a shape, in memory of any layout."""
    order = rng.permutation(len(shape))
    steps = [int(pick(rng, 1, 1, 1, 2, -1, -3)) for _ in shape]
    stored = [shape[axis] * abs(step) for axis, step in zip(order, steps)]
    x = rng.standard_normal(stored) * scale
    if special and x.size:
        flat = x.reshape(-1)
        flat[rng.integers(0, x.size, size=1 + x.size // 97)] = rng.choice(SPECIAL, size=1 + x.size // 97)
    with np.errstate(all="ignore"):
        x = x.astype(dtype)[tuple(slice(None, None, step) for step in steps)].transpose(np.argsort(order))
    if rng.random() < 0.05 and 0 not in shape:
        x = np.broadcast_to(x[:1], shape)
    return x


def float_case(rng: Rng, ndim: int, most: int = 400) -> Any:
    return drawn(rng, lengths(rng, ndim, most), pick(rng, *COMPUTED))


def casts(rng: Rng) -> Case:
    x = drawn(rng, lengths(rng, pick(rng, 1, 2, 3), 300), pick(rng, *COMPUTED, F64), special=True)
    target = pick(rng, *COMPUTED, F64, el.float8_e4m3fn.dtype, el.float8_e5m2.dtype, el.float4_e2m1fn.dtype)
    return Case([x], lambda x: cast(x, target))


def maxima(rng: Rng) -> Case:
    x = drawn(rng, lengths(rng, pick(rng, 1, 2, 3)), pick(rng, *COMPUTED, F64), special=True)
    return Case([x], lambda x: amax(x, finite=True))


def transposes(rng: Rng) -> Case:
    return Case([drawn(rng, lengths(rng, 2), pick(rng, *COMPUTED), special=True)], transpose)


def rotations(rng: Rng) -> Case:
    axis = pick(rng, 0, 1)
    return Case([drawn(rng, lengths(rng, 2), BF16)], lambda x: hadamard(x, axis=axis))


def quantizes(rng: Rng) -> Case:
    fmt = pick(rng, *BUILT, *MADE)
    square = (fmt.block_shape or (1, 1))[0] > 1
    col = rng.random() < 0.5
    x = drawn(rng, lengths(rng, 2 if col or square else pick(rng, 1, 2, 3)), pick(rng, *COMPUTED), special=True)
    row = not col or rng.random() < 0.7
    return Case([x], lambda x: quantize(x, fmt, row=row, col=col))


def expansions(rng: Rng) -> Case:
    fmt = pick(rng, *BUILT, *MADE)
    x = drawn(rng, lengths(rng, 2), F32, special=True)
    side, dtype = pick(rng, "row", "col"), pick(rng, F32, BF16)
    operand = quantize(x, fmt, row=side == "row", col=side == "col").side(side)
    return Case([operand], lambda q: dequantize(q, dtype))


def drops(rng: Rng) -> Case:
    x, p, key = float_case(rng, 2), float(rng.random() * 0.9), int(rng.integers(2**63))
    return Case([x, np.array(7, np.int64)], lambda x, step: dropout(x, p, key=key, ordinal=3, step=step)[0])


def sums_of_two(rng: Rng) -> Case:
    shape, op = lengths(rng, pick(rng, 1, 2, 3), 200), pick(rng, "add", "multiply", "subtract", "maximum")
    a, b = (drawn(rng, shape, pick(rng, *COMPUTED), special=True) for _ in range(2))
    return Case([a, b], lambda a, b: elementwise(op, a, b))


def activations(rng: Rng) -> Case:
    kind = pick(rng, *KINDS)
    rows, columns = lengths(rng, 2, 300)
    x = drawn(rng, (rows, 2 * columns if KINDS[kind].gated else columns), pick(rng, *COMPUTED))
    dy = drawn(rng, (rows, columns), x.dtype, scale=1.0)
    return Case([x, dy], lambda x, dy: (activation(x, kind), activation_vjp(x, dy, kind)), "activation", 20.0)


def norms(rng: Rng) -> Case:
    rows, columns = lengths(rng, 2, 700)
    x = drawn(rng, (rows, columns), pick(rng, *COMPUTED)) + np.float32(0.5).astype(BF16)
    dy, weight, bias = (drawn(rng, s, x.dtype) for s in ((rows, columns), (columns,), (columns,)))

    def call(x: Any, dy: Any, weight: Any, bias: Any) -> Any:
        y, mean, rstd = layer_norm(x, weight, bias)
        z, root = rms_norm(x, weight)
        return y, z, layer_norm_vjp(dy, x, weight, mean, rstd), rms_norm_vjp(dy, x, weight, root)

    return Case([x, dy, weight, bias], call, "norm", norm_scales(x, dy, weight, bias))


def norm_scales(*arrays: Any) -> list[Any]:
    """Units of the results of `norms`: a row of few values may have almost no variance, so 1/std multiplies errors."""
    x, dy, weight, bias = (np.abs(a.astype(np.float64)) for a in arrays)
    if 0 in x.shape:
        return [1.0] * 7
    top = x.max(axis=1, keepdims=True)
    spread = [1 / np.sqrt(v + 1e-5) for v in (arrays[0].astype(np.float64).var(axis=1, keepdims=True), 0 * top)]
    spread[1] = 1 / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5)
    y, z = (top * s * weight + bias for s in spread)
    dx, dz = (s * (1 + top * s) ** 2 * (dy * weight).max(axis=1, keepdims=True) for s in spread)
    dw, dv = ((dy * (1 + top * s) ** 2).sum(axis=0) for s in spread)
    return [y, z, dx, dw, dy.sum(axis=0), dz, dv]


def weights(rng: Rng) -> Case:
    shape = (pick(rng, 1, 3), *lengths(rng, 2, 300))
    x = drawn(rng, shape, pick(rng, *COMPUTED))
    dy, causal = drawn(rng, shape, x.dtype), pick(rng, None, "top_left")
    y, _ = softmax(x, scale=0.5, causal=causal)

    def call(x: Any, y: Any, dy: Any) -> Any:
        return softmax(x, scale=0.5, causal=causal)[0], softmax_vjp(y, dy, scale=0.5)

    return Case([x, y, dy], call, "softmax", 4.0)


def losses(rng: Rng) -> Case:
    rows, columns = (max(1, n) for n in lengths(rng, 2, 300))
    x, ids = drawn(rng, (rows, columns), pick(rng, *COMPUTED)), rng.integers(0, columns, rows).astype(np.int32)
    return Case([x, ids], lambda x, ids: cross_entropy(x, ids)[:2], "cross_entropy", 10.0)


def tables(rng: Rng) -> Case:
    rows, columns, count = (max(1, n) for n in lengths(rng, 3, 200))
    table, ids = drawn(rng, (rows, columns), pick(rng, *COMPUTED)), rng.integers(0, rows, count).astype(np.int64)
    dy = drawn(rng, (count, columns), table.dtype)

    def call(table: Any, ids: Any, dy: Any) -> Any:
        return embedding(table, ids), embedding_vjp(dy, ids, rows, dtype=np.dtype(np.float32))

    sums = np.zeros((rows, columns))
    np.add.at(sums, ids, np.abs(dy.astype(np.float64)))
    return Case([table, ids, dy], call, "embedding", [1.0, 1.0 + sums])


def totals(rng: Rng) -> Case:
    x, op = float_case(rng, pick(rng, 1, 2, 3), 200), pick(rng, "sum", "mean", "max")
    axis = pick(rng, None, 0, -1)
    if op != "sum" and 0 in x.shape:
        op = "sum"
    wide = np.abs(x.astype(np.float64))
    unit = wide.mean(axis=axis) if op == "mean" else wide.sum(axis=axis)
    return Case([x], lambda x: reduce(op, x, axis=axis), "reduce", unit)


def biases(rng: Rng) -> Case:
    x = float_case(rng, 2)
    return Case([x], bias_grad, "bias_grad", np.abs(x.astype(np.float64)).sum(axis=0))


def products(rng: Rng) -> Case:
    m, k, n = lengths(rng, 3, 200)
    a, b = drawn(rng, (m, k), BF16), drawn(rng, (k, n), BF16)
    wide = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    return Case([a, b], lambda a, b: gemm(a, b, dtype=F32), "gemm", wide)


def turns(rng: Rng) -> Case:
    length, heads, half = (max(1, n) for n in lengths(rng, 3, 40))
    x = drawn(rng, (2, length, heads, 2 * half), pick(rng, F32, BF16, F16))
    angles, interleaved = drawn(rng, (length, 2 * half), F32), bool(rng.random() < 0.5)
    return Case(
        [x, angles], lambda x, angles: rope(x, angles, interleaved=interleaved), "rope", np.abs(x.astype(F32)).max()
    )


DRAWS = (
    casts, maxima, transposes, rotations, quantizes, expansions, drops, sums_of_two, activations, norms, weights,
    losses, tables, totals, biases, products, turns,
)  # fmt: skip


def flat(result: Any) -> list[Any]:
    """The arrays of a result."""
    if result is None:
        return []
    if isinstance(result, OperandPair):
        return flat((result.row, result.col))
    if isinstance(result, Operand):
        return flat((result.codes, result.scale, result.tensor_scale))
    if isinstance(result, tuple | list):
        return [one for part in result for one in flat(part)]
    return [to_numpy(result)]


def compare(case: Case, actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(actual) == len(expected) > 0
    scales = case.scale if isinstance(case.scale, list) else [case.scale] * len(actual)
    for one, other, scale in zip(actual, expected, scales, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        if case.row is None or one.dtype.kind in "iub":
            both = (bits(x) if x.dtype.kind == "f" or x.dtype == BF16 else x for x in (one, other))
            np.testing.assert_array_equal(*both)
        else:
            check(one, other.astype(np.float64), case.row, scale=scale, factor=2.0)


@pytest.mark.parametrize("draw", DRAWS, ids=lambda draw: draw.__name__)
def test_drawn_cases(draw: Callable[[Rng], Case], device: Device) -> None:
    for seed in range(FEW if device.type == "cpu" else EACH):
        case = draw(np.random.default_rng([seed, len(draw.__name__)]))
        if device.type == "cpu":
            again = [np.ascontiguousarray(x) if isinstance(x, np.ndarray) and x.ndim else x for x in case.arrays]
        else:
            again = [to_device(x, device) for x in case.arrays]
        try:
            compare(case, flat(case.call(*again)), flat(case.call(*case.arrays)))
        except AssertionError as error:
            shown = [f"{x.dtype} {x.shape} {x.strides}" if isinstance(x, np.ndarray) else x for x in case.arrays]
            raise AssertionError(f"seed {seed}, {shown}: {error}") from error
