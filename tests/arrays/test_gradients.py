"""Gradient rules: finite differences in float64 (twice differentiated), and the `autograd` package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np
import pytest

import nvfp as nf
from nvfp.autograd import check_grads

# name -> interval on which the function is smooth
UNARY = {
    "negative": (-2, 2),
    "positive": (-2, 2),
    "abs": (0.2, 2),
    "square": (-2, 2),
    "sqrt": (0.3, 3),
    "rsqrt": (0.3, 3),
    "reciprocal": (0.3, 3),
    "exp": (-2, 2),
    "expm1": (-2, 2),
    "log": (0.3, 3),
    "log1p": (-0.5, 2),
    "log2": (0.3, 3),
    "log10": (0.3, 3),
    "sigmoid": (-3, 3),
    "sin": (-3, 3),
    "cos": (-3, 3),
    "tan": (-1, 1),
    "asin": (-0.8, 0.8),
    "acos": (-0.8, 0.8),
    "atan": (-2, 2),
    "sinh": (-2, 2),
    "cosh": (-2, 2),
    "tanh": (-2, 2),
    "asinh": (-2, 2),
    "acosh": (1.3, 3),
    "atanh": (-0.8, 0.8),
    "sign": (0.2, 2),
    "floor": (0.2, 0.8),
    "ceil": (0.2, 0.8),
    "trunc": (0.2, 0.8),
    "round": (0.1, 0.4),
}
BINARY = {
    "add": (-2, 2),
    "subtract": (-2, 2),
    "multiply": (-2, 2),
    "divide": (0.4, 2),
    "pow": (0.4, 2),
    "maximum": (-2, 2),
    "minimum": (-2, 2),
    "logaddexp": (-2, 2),
    "atan2": (0.3, 2),
    "hypot": (0.3, 2),
    "copysign": (0.3, 2),
    "remainder": (1.1, 1.9),
    "floor_divide": (1.1, 1.9),
}


def draw(shape: tuple[int, ...], low: float = -2.0, high: float = 2.0, seed: int = 0) -> Any:
    values = np.random.Generator(np.random.PCG64(seed)).uniform(low, high, shape)
    return nf.asarray(values, device="cpu")


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    check_grads(getattr(nf, name), [draw((3, 2), *UNARY[name])], order=2)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize(
    "shapes", [((3, 2), (3, 2)), ((3, 1), (2,)), ((), (2, 2))], ids=["equal", "broadcast", "scalar"]
)
def test_binary(name: str, shapes: tuple[Any, Any]) -> None:
    x, y = (draw(s, *BINARY[name], seed=i) for i, s in enumerate(shapes))
    check_grads(getattr(nf, name), [x, y], order=2)


@pytest.mark.parametrize(("x", "y"), [(2.5, None), (None, 2.5), (None, 3), (2, None), (None, 0), (None, 2), (None, -1)])
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "pow"])
def test_python_scalars_stand_beside_arrays(name: str, x: Any, y: Any) -> None:
    if name == "divide" and y == 0:
        y = 4.0
    function = getattr(nf, name)
    check_grads(lambda a: function(a if x is None else x, a if y is None else y), [draw((3,), 0.5, 2)], order=2)


UNIFORM: dict[str, Callable[..., Any]] = {
    "sum": lambda x: nf.sum(x),
    "sum axis": lambda x: nf.sum(x, axis=1),
    "sum axes": lambda x: nf.sum(x, axis=(0, -1)),
    "sum keepdims": lambda x: nf.sum(x, axis=(0, 2), keepdims=True),
    "mean": lambda x: nf.mean(x, axis=-1),
    "max": lambda x: nf.max(x, axis=1),
    "min": lambda x: nf.min(x),
    "prod": lambda x: nf.prod(x, axis=2),
    "var": lambda x: nf.var(x, axis=1),
    "std": lambda x: nf.std(x, correction=1),
    "reshape": lambda x: nf.reshape(x, (4, -1)),
    "permute": lambda x: nf.permute_dims(x, (2, 0, 1)),
    "transpose": lambda x: x.T,
    "mT": lambda x: x.mT,
    "swapaxes": lambda x: nf.swapaxes(x, 0, 2),
    "moveaxis": lambda x: nf.moveaxis(x, (0, 1), (1, 2)),
    "expand": lambda x: nf.expand_dims(x, (0, -1)),
    "squeeze": lambda x: nf.squeeze(x[:1], 0),
    "broadcast": lambda x: nf.broadcast_to(x, (5, 2, 3, 4)),
    "broadcast one": lambda x: nf.broadcast_to(x[:, :1], (2, 3, 4)),
    "concat": lambda x: nf.concat([x, x * 2], axis=1),
    "concat flat": lambda x: nf.concat([x, x], axis=None),
    "stack": lambda x: nf.stack([x, x], axis=1),
    "flip": lambda x: nf.flip(x, axis=(0, 2)),
    "roll": lambda x: nf.roll(x, 2, axis=1),
    "roll flat": lambda x: nf.roll(x, -3),
    "tile": lambda x: nf.tile(x, (2, 1, 3)),
    "repeat": lambda x: nf.repeat(x, 3, axis=1),
    "split": lambda x: nf.split(x, 2, axis=2)[1],
    "unstack": lambda x: nf.unstack(x, axis=1)[2],
    "pad": lambda x: nf.pad(x, ((1, 0), (0, 2), (1, 1))),
    "where": lambda x: nf.where(x > 0, x, x * 3.0),
    "clip": lambda x: nf.clip(x, -1, 1),
    "clip low": lambda x: nf.clip(x, min=-1),
    "clip high": lambda x: nf.clip(x, max=0.5),
    "slice": lambda x: x[:, 1:, ::2],
    "int": lambda x: x[1],
    "none": lambda x: x[..., None, 0],
    "negative step": lambda x: x[:, ::-1],
    "ids": lambda x: x[[0, 0, 1]],
    "ids inner": lambda x: x[:, [2, 0, 2]],
    "ids pair": lambda x: x[[0, 1, 0], [2, 2, 2]],
    "mask": lambda x: x[nf.asarray([True, False])],
    "take": lambda x: nf.take(x, [[1, 1], [0, 2]], axis=1),
    "take flat": lambda x: nf.take(x, [5, 5, 0]),
    "along": lambda x: nf.take_along_axis(x, nf.argmax(x, axis=2, keepdims=True), axis=2),
    "copy": lambda x: x.copy(),
    "astype": lambda x: x.astype(nf.float64),
    "tril": lambda x: nf.tril(x),
    "triu": lambda x: nf.triu(x, k=1),
    "matmul": lambda x: x @ x.mT,
    "vector": lambda x: x @ x[0, 0],
    "tensordot": lambda x: nf.tensordot(x, x, axes=((1, 2), (1, 2))),
    "vecdot": lambda x: nf.vecdot(x, x, axis=1),
    "outer": lambda x: nf.outer(x[0, 0], x[0, 1]),
}


@pytest.mark.parametrize("name", UNIFORM)
def test_shapes_reductions_and_products(name: str) -> None:
    check_grads(UNIFORM[name], [draw((2, 3, 4), seed=3)], order=2)


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 4), (4, 2)),
        ((4,), (4, 2)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (4, 2)),
        ((2, 3, 4), (2, 4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((2, 3, 4), (4,)),
        ((4,), (2, 4, 5)),
    ],
)
def test_matmul(shapes: tuple[Any, Any]) -> None:
    x, y = (draw(s, seed=i) for i, s in enumerate(shapes))
    assert np.allclose(np.asarray(x @ y), np.asarray(x) @ np.asarray(y))
    check_grads(nf.matmul, [x, y], order=2)


def test_prod_with_zeros() -> None:
    for values in ([0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [1.0, 2.0, 3.0]):
        x = nf.asarray(values, dtype=nf.float64)
        got = nf.grad(nf.prod)(x).tolist()
        assert got == [float(np.prod(np.delete(values, i))) for i in range(3)]


def test_ties_share_the_gradient() -> None:
    x = nf.asarray([1.0, 3.0, 3.0])
    assert nf.grad(nf.max)(x).tolist() == [0.0, 0.5, 0.5]
    assert nf.grad(lambda x: nf.sum(nf.maximum(x, 3.0)))(x).tolist() == [0.0, 0.5, 0.5]
    assert nf.grad(lambda x: nf.sum(nf.abs(x)))(nf.asarray([0.0, -0.0])).tolist() == [0.0, 0.0]


def test_power_at_zero_has_finite_gradients() -> None:
    x = nf.asarray([0.0, 0.0, 2.0], dtype=nf.float64)
    y = nf.asarray([0.0, 2.0, 0.0], dtype=nf.float64)
    gx, gy = nf.grad(lambda x, y: nf.sum(nf.pow(x, y)), argnums=(0, 1))(x, y)
    assert gx.tolist() == [0.0, 0.0, 0.0] and gy.tolist()[1:] == [0.0, float(np.log(2.0))]


def network(xp: Any, w1: Any, b1: Any, w2: Any, x: Any) -> Any:
    hidden = xp.tanh(x @ w1 + b1)
    logits = hidden @ w2
    shifted = logits - xp.max(logits, axis=1, keepdims=True)
    return xp.mean(xp.log(xp.sum(xp.exp(shifted), axis=1)) - shifted[:, 0])


def test_network_against_autograd() -> None:
    shapes = [(5, 7), (7,), (7, 3), (6, 5)]
    args = [np.asarray(draw(s, seed=i)) for i, s in enumerate(shapes)]
    expected = autograd.grad(lambda *a: network(anp, *a), argnum=(0, 1, 2, 3))(*args)
    got = nf.grad(lambda *a: network(nf, *a), argnums=(0, 1, 2, 3))(*(nf.asarray(a) for a in args))
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(np.asarray(g), e, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_gradients_come_in_the_dtype_of_their_variable(dtype: str) -> None:
    x = nf.asarray([[1.5, -2.0], [0.25, 3.0]], dtype=dtype, requires_grad=True)
    w = nf.asarray([[1.0, 0.5], [2.0, -1.0]], requires_grad=True)
    y = nf.tanh(x) @ w * nf.sum(w, axis=0)
    assert y.dtype == nf.result_type(dtype, "float32")
    y.sum().backward()
    assert x.grad is not None and w.grad is not None
    assert x.grad.dtype == x.dtype and w.grad.dtype == nf.float32
    wide = nf.grad(lambda x: (nf.tanh(x) @ w.detach() * nf.sum(w.detach(), axis=0)).sum())(x.detach().astype("float32"))
    np.testing.assert_allclose(
        np.asarray(x.grad, np.float32), np.asarray(wide), rtol=2**-7, atol=2e-2
    )  # tanh's slope comes from its rounded value


def test_tanh_in_bfloat16_keeps_its_small_slopes() -> None:
    """1 - y * y rounded to bfloat16 in between would lose nearly all digits here."""
    x = nf.asarray([2.5], dtype=nf.bfloat16)
    y = float(nf.tanh(x).item())
    assert nf.grad(lambda x: nf.tanh(x).sum())(x).item() == pytest.approx(1 - y * y, rel=2**-8)


def test_casts_are_straight_through() -> None:
    x = nf.asarray([0.3, 1.7], requires_grad=True)
    for dtype in (nf.nvfp4, nf.mxfp8, nf.fp8_e4m3, nf.bfloat16, nf.float8_e4m3fn):
        x.grad = None
        (x.astype(dtype) * nf.asarray([2.0, 3.0])).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [2.0, 3.0] and x.grad.dtype == nf.float32
    assert not (x.astype(nf.int32)).requires_grad
    assert nf.fake_quant(x, nf.nvfp4).requires_grad


def test_quantized_operand_is_a_constant_of_the_product() -> None:
    w = nf.asarray(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)).astype(nf.mxfp8)
    x = nf.asarray(np.ones((2, 4), np.float32), requires_grad=True)
    (x @ w.T).sum().backward()
    assert x.grad is not None
    np.testing.assert_array_equal(np.asarray(x.grad), np.ones((2, 3), np.float32) @ np.asarray(w))


@pytest.mark.parametrize("values", [[0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
def test_prod_with_zeros_differentiated_twice(values: list[float]) -> None:
    x = nf.asarray(values, dtype=nf.float64)
    check_grads(nf.prod, [x], order=3, rtol=1e-5)
    both = nf.stack([x, x + 1])
    check_grads(lambda x: nf.prod(x, axis=(0, 2)), [nf.reshape(nf.concat([both, both]), (2, 2, 3))], order=2, rtol=1e-5)


def test_mixed_derivative_of_a_power_at_exponent_zero() -> None:
    """d/dy d/dx x**y = x**(y - 1) * (1 + y log x): 1/x at y = 0."""
    x, y = nf.asarray([2.0, 4.0], dtype=nf.float64), nf.asarray([0.0, 0.0], dtype=nf.float64)
    slope = lambda y: nf.sum(nf.grad(lambda x: nf.sum(nf.pow(x, y)))(x))  # noqa: E731
    assert nf.grad(slope)(y).tolist() == [0.5, 0.25]
