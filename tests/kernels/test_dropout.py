"""`kernels.dropout` on every device: its masks against Philox in Python integers, and the CPU's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.device import Device
from nvfp.kernels.dropout import advance_steps, dropout, dropout_vjp, factor, threshold
from nvfp.kernels.elementwise import elementwise
from tests.devices import to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F16, F32, SPECIAL, bits, normal, views
from tests.oracles import dropout as oracle
from tests.tolerances import check

KEY = 0x0123456789ABCDEF
dtypes = pytest.mark.parametrize("dtype", COMPUTED, ids=str)


def run(x: np.ndarray, p: float, device: Device, step: int = 0, **options: Any) -> np.ndarray:
    """Forward, with the step checked; the residual is a NumPy array too."""
    if options.get("residual") is not None:
        options["residual"] = to_device(options["residual"], device)
    word = to_device(np.asarray(step, np.int64), device)
    y, used = dropout(to_device(x, device), p, step=word, **{"key": KEY, "ordinal": 3, **options})
    assert used.shape == ()
    assert int(to_numpy(used)) == step
    return to_numpy(y)


def run_vjp(dy: np.ndarray, p: float, device: Device, step: int = 0, **options: Any) -> np.ndarray:
    word = to_device(np.asarray(step, np.int64), device)
    return to_numpy(dropout_vjp(to_device(dy, device), p, step=word, **{"key": KEY, "ordinal": 3, **options}))


@pytest.mark.sanitizer
@dtypes
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_values(device: Device, dtype: np.dtype, p: float) -> None:
    x = normal((37, 75), dtype, scale=4.0)
    x[x == 0] = 1
    for step, offset in ((0, 0), (5, 3), (2**32 + 7, 2**34 + 8)):
        keep = oracle.keeps(x.size, p, KEY, 3, step, offset).reshape(x.shape)
        y, dx = run(x, p, device, step, offset=offset), run_vjp(x, p, device, step, offset=offset)
        assert y.dtype == dtype
        assert np.array_equal(y != 0, keep)
        assert np.array_equal(bits(y), bits(dx))
        assert np.array_equal(bits(y), bits(run(x, p, Device("cpu"), step, offset=offset)))
        if p < 1:
            check(y, oracle.dropout(x, keep, p), "dropout")
    if p == 0:
        assert np.array_equal(bits(run(x, p, device)), bits(x))


@pytest.mark.parametrize("p", [0.01, 0.1, 0.37, 0.5, 0.99])
def test_share_that_is_kept(device: Device, p: float) -> None:
    """Within four standard deviations, for each of eight steps."""
    n = 200_003
    for step in range(8):
        kept = int((run(np.ones(n, BF16), p, device, step) != 0).sum())
        assert abs(kept - n * (1 - p)) < 4 * np.sqrt(n * p * (1 - p)), (step, kept)


def test_masks_differ(device: Device) -> None:
    """Between keys, calls and steps; two masks agree about as often as independent ones."""
    x, n = np.ones(20_000, F32), 20_000
    found = [run(x, 0.5, device, step=s, ordinal=o, key=k) for s in (0, 1) for o in (0, 1) for k in (4, 5)]
    for i, a in enumerate(found):
        for b in found[:i]:
            assert abs(int((a == b).sum()) - n / 2) < 4 * np.sqrt(n / 4)


@dtypes
def test_layouts_and_parts(device: Device, dtype: np.dtype) -> None:
    for view in views(normal((40, 70), dtype)):
        expected = run(np.ascontiguousarray(view), 0.3, Device("cpu"))
        assert np.array_equal(bits(run(view, 0.3, device)), bits(expected))
        assert np.array_equal(bits(run_vjp(view, 0.3, device)), bits(expected))
    for shape in ((), (1,), (3,), (5,)):
        assert run(normal(shape, dtype), 0.3, device).shape == shape
    x = normal((1001,), dtype)
    whole = run(x, 0.3, device)
    for cut in (1, 3, 4, 64, 999):
        parts = [run(part, 0.3, device, offset=at) for part, at in ((x[:cut], 0), (x[cut:], cut))]
        assert np.array_equal(bits(np.concatenate(parts)), bits(whole))


@pytest.mark.parametrize("threads", ["1", "2", "7"])
def test_threads_and_chunks(monkeypatch: pytest.MonkeyPatch, threads: str) -> None:
    x = normal((300_001,), BF16)
    expected = run(x, 0.3, Device("cpu"), residual=x)
    monkeypatch.setenv("NVFP_NUM_THREADS", threads)
    assert np.array_equal(bits(run(x, 0.3, Device("cpu"), residual=x)), bits(expected))


@dtypes
@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_residual_equals_the_unfused_pair(device: Device, dtype: np.dtype, p: float) -> None:
    for shape in ((33, 50), (64, 64), (7,)):
        x, residual = normal(shape, dtype, scale=3.0), normal(shape, dtype, 1)
        apart = elementwise("add", to_device(run(x, p, device), device), to_device(residual, device))
        assert np.array_equal(bits(run(x, p, device, residual=residual)), bits(to_numpy(apart)))
        strided = normal((*shape, 2), dtype, 1)[..., 0]
        assert np.array_equal(
            bits(run(x, p, device, residual=strided)), bits(run(x, p, device, residual=strided.copy()))
        )


def test_out(device: Device) -> None:
    x, residual = normal((33, 50), BF16), normal((33, 50), BF16, 1)
    expected, expected_dx = run(x, 0.3, device, residual=residual), run_vjp(x, 0.3, device)
    step = to_device(np.zeros((), np.int64), device)
    for target in (0, 1):
        pair = [to_device(x.copy(), device), to_device(residual.copy(), device)]
        y, _ = dropout(pair[0], 0.3, key=KEY, ordinal=3, step=step, residual=pair[1], out=pair[target])
        assert y is pair[target]
        assert np.array_equal(bits(to_numpy(y)), bits(expected))
    base = to_device(np.zeros((50, 66), BF16), device)
    dropout_vjp(to_device(x, device), 0.3, key=KEY, ordinal=3, step=step, out=base[:, ::2].T)
    assert np.array_equal(bits(to_numpy(base)[:, ::2].T), bits(expected_dx))
    assert not to_numpy(base)[:, 1::2].any()


@dtypes
def test_special_values(device: Device, dtype: np.dtype) -> None:
    """A dropped element is +0 whatever it was; kept ones are multiplied."""
    with np.errstate(all="ignore"):
        x = np.array(SPECIAL * 40, F32).astype(dtype)
    keep = oracle.keeps(x.size, 0.5, KEY, 3, 0)
    y = run(x, 0.5, device)
    assert not bits(y)[~keep].any()
    with np.errstate(all="ignore"):
        twice = (x.astype(F32) * 2).astype(dtype)
    assert np.array_equal(bits(y)[keep], bits(twice)[keep])
    assert not bits(run(x, 1.0, device)).any()
    assert np.array_equal(bits(run(x, 0.0, device)), bits(x))


@given(p=st.floats(0, 1, exclude_max=True))
def test_threshold_and_factor(p: float) -> None:
    assert threshold(p) == next(k for k in (int(p * 2**24), int(p * 2**24) + 1) if k / 2**24 >= p)
    with np.errstate(over="ignore"):
        assert factor(p) == np.float32(1 / (1 - p))


def test_the_word_is_read_when_the_kernel_runs(device: Device) -> None:
    x = to_device(np.ones(100, F32), device)
    step = to_device(np.asarray(4, np.int64), device)
    y, used = dropout(x, 0.5, key=1, ordinal=0, step=step)
    advance_steps([step])
    other, _ = dropout(x, 0.5, key=1, ordinal=0, step=step)
    assert int(to_numpy(step)) == 5
    assert not np.array_equal(to_numpy(y), to_numpy(other))
    dx = dropout_vjp(x, 0.5, key=1, ordinal=0, step=used)
    assert np.array_equal(to_numpy(y), to_numpy(dx))


@pytest.mark.parametrize("count", [0, 1, 3, 1203])
def test_advance_steps(device: Device, count: int) -> None:
    words = [to_device(np.asarray(k, np.int64), device) for k in range(count)]
    advance_steps(words)
    assert [int(to_numpy(w)) for w in words] == list(range(1, count + 1))


def test_what_does_not_fit(device: Device) -> None:
    x, step = to_device(np.ones(3, F32), device), to_device(np.zeros((), np.int64), device)
    good: dict[str, Any] = {"key": 1, "ordinal": 0, "step": step}
    for p in (-0.1, 1.5, float("nan"), True, "a half"):
        with pytest.raises(ValueError, match="probability"):
            dropout(x, p, **good)  # type: ignore[arg-type]
    for name, value in (("key", 2**64), ("key", -1), ("ordinal", 2**30), ("offset", -1)):
        with pytest.raises(ValueError, match=name):
            dropout(x, 0.5, **{**good, name: value})
    for wrong in (0, np.int64(0), to_device(np.zeros(1, np.int64), device), to_device(np.zeros((), np.int32), device)):
        with pytest.raises(TypeError, match="step as an int64"):
            dropout(x, 0.5, **{**good, "step": wrong})
        with pytest.raises(TypeError, match="step as an int64"):
            advance_steps([wrong])
    with pytest.raises(TypeError, match="float32, bfloat16"):
        dropout(to_device(np.ones(3), device), 0.5, **good)
    with pytest.raises(TypeError, match="residual of float32"):
        dropout(x, 0.5, residual=to_device(np.ones(3, F16), device), **good)
    with pytest.raises(ValueError, match="residual of shape"):
        dropout(x, 0.5, residual=to_device(np.ones(2, F32), device), **good)
    with pytest.raises(ValueError, match="out as float32"):
        dropout_vjp(x, 0.5, out=to_device(np.ones(2, F32), device), **good)
