"""NumPy's functions on quantized arrays: they give what they give for the values, or say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import DTypeError, NvfpError
from tests.arrays.quantized_cases import quantized, same, values

MOVES: list[tuple[str, Callable[[Any], Any]]] = [
    ("concatenate", lambda q: np.concatenate([q, q])),
    ("stack", lambda q: np.stack([q, q])),
    ("concat", lambda q: np.concatenate((q, q), axis=1)),
    ("vstack", lambda q: np.vstack([q, q])),
    ("hstack", lambda q: np.hstack([q, q])),
    ("transpose", np.transpose),
    ("swapaxes", lambda q: np.swapaxes(q, 0, 1)),
    ("moveaxis", lambda q: np.moveaxis(q, 0, 1)),
    ("expand_dims", lambda q: np.expand_dims(q, 0)),
    ("squeeze", np.squeeze),
    ("reshape", lambda q: np.reshape(q, (2, 2, 64))),
    ("take", lambda q: np.take(q, [0, 2], axis=0)),
    ("repeat", lambda q: np.repeat(q, 2, axis=0)),
    ("tile", lambda q: np.tile(q, (2, 1))),
    ("flip", lambda q: np.flip(q, axis=0)),
    ("roll", lambda q: np.roll(q, 1, axis=0)),
    ("broadcast_to", lambda q: np.broadcast_to(q, (3, 4, 64))),
    ("split", lambda q: np.split(q, 2)[1]),
    ("copy", np.copy),
    ("atleast_2d", np.atleast_2d),
]
VALUES: list[tuple[str, Callable[[Any], Any]]] = [
    ("add", lambda q: np.add(q, 1)),
    ("radd", lambda q: np.ones(64, np.float32) + q),
    ("multiply", lambda q: np.multiply(q, q)),
    ("scalar", lambda q: np.float32(2) * q),
    ("exp", lambda q: np.exp(q * 0.1)),
    ("sqrt", lambda q: np.sqrt(np.abs(q))),
    ("maximum", lambda q: np.maximum(q, 0)),
    ("isnan", np.isnan),
    ("sum", lambda q: np.sum(q, axis=1)),
    ("mean", np.mean),
    ("std", lambda q: np.std(q, axis=0)),
    ("max", np.max),
    ("argmax", lambda q: np.argmax(q, axis=1)),
    ("sort", np.sort),
    ("median", np.median),
    ("percentile", lambda q: np.percentile(q, 30)),
    ("clip", lambda q: np.clip(q, -1, 1)),
    ("where", lambda q: np.where(q > 0, q, 0)),
    ("cumsum", lambda q: np.cumsum(q, axis=0)),
    ("ptp", lambda q: np.ptp(q)),
    ("matmul", lambda q: np.matmul(q, q.T)),
    ("dot", lambda q: np.dot(q, q.T)),
    ("einsum", lambda q: np.einsum("ij,kj->ik", q, q)),
    ("tensordot", lambda q: np.tensordot(q, q, axes=((1,), (1,)))),
    ("inner", lambda q: np.inner(q, q)),
    ("outer", lambda q: np.outer(q[0], q[1])),
    ("vdot", lambda q: np.vdot(q, q)),
    ("norm", lambda q: np.linalg.norm(q)),
    ("reduce", lambda q: np.add.reduce(q, axis=1)),
    ("unique", lambda q: np.unique(q)),
    ("pad", lambda q: np.pad(q, 1)),
    ("diff", np.diff),
    ("interp", lambda q: np.interp(q[0], np.array([-1.0, 1.0]), np.array([0.0, 1.0]))),
    ("histogram", lambda q: np.histogram(q)[0]),
    ("trace", np.trace),
    ("corrcoef", np.corrcoef),
    ("around", lambda q: np.round(q)),
    ("nan_to_num", np.nan_to_num),
    ("allclose", lambda q: np.allclose(q, np.asarray(q))),
    ("array_equal", lambda q: np.array_equal(q, q)),
    ("isclose", lambda q: np.isclose(q, 0)),
    ("all", lambda q: np.all(q == q)),
    ("count", np.count_nonzero),
    ("shape", np.shape),
    ("ndim", np.ndim),
    ("size", np.size),
    ("iscomplexobj", np.iscomplexobj),
    ("zeros_like", lambda q: np.zeros_like(np.asarray(q))),
    ("array", np.array),
    ("dtype", lambda q: np.asarray(q, np.float64)),
    ("array2string", lambda q: len(np.array2string(np.asarray(q))) > 10),
    ("rfft", lambda q: np.abs(np.fft.rfft(np.asarray(q)))),
]
FORMATS = [nf.mxfp8, nf.nvfp4, nf.fp8_e4m3, nf.nvfp4.replace(block=(4, 16))]
formats = pytest.mark.parametrize("format", FORMATS, ids=str)


@formats
@pytest.mark.parametrize(("name", "function"), MOVES, ids=[name for name, _ in MOVES])
def test_moves_keep_blocks(name: str, function: Any, format: Any) -> None:
    q = quantized(format, (4, 64))
    if isinstance(format.block, tuple) and name in ("take", "repeat", "flip", "roll", "split", "reshape"):
        with pytest.raises(NvfpError, match="dequantize with"):
            function(q)
        return
    got = function(q)
    assert type(got) is nf.QuantizedArray and got.dtype == format
    same(got, function(np.asarray(q)))


@formats
@pytest.mark.parametrize(("name", "function"), VALUES, ids=[name for name, _ in VALUES])
def test_values_count_elsewhere(name: str, function: Any, format: Any) -> None:
    q = quantized(format, (4, 64))
    if isinstance(format.block, tuple) and name in ("outer", "interp"):
        return  # they take a row of q here
    got, expected = function(q), function(np.asarray(q))
    assert not isinstance(got, nf.QuantizedArray)
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=2e-5, atol=1e-3)


def test_numpy_testing() -> None:
    q = quantized(nf.nvfp4, (4, 64))
    np.testing.assert_allclose(q, np.asarray(q))
    np.testing.assert_array_equal(q, q)
    np.testing.assert_array_almost_equal_nulp(np.asarray(q), np.asarray(q))
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(q, np.asarray(q) + 1)


def test_writes_into_a_quantized_array_are_refused() -> None:
    q, a = quantized(nf.mxfp8, (4, 64)), values((4, 64))
    before = np.asarray(q)

    def in_place() -> None:
        nonlocal q
        q += a

    def array_in_place() -> None:
        np.add(a, 1, out=q)

    for write in (
        lambda: np.copyto(q, a),
        lambda: np.put(q, [0], 1.0),
        array_in_place,
        in_place,
        lambda: np.fill_diagonal(q, 0),
        lambda: np.add.at(q, 0, 1.0),
        lambda: np.put_along_axis(q, np.zeros((4, 1), int), 1, 1),
        lambda: np.concatenate([a, a], out=q),
    ):
        with pytest.raises(DTypeError, match="immutable"):
            write()
    same(q, before)
    b = a.copy()
    b += q  # NumPy's own memory takes the values
    same(b, a + before)


@pytest.mark.gpu
def test_a_quantized_array_on_the_gpu_says_what_to_do() -> None:
    q = quantized(nf.mxfp8, (4, 64))
    assert isinstance(np.mean(q), nf.Array) and isinstance(np.concatenate([q, q]), nf.QuantizedArray)
    with pytest.raises(DTypeError, match=r"to_device\('cpu'\)"):
        np.corrcoef(q)
