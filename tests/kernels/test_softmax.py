"""`kernels.softmax` on every device, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.device import Device
from nvfp.kernels.softmax import softmax, softmax_vjp
from tests.devices import need_oracle, to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F16, F32, normal, views
from tests.oracles import softmax as oracle
from tests.tolerances import check

dtypes = pytest.mark.parametrize("dtype", COMPUTED, ids=str)
CAUSAL = (None, "top_left", "bottom_right")


def run(x: np.ndarray, device: Device, mask: np.ndarray | None = None, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """y and lse as NumPy arrays."""
    hidden = None if mask is None else to_device(mask, device)
    y, lse = softmax(to_device(x, device), mask=hidden, **options)
    return to_numpy(y), to_numpy(lse)


def test_oracle_gradient_is_the_difference_quotient() -> None:
    x, dy, h = normal((3, 5)).astype(np.float64), normal((3, 5), seed=1), 1e-6
    mask = np.array([False, True, False, False, False])
    dx = oracle.softmax_vjp(oracle.softmax(x, 0.7, mask, "bottom_right")[0], dy, 0.7)
    for i in range(x.size):
        d = np.zeros(x.size)
        d[i] = h
        up, down = (oracle.softmax(x + s * d.reshape(x.shape), 0.7, mask, "bottom_right")[0] for s in (1, -1))
        np.testing.assert_allclose(dx.reshape(-1)[i], ((up - down) * dy).sum() / (2 * h), atol=1e-8)


@pytest.mark.sanitizer
@pytest.mark.parametrize("causal", CAUSAL)
@dtypes
def test_values(device: Device, dtype: np.dtype, causal: str | None) -> None:
    for shape in ((1, 1), (3, 7, 9), (2, 5, 3, 64), (2, 33, 1027), (1, 9, 5000)):
        x = normal(shape, dtype, scale=3.0)
        for mask in (None, normal(shape[-1:]) > 0.3, normal((*shape[:-1], 1)) > 0.3, normal(shape) > 0.3):
            y, lse = run(x, device, mask, scale=0.5, causal=causal)
            wanted, logs = oracle.softmax(x, 0.5, mask, causal)
            assert y.dtype == dtype and lse.dtype == F32
            check(y, wanted, "softmax")
            check(lse, logs, "softmax", scale=4)
            assert not y[oracle.hidden(shape, mask, causal)].any()


@pytest.mark.parametrize("shape", [(3, 7), (2, 5, 64), (3, 1027), (5, 4, 8), (2, 9000)], ids=str)
@pytest.mark.parametrize(("y_dtype", "dtype"), [(F32, F32), (BF16, F32), (F16, F16), (BF16, BF16)], ids=str)
def test_gradient(device: Device, y_dtype: np.dtype, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    y = oracle.softmax(normal(shape, scale=2.0), mask=normal(shape, seed=3) > 0.5)[0].astype(y_dtype)
    dy = normal(shape, dtype, 1)
    dx = to_numpy(softmax_vjp(to_device(y, device), to_device(dy, device), scale=0.3))
    assert dx.dtype == dtype
    check(dx, oracle.softmax_vjp(y, dy, 0.3), "softmax", scale=np.abs(dy.astype(F32)).max())
    assert not dx[y == 0].any()
    narrow = to_numpy(softmax_vjp(to_device(y, device), to_device(dy, device), scale=0.3, dtype=BF16))
    assert narrow.tobytes() == dx.astype(BF16).tobytes() or dtype != F32


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_dtype_and_out(device: Device, dtype: np.dtype) -> None:
    x = normal((6, 40), F32, scale=3.0)
    y, lse = run(x, device)
    narrow, same = run(x, device, dtype=dtype)
    assert narrow.tobytes() == y.astype(dtype).tobytes() and same.tobytes() == lse.tobytes()
    target = to_device(np.zeros((40, 12), dtype), device)
    out = target[:, ::2].T
    assert softmax(to_device(x, device), out=out)[0] is out
    assert to_numpy(target)[:, ::2].T.tobytes() == narrow.tobytes()
    place = to_device(x.copy(), device)
    assert softmax(place, out=place)[0] is place
    assert to_numpy(place).tobytes() == y.tobytes()
    dy = normal((6, 40), seed=1)
    dx = to_numpy(softmax_vjp(to_device(y, device), to_device(dy, device)))
    for which in range(2):
        pair = [to_device(a.copy(), device) for a in (y, dy)]
        assert softmax_vjp(*pair, out=pair[which]) is pair[which]
        assert to_numpy(pair[which]).tobytes() == dx.tobytes()


@pytest.mark.parametrize("causal", CAUSAL)
def test_matrices_of_other_lengths(device: Device, causal: str | None) -> None:
    for rows, columns in ((2, 5), (5, 2), (1, 7), (7, 1), (8, 8)):
        x = normal((3, rows, columns))
        y, lse = run(x, device, causal=causal)
        wanted, logs = oracle.softmax(x, causal=causal)
        check(y, wanted, "softmax")
        check(lse, logs, "softmax", scale=4)


@pytest.mark.parametrize("shape", [
    (1,), (9,), (5, 1), (7, 9), (1, 1, 9), (3, 1, 1, 9), (3, 1, 7, 9), (1, 2, 7, 1), (3, 2, 1, 1), (3, 2, 7, 9),
], ids=str)  # fmt: skip
def test_masks_broadcast(device: Device, shape: tuple[int, ...]) -> None:
    x = normal((3, 2, 7, 9) if shape != (5, 1) else (3, 2, 5, 9), scale=2.0)
    mask = normal(shape, seed=5) > 0
    check(run(x, device, mask)[0], oracle.softmax(x, mask=mask)[0], "softmax")
    turned = np.ascontiguousarray(mask.T).T
    assert run(x, device, turned)[0].tobytes() == run(x, device, mask)[0].tobytes()
    full = np.broadcast_to(mask, x.shape)
    assert run(x, device, full)[0].tobytes() == run(x, device, mask)[0].tobytes()


def test_masks_of_many_axes(device: Device) -> None:
    x = normal((2, 3, 2, 3, 4, 5))
    mask = normal((2, 1, 2, 1, 4, 5), seed=2) > 0.2
    check(run(x, device, mask)[0], oracle.softmax(x, mask=mask)[0], "softmax")


def test_layouts(device: Device) -> None:
    base = normal((40, 70), BF16, scale=3.0)
    for view in (v for v in views(base)):
        y, lse = run(view, device)
        again, logs = run(np.ascontiguousarray(view), device)
        assert y.tobytes() == again.tobytes() and lse.tobytes() == logs.tobytes()
        dy = normal(view.shape[::-1], BF16).T
        dx = to_numpy(softmax_vjp(to_device(y, device), to_device(dy, device)))
        check(dx, oracle.softmax_vjp(y, dy), "softmax", scale=4)
    y, lse = run(normal((9,)), device)
    assert y.shape == (9,) and lse.shape == ()
    y, lse = run(np.zeros((3, 0), F32), device, np.zeros((3, 1), bool))
    assert y.shape == (3, 0) and (lse == -np.inf).all() and lse.shape == (3,)


def test_special_values(device: Device) -> None:
    """A row without any key is 0; NaN and inf stay in their rows; shifts do not matter."""
    inf, nan = np.inf, np.nan
    x = np.array([[1e4, 1e4 + 2, -inf], [-inf] * 3, [nan, 0, 1], [inf, 0, -inf], [-nan, -inf, -inf], [3e38, -3e38, 0]])
    x = x.astype(F32)
    y, lse = run(x, device)
    check(y[[0, 1, 5]], oracle.softmax(x[[0, 1, 5]])[0], "softmax")
    assert lse[1] == -inf and np.isfinite(lse[[0, 5]]).all()
    assert np.isnan(y[2]).all() and np.isnan(y[3, :2]).all() and np.isnan(y[4, 0])
    assert not y[3:5, 2].any()
    mask = np.array([True, False, False])
    y, _ = run(x, device, mask)
    assert np.isfinite(y[[0, 1, 2, 3, 5]]).all() and not y[:, 0].any()
    p = np.array([[0, 0.5, 0.5], [0, 0, 0]], F32)
    dx = to_numpy(softmax_vjp(to_device(p, device), to_device(np.array([[nan, 1, 0], [inf] * 3], F32), device)))
    assert dx.tolist() == [[0, 0.25, -0.25], [0, 0, 0]]  # what has no weight is not looked at


@given(data=st.data(), dtype=st.sampled_from(COMPUTED), causal=st.sampled_from(CAUSAL))
def test_any_problem(device: Device, data: st.DataObject, dtype: np.dtype, causal: str | None) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=4)))
    x = normal(shape, dtype, data.draw(st.integers(0, 99)), 3.0)
    kept = [n if data.draw(st.booleans()) else 1 for n in shape]
    mask = normal(tuple(kept), seed=9) > 0 if data.draw(st.booleans()) else None
    scale = data.draw(st.sampled_from((1.0, 0.125, -2.0)))
    y, lse = run(x, device, mask, scale=scale, causal=causal)
    wanted, logs = oracle.softmax(x, scale, mask, causal)
    check(y, wanted, "softmax")
    check(lse, logs, "softmax", scale=8)


@pytest.mark.sanitizer
@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
@pytest.mark.parametrize("columns", [5, 64, 1000, 20_000])
def test_sinks_and_largest_values(device: Device, columns: int, dtype: np.dtype) -> None:
    """A sink of each head, or one number, takes its share of each row; rows that see nothing have its logarithm."""
    x = normal((2, 3, 4, columns), dtype, scale=3.0)
    mask = normal((2, 1, 1, columns), seed=4) > 0.3
    mask[1] = True
    off = np.concatenate([np.broadcast_to(mask, x.shape), np.zeros((2, 3, 4, 1), bool)], -1)
    for sink in (np.array([-1.0, 20.0, 0.5], F32), 0.25):
        tops = to_device(np.zeros((2, 3, 4), F32), device)
        given = to_device(sink, device) if isinstance(sink, np.ndarray) else sink
        y, lse = softmax(to_device(x, device), scale=0.5, mask=to_device(mask, device), sink=given, tops=tops)
        rest = np.broadcast_to(np.reshape(np.asarray(sink, np.float64), (-1, 1, 1)), (2, 3, 4, 1)) * 2
        wanted, logs = oracle.softmax(np.concatenate([x.astype(np.float64), rest], -1), 0.5, off)
        check(to_numpy(y), wanted[..., :-1], "softmax")
        check(to_numpy(lse), logs, "softmax", scale=4)
        check(to_numpy(tops), np.where(mask, -np.inf, 0.5 * x.astype(np.float64)).max(-1), "softmax")
    with pytest.raises(ValueError, match=r"sink as float32 \(3,\)"):
        softmax(to_device(x, device), sink=to_device(np.zeros(4, F32), device))
    with pytest.raises(ValueError, match=r"tops as float32 \(2, 3, 4\)"):
        softmax(to_device(x, device), tops=to_device(np.zeros(4, F32), device))


def test_repeats_its_bits(device: Device) -> None:
    x, dy = normal((300, 1000)), normal((300, 1000), seed=1)
    first, again = run(x, device), run(x, device)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again))
    y, d = to_device(first[0], device), to_device(dy, device)
    assert to_numpy(softmax_vjp(y, d)).tobytes() == to_numpy(softmax_vjp(y, d)).tobytes()


@pytest.mark.oracle
def test_torch(device: Device) -> None:
    torch = need_oracle("torch")
    x, dy = normal((20, 30), scale=2.0), normal((20, 30), seed=1)
    t = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    wanted = torch.softmax(t, -1)
    wanted.backward(torch.tensor(dy))
    y, _ = run(x, device)
    check(y, wanted.detach().numpy(), "softmax")
    check(to_numpy(softmax_vjp(to_device(y, device), to_device(dy, device))), t.grad.numpy(), "softmax", scale=4)


def test_what_does_not_fit(device: Device) -> None:
    x = to_device(normal((4, 9)), device)
    with pytest.raises(TypeError, match="a bool mask"):
        softmax(x, mask=to_device(np.zeros(9, np.uint8), device))
    with pytest.raises(ValueError, match=r"a mask that broadcasts to \(4, 9\)"):
        softmax(x, mask=to_device(np.zeros((9, 4), bool), device))
    with pytest.raises(ValueError, match="causal out of"):
        softmax(x, causal="left")
    with pytest.raises(ValueError, match=r"x \[\.\.\., R, C\] with causal"):
        softmax(x[0], causal="top_left")
    with pytest.raises(ValueError, match=r"x \[\.\.\., C\]"):
        softmax(to_device(np.zeros((), F32), device))
    with pytest.raises(TypeError, match="float32, bfloat16"):
        softmax(to_device(np.zeros((4, 9)), device))
    with pytest.raises(TypeError, match="an output of float32"):
        softmax(x, dtype=np.dtype(np.float64))
    with pytest.raises(ValueError, match="out as"):
        softmax(x, out=x[:2])
    with pytest.raises(ValueError, match="of one shape"):
        softmax_vjp(x, x[:2])
    for scale in (np.nan, np.inf, 1e39):
        with pytest.raises(ValueError, match="a finite float32 scale"):
            softmax(x, scale=scale)
    with pytest.raises(TypeError, match="scale as a real number"):
        softmax_vjp(x, x, scale="2")  # type: ignore[arg-type]
