"""`kernels.attention` on every device, against float64, handed cases H15 and H16 and torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from nvfp.device import Device
from nvfp.errors import DTypeError
from nvfp.kernels.attention import MASK_TYPES, Described, attention, attention_vjp
from nvfp.kernels.dropout import dropout
from tests.devices import need_oracle, to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F16, F32, normal
from tests.oracles import attention as oracle
from tests.tolerances import check

KEY = 0x0123456789ABCDEF


def problem(
    batch: int, queries: int, keys: int, heads: int, groups: int, depth: int, values: int, dtype: np.dtype = F32
) -> list[np.ndarray]:
    """q, k, v and dout."""
    shapes = (
        (batch, queries, heads, depth), (batch, keys, groups, depth), (batch, keys, groups, values),
        (batch, queries, heads, values),
    )  # fmt: skip
    return [normal(shape, dtype, seed) for seed, shape in enumerate(shapes)]


def mask_for(mask_type: str, batch: int, heads: int, queries: int, keys: int) -> np.ndarray | None:
    """A mask that hides some keys, all of them in the last batch entry; None where none belongs."""
    if mask_type == "arbitrary":
        return normal((batch, heads, queries, keys), seed=7) > 0.4
    if not mask_type.startswith("padding"):
        return None
    mask = np.arange(keys) >= np.arange(keys, 0, -2)[:batch, None]
    mask = np.resize(mask, (batch, keys))
    mask[-1] = batch > 1
    return mask[:, None, None, :]


def run(arrays: list[np.ndarray], device: Device, mask: Any = None, **options: Any) -> list[np.ndarray]:
    """out, dq, dk, dv."""
    q, k, v, dout = (to_device(x, device) for x in arrays)
    hidden = tuple(to_device(m, device) for m in mask) if isinstance(mask, tuple) else mask
    hidden = to_device(hidden, device) if isinstance(hidden, np.ndarray) else hidden
    options = {"backend": "composed"} | options
    if "step" in options:
        options["step"] = to_device(np.asarray(options["step"], np.int64), device)
    out, saved = attention(q, k, v, mask=hidden, **options)
    return [to_numpy(x) for x in (out, *attention_vjp(dout, q, k, v, out, saved)[:3])]


def compare(
    got: list[np.ndarray], arrays: list[np.ndarray], mask_type: str = "causal", mask: Any = None,
    scale: float | None = None, factors: Any = 1.0, row: str = "attention",
) -> None:  # fmt: skip
    """Hold out, dq, dk, dv against the oracle."""
    q, k, v, dout = arrays
    off = oracle.hidden((q.shape[0], q.shape[2], q.shape[1], k.shape[1]), mask_type, mask)
    factor = max(1, q.shape[3]) ** -0.5 if scale is None else scale
    wanted = oracle.attention(q, k, v, off, factor, factors), *oracle.attention_vjp(dout, q, k, v, off, factor, factors)
    for result, right, size in zip(got, wanted, oracle.magnitudes(dout, q, k, v, off, factor, factors), strict=True):
        assert result.dtype == q.dtype and result.flags.c_contiguous
        check(result, right, row, scale=1e-3 + size)
    rows = off.all(-1).swapaxes(1, 2)
    assert not got[0][rows].any() and not got[1][rows].any()


def test_oracle_gradient_is_the_difference_quotient() -> None:
    arrays = [x.astype(np.float64) for x in problem(1, 3, 4, 2, 1, 2, 3)]
    off = oracle.hidden((1, 2, 3, 4), "causal_bottom_right")
    factors = (normal((1, 2, 3, 4), seed=9) > 0) * 1.5
    gradients, h = oracle.attention_vjp(arrays[3], *arrays[:3], off, 0.6, factors), 1e-6
    for which, gradient in enumerate(gradients):
        for at in np.ndindex(gradient.shape):
            values = []
            for sign in (1, -1):
                moved = [x.copy() for x in arrays[:3]]
                moved[which][at] += sign * h
                values.append((oracle.attention(*moved, off, 0.6, factors) * arrays[3]).sum())
            np.testing.assert_allclose(gradient[at], (values[0] - values[1]) / (2 * h), atol=1e-7)


@pytest.mark.sanitizer
@pytest.mark.parametrize("mask_type", MASK_TYPES)
@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_every_mask_type(device: Device, dtype: np.dtype, mask_type: str) -> None:
    for batch, queries, keys, heads, groups in ((2, 5, 7, 4, 2), (3, 7, 5, 3, 1), (1, 33, 33, 2, 2)):
        arrays = problem(batch, queries, keys, heads, groups, 8, 8, dtype)
        mask = mask_for(mask_type, batch, heads, queries, keys)
        compare(run(arrays, device, mask, mask_type=mask_type), arrays, mask_type, mask)


@pytest.mark.parametrize("depth", [1, 8, 33, 64, 128])
def test_sizes(device: Device, depth: int) -> None:
    for queries, keys, heads, groups, values in ((64, 64, 4, 4, depth), (17, 130, 6, 2, 24), (150, 90, 3, 1, 5)):
        arrays = problem(3, queries, keys, heads, groups, depth, values)
        compare(run(arrays, device, scale=0.3), arrays, scale=0.3)


@pytest.mark.parametrize("mask_type", ["no_mask", "causal_bottom_right", "padding_causal"])
def test_long_sequences(device: Device, mask_type: str) -> None:
    arrays = problem(2, 300, 700, 2, 1, 40, 48, BF16)
    mask = mask_for(mask_type, 2, 2, 300, 700)
    compare(run(arrays, device, mask, mask_type=mask_type), arrays, mask_type, mask)


@pytest.mark.parametrize("mask_type", MASK_TYPES)
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_whatever_backend_comes_first(device: Device, dtype: np.dtype, mask_type: str) -> None:
    arrays = problem(2, 40, 72, 4, 2, 64, 32, dtype)
    mask = mask_for(mask_type, 2, 4, 40, 72)
    got = run(arrays, device, mask, mask_type=mask_type, backend=None)
    compare(got, arrays, mask_type, mask, row="attention")


def test_handed_h15(device: Device) -> None:
    """True hides; a row that sees no key gives 0 and finite gradients."""
    q = np.zeros((1, 2, 1, 2), F32)
    v = np.array([[2, 4], [6, 8]], F32).reshape(1, 2, 1, 2)
    mask = np.array([[False, True], [True, True]])
    out, dq, dk, dv = run([q, q, v, np.ones_like(q)], device, mask, mask_type="arbitrary")
    assert out.reshape(2, 2).tolist() == [[2, 4], [0, 0]]
    assert dv.reshape(2, 2).tolist() == [[1, 1], [0, 0]]
    assert not dq.any() and not dk.any()


@pytest.mark.parametrize(
    ("queries", "keys", "mask_type", "wanted"),
    [
        (2, 5, "causal", [1, 1.5]),
        (2, 5, "causal_bottom_right", [3.75, 6.2]),
        (5, 2, "causal", [1, 1.5, 1.5, 1.5, 1.5]),
        (5, 2, "causal_bottom_right", [0, 0, 0, 1, 1.5]),
    ],
)
def test_handed_h16(device: Device, queries: int, keys: int, mask_type: str, wanted: list[float]) -> None:
    q, k = np.zeros((1, queries, 1, 1), F32), np.zeros((1, keys, 1, 1), F32)
    v = np.array([1, 2, 4, 8, 16], F32)[:keys].reshape(1, keys, 1, 1)
    arrays = [q, k, v, np.ones_like(q)]
    out, *gradients = run(arrays, device, mask_type=mask_type)
    np.testing.assert_allclose(out.reshape(-1), wanted, rtol=1e-6)
    assert all(np.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("mask_type", ["padding", "padding_causal", "padding_causal_bottom_right"])
def test_pairs_of_padding_masks(device: Device, mask_type: str) -> None:
    """Padded queries see nothing, and the bottom right corner is that of what is no padding."""
    arrays = problem(3, 6, 9, 2, 2, 8, 8)
    queries = np.arange(6) >= np.array([6, 4, 0])[:, None]
    keys = np.arange(9) >= np.array([7, 9, 3])[:, None]
    mask = queries[:, None, None, :], keys[:, None, None, :]
    for _ in range(2):
        compare(run(arrays, device, mask, mask_type=mask_type), arrays, mask_type, mask)


@pytest.mark.parametrize("shape", [(9,), (6, 9), (6, 1), (1, 4, 1, 9), (3, 1, 6, 9), (3, 4, 6, 9), (1, 1, 1, 1)])
def test_arbitrary_masks_broadcast(device: Device, shape: tuple[int, ...]) -> None:
    arrays, mask = problem(3, 6, 9, 4, 2, 8, 8), normal(shape, seed=5) > 0
    compare(run(arrays, device, mask, mask_type="arbitrary"), arrays, "arbitrary", mask)


@pytest.mark.parametrize(("p", "mask_type"), [(0.3, "causal"), (0.5, "no_mask"), (1.0, "causal"), (0.1, "arbitrary")])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_dropout(device: Device, dtype: np.dtype, p: float, mask_type: str) -> None:
    """The bits of the dropout stem at the index of [B, H, Lq, Lk], in the backward too, over several tiles."""
    arrays = problem(2, 150, 65, 4, 2, 8, 8, dtype)
    draw: dict[str, Any] = {"key": KEY, "ordinal": 3}
    factors, _ = dropout(np.ones((2, 4, 150, 65), F32), p, step=np.asarray(11, np.int64), **draw)
    mask = mask_for(mask_type, 2, 4, 150, 65)
    got = run(arrays, device, mask, mask_type=mask_type, dropout=p, step=11, **draw)
    compare(got, arrays, mask_type, mask, factors=factors)


def test_backward_keeps_the_step_of_its_forward(device: Device) -> None:
    q, k, v, dout = (to_device(x, device) for x in problem(1, 9, 9, 2, 2, 8, 8))
    word = to_device(np.zeros((), np.int64), device)
    options: dict[str, Any] = {"dropout": 0.5, "key": 1, "step": word, "backend": "composed"}
    out, saved = attention(q, k, v, **options)
    first = [to_numpy(x) for x in attention_vjp(dout, q, k, v, out, saved)[:3]]
    word[...] = 5
    again = [to_numpy(x) for x in attention_vjp(dout, q, k, v, out, saved)[:3]]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again))
    other, _ = attention(q, k, v, **options)
    assert to_numpy(other).tobytes() != to_numpy(out).tobytes()


@pytest.mark.parametrize("dtype", COMPUTED, ids=str)
def test_layouts(device: Device, dtype: np.dtype) -> None:
    """Slices of one fused buffer, transposed, negative and repeated strides."""
    fused = normal((2, 10, 4, 3, 8), dtype)
    packed = normal((10, 2, 3, 4 * 8), dtype, 4)
    forms = [
        [fused[:, :, :, i] for i in range(3)],
        [packed[:, :, i].reshape(10, 2, 4, 8).transpose(1, 0, 2, 3) for i in range(3)],
        [fused[::-1, ::-1, ::-1, i, ::-1] for i in range(3)],
        [fused[:1, :, :, 0], fused[:1, :, :1, 1], np.broadcast_to(fused[:1, :1, :1, 2], (1, 10, 1, 8))],
    ]
    for q, k, v in forms:
        dout = normal(q.shape[::-1], dtype, 9).T
        plain = [np.ascontiguousarray(x) for x in (q, k, v, dout)]
        got, again = run([q, k, v, dout], device), run(plain, device)
        compare(got, plain)
        compare(again, plain)


@pytest.mark.parametrize("shape", [
    (0, 3, 4, 2, 2, 8, 8), (2, 0, 4, 2, 2, 8, 8), (2, 3, 0, 2, 2, 8, 8), (2, 3, 4, 0, 0, 8, 8), (2, 3, 4, 2, 2, 0, 8),
    (2, 3, 4, 2, 2, 8, 0),
], ids=str)  # fmt: skip
def test_empty(device: Device, shape: tuple[int, ...]) -> None:
    arrays = problem(*shape)
    for options in ({}, {"dropout": 0.5, "step": 0}):
        got = run(arrays, device, mask_type="no_mask", **options)
        assert [x.shape for x in got] == [arrays[3].shape, *(x.shape for x in arrays[:3])]
        assert all(np.isfinite(x).all() for x in got)
        if not options:
            compare(got, arrays, "no_mask")


@settings(max_examples=25)
@given(data=st.data(), dtype=st.sampled_from(COMPUTED), mask_type=st.sampled_from(list(MASK_TYPES)))
def test_any_problem(device: Device, data: st.DataObject, dtype: np.dtype, mask_type: str) -> None:
    groups, depth, values = (data.draw(st.integers(1, n)) for n in (3, 9, 9))
    heads = groups * data.draw(st.integers(1, 3))
    batch, queries, keys = (data.draw(st.integers(1, n)) for n in (4, 12, 12))
    arrays = problem(batch, queries, keys, heads, groups, depth, values, dtype)
    mask = mask_for(mask_type, batch, heads, queries, keys)
    compare(run(arrays, device, mask, mask_type=mask_type), arrays, mask_type, mask)


def test_large_scores(device: Device) -> None:
    """Nothing overflows, and padding that holds NaN in q or k stays where it is."""
    arrays = problem(1, 6, 6, 2, 2, 8, 8, F16)
    arrays[0] *= F16.type(200)
    arrays[1] *= F16.type(200)
    got = run(arrays, device, scale=1.0)
    assert all(np.isfinite(x.astype(F32)).all() for x in got[:2])
    arrays = problem(2, 6, 6, 2, 2, 8, 8)
    arrays[0][0, 5] = np.nan
    out, dq, _, _ = run(arrays, device)
    assert np.isfinite(out[0, :5]).all() and np.isfinite(out[1]).all() and np.isfinite(dq[0, :5]).all()


def test_weights_of_large_scores_add_up_in_the_backward(device: Device) -> None:
    """Scores that are exact in float32, but so large that rounding lse moves weights by 5e-4."""
    q, k = np.ones((1, 4, 1, 1), F32), 8192 + np.arange(37, dtype=F32).reshape(1, 37, 1, 1) / 1024
    arrays = [q, k, normal((1, 37, 1, 3), seed=1), normal((1, 4, 1, 3), seed=2)]
    compare(run(arrays, device, mask_type="no_mask", scale=1.0), arrays, "no_mask", scale=1.0)


def test_repeats_its_bits(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = problem(2, 100, 100, 4, 2, 16, 16)
    options: dict[str, Any] = {"dropout": 0.2, "step": 0, "key": 5}
    first = run(arrays, device, **options)
    for threads in ("1", "3"):
        monkeypatch.setenv("NVFP_NUM_THREADS", threads)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first, run(arrays, device, **options)))


@pytest.mark.gpu
@pytest.mark.parametrize("mask_type", ["causal", "padding_causal_bottom_right"])
def test_a_captured_composition_has_the_bits_of_an_eager_one(mask_type: str) -> None:
    """No kernel of CuPy, no synchronisation, and the step word is read at each replay."""
    import cupy

    device = Device("cuda")
    q, k, v, dout = (to_device(x, device) for x in problem(4, 24, 40, 6, 3, 16, 16, BF16))
    word = to_device(np.zeros((), np.int64), device)
    pair = normal((4, 1, 1, 24), seed=1) > 1, normal((4, 1, 1, 40), seed=2) > 1
    mask = tuple(to_device(m, device) for m in pair) if mask_type.startswith("padding") else None

    def step() -> list[Any]:
        options: dict[str, Any] = {"dropout": 0.3, "key": 5, "step": word, "backend": "composed"}
        out, saved = attention(q, k, v, mask_type=mask_type, mask=mask, **options)
        return [out, *attention_vjp(dout, q, k, v, out, saved)[:3]]

    eager = []
    for number in range(2):
        word.fill(number)
        eager.append([to_numpy(x) for x in step()])
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        step()
        stream.begin_capture()
        results = step()
        graph = stream.end_capture()
    stream.synchronize()
    for number in range(2):
        word.fill(number)
        cupy.cuda.runtime.deviceSynchronize()
        graph.launch(stream)
        stream.synchronize()
        assert all(to_numpy(a).tobytes() == b.tobytes() for a, b in zip(results, eager[number]))
    assert "cupy_" not in graph.debug_dot_str(1)


@pytest.mark.oracle
@pytest.mark.parametrize("mask_type", ["no_mask", "causal", "arbitrary"])
def test_torch(device: Device, mask_type: str) -> None:
    torch = need_oracle("torch")
    arrays = problem(2, 12, 12, 4, 2, 16, 24)
    mask = normal((2, 4, 12, 12), seed=7) > 0.6 if mask_type == "arbitrary" else None
    if mask is not None:
        mask[..., 0] = False  # torch gives NaN for rows without keys
    q, k, v = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in arrays[:3])
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=mask_type == "causal", enable_gqa=True,
        attn_mask=None if mask is None else torch.tensor(~mask),
    ).transpose(1, 2)  # fmt: skip
    wanted.backward(torch.tensor(arrays[3], dtype=torch.float64))
    got = run(arrays, device, mask, mask_type=mask_type)
    for result, right in zip(got, (wanted.detach(), q.grad, k.grad, v.grad)):
        check(result, right.numpy(), "attention", scale=4)


def test_what_does_not_fit(device: Device) -> None:
    q, k, v, dout = (to_device(x, device) for x in problem(2, 4, 6, 4, 2, 8, 8))
    mask = to_device(np.zeros((2, 1, 1, 6), bool), device)
    shapes = r"q \[B, Lq, H, D\]"
    for arrays, text in (
        ((q[0], k, v), shapes), ((q, k[..., :4], v), shapes), ((q, k, v[:, :3]), shapes),
        ((q[:, :, :3], k, v), "3 heads of q and 2 of k and v"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            attention(*arrays)
    with pytest.raises(TypeError, match="k of q's dtype float32"):
        attention(q, to_device(normal((2, 6, 2, 8), F16), device), v)
    with pytest.raises(DTypeError, match="float32, bfloat16"):
        attention(*(to_device(np.zeros((1, 1, 1, 1)), device) for _ in range(3)))
    for options, text in (
        ({"mask_type": "sliding"}, "mask_type out of"), ({"mask": mask}, "a mask that 'causal' goes with, got a mask"),
        ({"mask_type": "padding"}, "goes with, got no mask"), ({"backend": "flash"}, "backend out of"),
        ({"mask_type": "padding", "mask": (mask,)}, "one mask, got 1"),
        ({"mask_type": "arbitrary", "mask": (mask, mask)}, "one mask, got 2"),
        ({"mask_type": "arbitrary", "mask": mask[..., :5]}, "a mask that broadcasts"),
        ({"dropout": 1.5}, "a probability"), ({"scale": np.nan}, "a finite float32 scale"),
        ({"window": (-2, 0)}, "window bounds"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            attention(q, k, v, **options)
    with pytest.raises(TypeError, match="a bool mask"):
        attention(q, k, v, mask_type="padding", mask=to_device(np.zeros((2, 1, 1, 6), np.uint8), device))
    with pytest.raises(TypeError, match="step as an int64"):
        attention(q, k, v, dropout=0.1)
    if device.type == "cpu":
        with pytest.raises(ValueError, match="'cudnn' to be able to, got cudnn: the arrays are on the CPU"):
            attention(q, k, v, backend="cudnn")
    out, saved = attention(q, k, v, window=(-1, 0))
    with pytest.raises(ValueError, match="dout of shape"):
        attention_vjp(dout[:, :2], q, k, v, out, saved)
    with pytest.raises(TypeError, match="dout of float32"):
        attention_vjp(to_device(normal(out.shape, F16), device), q, k, v, out, saved)


def test_described_arrays_look_contiguous() -> None:
    found, real = Described((2, 3, 4), BF16), np.zeros((2, 3, 4), BF16)
    assert (found.shape, found.dtype, found.ndim, found.strides) == (real.shape, real.dtype, real.ndim, real.strides)
    assert found.data.ptr == 0
