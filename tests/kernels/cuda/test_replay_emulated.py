"""Prepared calls: the long way, the recorded call and its replays give the same bits, for other arrays every time.

Arrays are CuPy's, over host memory; kernels are compiled by g++.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nvfp.dtypes.formats import fp8_e4m3, mxfp8, nvfp4
from nvfp.errors import DTypeError, NvfpError, ShapeError
from nvfp.kernels import _prepared
from nvfp.kernels.activation import activation
from nvfp.kernels.adam import adam
from nvfp.kernels.bias_grad import bias_grad
from nvfp.kernels.cast import cast
from nvfp.kernels.cuda import _quantize_plan
from nvfp.kernels.cuda._launch import count_launches
from nvfp.kernels.cuda._replay import Replay
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.input_fn import Activated, ActivationGradient
from nvfp.kernels.layer_norm import layer_norm, layer_norm_vjp
from nvfp.kernels.multi_tensor import l2_norm, scale_tensors
from nvfp.kernels.operand import Operand, OperandPair
from nvfp.kernels.quantize import quantize
from nvfp.kernels.softmax import softmax
from nvfp.kernels.transpose import transpose
from tests.kernels.cuda import emulator, host_cupy
from tests.kernels.cuda.host_cupy import to_host

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    emulator.compiler()
    yield host_cupy.install(monkeypatch, host_cupy.emulated)
    _prepared.forget()


def drawn(seed: int, *shape: int, dtype: Any = BF16) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def on_host(result: Any) -> list[np.ndarray]:
    """All arrays of a result."""
    if isinstance(result, tuple | list):
        return [x for part in result for x in on_host(part)]
    if isinstance(result, OperandPair):
        return on_host((result.row, result.col, result.bias_grad))
    if isinstance(result, Operand):
        return on_host(result.arrays())
    return [] if result is None else [result if isinstance(result, np.ndarray) else to_host(result)]


def kept() -> list[Any]:
    return [call for call in _prepared._calls.values() if isinstance(call, Replay)]


CASES: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "cast": (lambda x: cast(x, F32), [(4, 40)]),
    "cast_out": (lambda x, y: cast(x, F32, out=y), [(4, 40), (F32, 4, 40)]),
    "strided": (lambda x: cast(x[:, 3:20], BF16), [(4, 40)]),
    "add": (lambda x, y: elementwise("add", x, y), [(4, 40), (4, 40)]),
    "in_place": (lambda x, y: elementwise("add", x, y, out=x), [(4, 40), (4, 40)]),
    "scalar": (lambda x: elementwise("multiply", x, -0.0), [(4, 40)]),
    "gelu": (lambda x: activation(x, "gelu"), [(4, 64)]),
    "layer_norm": (layer_norm, [(6, 64), (64,), (64,)]),
    "layer_norm_vjp": (layer_norm_vjp, [(6, 64), (6, 64), (64,), (F32, 6), (F32, 6)]),
    "softmax": (lambda x: softmax(x, causal="top_left"), [(8, 64)]),
    "transpose": (transpose, [(24, 40)]),
    "bias_grad": (bias_grad, [(200, 64)]),
    "delayed": (lambda x, s, a: quantize(x, fp8_e4m3, col=True, scale=s, amax_out=a), [(40, 64), (F32,), (F32,)]),
    "current": (lambda x: quantize(x, fp8_e4m3, col=True), [(40, 64)]),
    "mxfp8": (lambda x: quantize(x, mxfp8, col=True, bias_grad=True), [(40, 64)]),
    "current_of_gelu": (lambda x: quantize(x, fp8_e4m3, col=True, input_fn=Activated("gelu")), [(40, 64)]),
    "current_of_gelu_gradient": (
        lambda x, y: quantize(x, fp8_e4m3, col=True, input_fn=ActivationGradient("gelu", y), bias_grad=True),
        [(40, 64), (40, 64)],
    ),
    "rotated": (lambda x: quantize(x, nvfp4, col=True, rotation="rht16", bias_grad=True), [(48, 64)]),
    "l2_norm": (lambda x, y: l2_norm([x, y]), [(40,), (7, 3)]),
    "scaled": (lambda x, y, f: scale_tensors([x, y], f), [(40,), (7, 3), (F32,)]),
    "scaled_in_place": (lambda x, y, f: scale_tensors([x, y], f, outs=[x, y]), [(40,), (7, 3), (F32,)]),
}
LONG_WAY = {"scaled"}  # its tables hold addresses of new arrays


def arguments(kinds: list[tuple[Any, ...]], seed: int) -> list[np.ndarray]:
    made = []
    for i, kind in enumerate(kinds):
        dtype, shape = (kind[0], kind[1:]) if kind and isinstance(kind[0], np.dtype) else (BF16, kind)
        made.append(np.abs(drawn(10 * seed + i, *shape, dtype=dtype)) + np.asarray(0.5, dtype))
    return made


@pytest.mark.parametrize("name", CASES)
def test_every_way_gives_the_same_bits(name: str, cupy: Any) -> None:
    same_bits_every_way(name, cupy)


def test_row_codes_with_memory_of_their_own(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_quantize_plan, "APART", 1)
    _quantize_plan.plan.cache_clear()
    try:
        for name in ("delayed", "current"):
            same_bits_every_way(name, cupy)
            _prepared.forget()
        pair = quantize(cupy.asarray(drawn(0, 40, 64)), fp8_e4m3, col=True)
        row, col = pair.side("row").codes, pair.side("col").codes
        assert row.data.mem is not col.data.mem
    finally:
        _quantize_plan.plan.cache_clear()


def same_bits_every_way(name: str, cupy: Any) -> None:
    call, kinds = CASES[name]
    pinned = [cupy.asarray(x) for x in arguments(kinds, 0)]
    launched: list[int] = []
    for turn in range(4):
        given = arguments(kinds, turn)
        want, first = on_host(call(*[np.array(x) for x in given])), [np.array(x) for x in given]
        call(*first)  # on the CPU: what it leaves in its arguments
        arrays = pinned if name in ("l2_norm", "scaled_in_place") else [cupy.asarray(x) for x in given]
        for array, x in zip(arrays, given, strict=True):
            host_cupy.fill(array, x)
        with count_launches() as count:
            got = on_host(call(*arrays))
        launched.append(count.n)
        fuzzy = name in ("gelu", "layer_norm", "layer_norm_vjp", "softmax", "bias_grad", "l2_norm")
        for a, b in zip([*got, *map(to_host, arrays)], [*want, *first], strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            if not fuzzy:
                assert a.tobytes() == b.tobytes()
    assert len(kept()) == (name not in LONG_WAY)
    assert len(set(launched)) == 1


def test_replays_of_inexact_functions_repeat_the_long_way(cupy: Any) -> None:
    for name in ("gelu", "layer_norm", "layer_norm_vjp", "softmax", "bias_grad"):
        call, kinds = CASES[name]
        turns = [on_host(call(*[cupy.asarray(x) for x in arguments(kinds, 3)])) for _ in range(4)]
        for later in turns[1:]:
            assert [x.tobytes() for x in later] == [x.tobytes() for x in turns[0]]


def test_what_changes_is_checked(cupy: Any) -> None:
    x, y = cupy.asarray(drawn(0, 4, 40)), cupy.asarray(drawn(1, 4, 40))
    for _ in range(4):
        cast(x, F32, out=cupy.empty((4, 40), F32))
        elementwise("add", x, y)
        layer_norm(x, x[0], None)
    assert len(kept()) == 3
    wrong: list[tuple[type[NvfpError], Callable[[], Any]]] = [
        (ShapeError, lambda: cast(x, F32, out=cupy.empty((4, 41), F32))),
        (ShapeError, lambda: cast(x, F32, out=cupy.empty((4, 40), BF16))),
        (ShapeError, lambda: elementwise("add", x, cupy.asarray(drawn(2, 4, 39)))),
        (DTypeError, lambda: layer_norm(cupy.asarray(drawn(0, 4, 40, dtype=np.float64)), x[0], None)),
        (ShapeError, lambda: layer_norm(x, cupy.asarray(drawn(0, 41)), None)),
        (NvfpError, lambda: cast(x, F32, out=np.empty((4, 40), F32))),
        (NvfpError, lambda: elementwise("add", x, np.zeros((4, 40), BF16))),
        (NvfpError, lambda: layer_norm(x, x[0], None, eps=-1.0)),
    ]
    for error, call in wrong * 3:
        with pytest.raises(error):
            call()
    turned = cupy.asarray(drawn(3, 40, 4))
    assert to_host(cast(turned.T, F32)).tobytes() == to_host(turned).T.astype(F32).tobytes()


def test_options_of_equal_value_and_other_kind_are_told_apart(cupy: Any) -> None:
    x = cupy.asarray(drawn(0, 4, 40))
    for _ in range(3):
        plus, minus = (to_host(elementwise("multiply", x, zero)).view(np.int16) for zero in (0.0, -0.0))
        assert ((plus ^ minus) == np.int16(-32768)).all()


def test_overlapping_memory_is_copied_first(cupy: Any) -> None:
    for _ in range(4):
        buffer = cupy.asarray(np.arange(41, dtype=F32))
        elementwise("add", buffer[:40], buffer[:40], out=cupy.empty((40,), F32))
        elementwise("add", buffer[:40], buffer[:40], out=buffer[1:])
        assert to_host(buffer)[1:].tolist() == [2.0 * i for i in range(40)]


def test_the_device_is_part_of_the_kind(cupy: Any) -> None:
    x = cupy.asarray(drawn(0, 4, 40))
    for _ in range(3):
        cast(x, F32)
    cupy.cuda.runtime.getDevice = lambda: 1
    for n in (1, 2, 2):
        cast(x, F32)
        assert len(kept()) == n


def test_threads(cupy: Any) -> None:
    """Each thread goes the long way once (CuPy makes the device's context current there), then replays."""
    given = [drawn(seed, 8, 64) for seed in range(4)]
    want = [x.astype(F32).tobytes() for x in given]
    right: list[bool] = []

    def work(i: int) -> None:
        right.extend(to_host(cast(cupy.asarray(given[i]), F32)).tobytes() == want[i] for _ in range(40))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 160 and len(kept()) == 1


def test_adam_names_every_array_in_full(cupy: Any) -> None:
    def state(seed: int) -> list[Any]:
        return [drawn(seed, 40, dtype=F32), drawn(seed + 1, 40, dtype=F32), np.zeros(40, F32), np.zeros(40, F32)]

    hyper = np.array([0.1, 0.9, 0.99, 1e-8, 0.01], F32)
    one, other = state(0), state(5)
    on_one, on_other = ([cupy.asarray(x) for x in arrays] for arrays in (one, other))
    steps = np.zeros((), np.int32), cupy.asarray(np.zeros((), np.int32))
    for arrays, there in ((one, on_one), (one, on_one), (one, on_one), (other, on_other), (one, on_one)):
        for (p, g, m, v), h, step in ((arrays, hyper, steps[0]), (there, cupy.asarray(hyper), steps[1])):
            adam([p], [g], [m], [v], [None], h, step)
        assert [to_host(x).tobytes() for x in there] == [x.tobytes() for x in arrays]


def test_a_call_that_is_watched_goes_the_long_way(cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from nvfp.kernels import _dispatch

    monkeypatch.setattr(_dispatch, "_load", lambda name: _dispatch.import_module(name))
    for _ in range(4):
        cast(cupy.asarray(drawn(0, 4, 40)), F32)
    assert not _prepared._calls
