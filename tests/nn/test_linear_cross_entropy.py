"""`linear_cross_entropy`: against the unfused pair, float64 and torch; memory, bits, captured steps, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp import config
from nvfp.errors import ArgumentError, DTypeError, GradientError, ShapeError
from nvfp.inspect import peak_memory
from nvfp.nn.functional.cross_entropy import cross_entropy
from nvfp.nn.functional.linear import linear
from nvfp.nn.functional.linear_cross_entropy import linear_cross_entropy
from tests.devices import need_oracle
from tests.oracles import cross_entropy as oracle
from tests.tolerances import check

MIB = 1 << 20
DTYPES = (nf.float32, nf.bfloat16, nf.float16)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def problem(rows: int, k: int, v: int, dtype: Any, *, bias: bool = True, ignored: bool = True) -> tuple[Any, ...]:
    rng = np.random.default_rng(rows + v)
    x, w, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, k), (v, k), (v,)))
    ids = rng.integers(0, v, rows)
    if ignored:
        ids[1::4] = -100
    x, w, b = (nf.asarray(a).astype(dtype) for a in (x, w / 2, b))
    for a in (x, w, b):
        a.requires_grad = True
    return x, w, nf.asarray(ids), b if bias else None


def run(x: Any, w: Any, ids: Any, b: Any, dloss: Any = None, **options: Any) -> list[np.ndarray]:
    """Loss and gradients as float64 NumPy arrays."""
    for a in (x, w, b):
        if a is not None:
            a.grad = None
    loss = linear_cross_entropy(x, w, ids, b, **options)
    loss.backward(dloss)
    return [np.asarray(loss), *(np.asarray(a.grad).astype(np.float64) for a in (x, w, b) if a is not None)]


def by_hand(x: Any, w: Any, ids: Any, b: Any, dloss: Any = 1.0, **options: Any) -> list[np.ndarray]:
    """The same in float64."""
    dtype = x.dtype
    x, w, b = (None if a is None else np.asarray(a).astype(np.float64) for a in (x, w, b))
    ids = np.asarray(ids)
    logits = (x @ w.T + (0 if b is None else b)).astype(dtype).astype(np.float64)  # as `linear` rounds them
    d = oracle.cross_entropy_vjp(logits, ids, dloss, **options)
    found = [oracle.cross_entropy(logits, ids, **options), d @ w, d.T @ x]
    return found if b is None else [*found, d.sum(0)]


def near(actual: np.ndarray, expected: np.ndarray, dtype: Any, scale: float = 1.0) -> None:
    """Within the row of ``dtype``; absolute errors in units of the largest value, or of ``scale``."""
    scale = max(scale, float(np.abs(expected).max(initial=0)))
    check(actual, expected, "linear_cross_entropy", dtype=dtype, scale=scale)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@dtypes
def test_against_float64(device: Any, dtype: Any, smoothing: float, reduction: Any) -> None:
    for rows, k, v, chunk in ((13, 8, 37, 4), (16, 24, 128, 16), (3, 5, 1, 1)):
        args = problem(rows, k, v, dtype, bias=v != 128)
        options: dict[str, Any] = {"label_smoothing": smoothing, "reduction": reduction}
        each = np.linspace(-1, 2, rows).astype(np.float32) if reduction == "none" else None
        got = run(*args, None if each is None else nf.asarray(each), chunk_bytes=chunk * v * dtype.itemsize, **options)
        wanted = by_hand(*args, 1.0 if each is None else each, **options)
        for a, e in zip(got, wanted, strict=True):
            near(a, e, dtype)


@dtypes
def test_any_chunks_and_recomputation(device: Any, dtype: Any) -> None:
    """One chunk and many agree; making the logits again gives the same bits."""
    args = problem(40, 16, 50, dtype)
    row = 50 * dtype.itemsize
    one = run(*args)
    for chunk_bytes in (1, 3 * row, 16 * row):
        many = run(*args, chunk_bytes=chunk_bytes)
        again = run(*args, chunk_bytes=chunk_bytes, recompute=True)
        for a, e, r in zip(many, one, again, strict=True):
            near(a, e, dtype)
            assert a.tobytes() == r.tobytes()
    assert all(a.tobytes() == b.tobytes() for a, b in zip(one, run(*args), strict=True))


@dtypes
def test_the_unfused_pair(device: Any, dtype: Any) -> None:
    """In one chunk the loss has the pair's bits: the same product, the same rows."""
    x, w, ids, b = problem(24, 16, 64, dtype)
    got = run(x, w, ids, b)
    for a in (x, w, b):
        a.grad = None
    loss = cross_entropy(linear(x, w, b), ids)
    loss.backward()
    assert got[0].tobytes() == np.asarray(loss).tobytes()
    for a, e in zip(got[1:], (x.grad, w.grad, b.grad), strict=True):
        near(a, np.asarray(e).astype(np.float64), dtype)


def test_small_factors_lose_nothing_in_float16(device: Any) -> None:
    """The mean's factor comes on after the sums, so 1 / rows underflows nowhere on the way."""
    x, w, ids, _ = problem(8, 8, 32, nf.float16, bias=False)
    tiny = nf.asarray(np.float32(2.0**-10))
    got = run(x, w, ids, None, tiny, chunk_bytes=128)
    wanted = by_hand(x, w, ids, None, 2.0**-10)
    near(got[2], wanted[2], nf.float16, scale=2.0**-10)


def test_leading_axes_views_and_id_dtypes(device: Any) -> None:
    x, w, ids, b = problem(12, 8, 20, nf.float32)
    got = run(x, w, ids, b)
    wide = nf.permute_dims(nf.reshape(nf.asarray(np.asarray(x)), (3, 4, 8)), (1, 0, 2)).copy()
    wide = nf.permute_dims(wide, (1, 0, 2))
    wide.requires_grad = True
    narrow = nf.reshape(ids, (3, 4)).astype(nf.int16)
    loss = linear_cross_entropy(wide, w, narrow, b, reduction="none")
    assert loss.shape == (3, 4)
    again = run(wide, w, narrow, b)
    assert again[1].shape == (3, 4, 8)
    assert all(a.tobytes() == e.tobytes() for a, e in zip(again, got, strict=True))


@pytest.mark.parametrize("recompute", [False, True])
def test_no_rows_and_only_ignored_ones(device: Any, recompute: bool) -> None:
    for rows in (0, 5):
        x, w, _, b = problem(rows, 4, 6, nf.float32)
        ids = nf.asarray(np.full(rows, -100))
        got = run(x, w, ids, b, recompute=recompute)
        assert got[0] == 0 and not any(g.any() for g in got[1:])
        assert [g.shape for g in got[1:]] == [(rows, 4), (6, 4), (6,)]


def test_only_the_gradients_that_are_wanted(device: Any) -> None:
    x, w, ids, b = problem(12, 8, 20, nf.float32)
    full = run(x, w, ids, b)
    w.requires_grad = b.requires_grad = False
    x.grad = None
    linear_cross_entropy(x, w, ids, b).backward()
    assert np.asarray(x.grad).astype(np.float64).tobytes() == full[1].tobytes()
    with nf.no_grad():
        loss = linear_cross_entropy(x, w, ids, b)
    assert np.asarray(loss).tobytes() == full[0].tobytes() and loss._node is None


def test_under_autocast_the_head_is_not_quantized(device: Any) -> None:
    """A float32 weight under bfloat16 inputs: cast once; its gradient is float32, not rounded on the way."""
    x, w, ids, _ = problem(12, 8, 20, nf.bfloat16, bias=False)
    wide = nf.asarray(np.asarray(w).astype(np.float32))
    wide.requires_grad = True
    with pytest.raises(DTypeError, match=r"\[linear\] expected x and weight of one dtype"):
        linear_cross_entropy(x, wide, ids)
    with nf.autocast(enabled=True, recipe=nf.recipes.MXFP8BlockScaling()):
        loss = linear_cross_entropy(x, wide, ids)
    loss.backward()
    plain = run(x, w, ids, None)
    assert np.asarray(loss).tobytes() == plain[0].tobytes()
    assert wide.grad.dtype == nf.float32
    assert np.asarray(wide.grad.astype(nf.bfloat16)).astype(np.float64).tobytes() == plain[2].tobytes()


@pytest.mark.parametrize("recompute", [False, True])
def test_the_whole_logits_never_exist(device: Any, recompute: bool) -> None:
    """Logits of 64 MiB, chunks of 1 MiB: the peak is nowhere near one copy of the logits."""
    if device.type == "cuda" and config.flag("NVFP_TEST_PLAIN_MALLOC"):
        pytest.skip("no CUDA device: memory pools are switched off")
    x, w, ids, _ = problem(2048, 8, 8192, nf.float32, bias=False, ignored=False)
    run(x, w, ids, None, chunk_bytes=MIB)
    with peak_memory(device) as peak:
        run(x, w, ids, None, chunk_bytes=MIB, recompute=recompute)
    if device.type == "cuda":
        assert peak.bytes - peak.start < 8 * MIB
    elif not peak.source.endswith("start"):
        assert peak.bytes - peak.start < 32 * MIB


def test_memory_of_the_pass_goes_back(device: Any) -> None:
    """A second backward is refused: what forward had kept is gone."""
    x, w, ids, b = problem(12, 8, 20, nf.float32)
    loss = linear_cross_entropy(x, w, ids, b)
    loss.backward(retain_graph=True)
    first = np.asarray(w.grad).copy()
    loss.backward()
    np.testing.assert_array_equal(np.asarray(w.grad), 2 * first)
    with pytest.raises(GradientError):
        loss.backward()


@pytest.mark.oracle
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_torch(device: Any, smoothing: float) -> None:
    torch = need_oracle("torch")
    x, w, ids, b = problem(20, 12, 30, nf.float32)
    t = [torch.tensor(np.asarray(a), dtype=torch.float64, requires_grad=True) for a in (x, w, b)]
    target = torch.tensor(np.asarray(ids))
    wanted = torch.nn.functional.cross_entropy(t[0] @ t[1].T + t[2], target, label_smoothing=smoothing)
    wanted.backward()
    got = run(x, w, ids, b, label_smoothing=smoothing, chunk_bytes=8 * 30 * 4)
    for a, e in zip(got, (wanted.detach(), *(p.grad for p in t)), strict=True):
        near(a, e.numpy(), nf.float32)


def test_the_module_trains_and_shares_its_weight(device: Any) -> None:
    rng = nf.random.default_rng(0)
    table = nf.nn.Embedding(16, 8, rng=rng)
    head = nf.nn.LinearCrossEntropy(8, 16, bias=True, rng=rng, chunk_bytes=256)
    head.weight = table.weight
    ids = nf.asarray(np.arange(16))
    before = None
    for _ in range(20):
        loss = head(table(ids), ids)
        loss.backward()
        with nf.no_grad():
            for p in (table.weight, head.bias):
                p -= 4 * p.grad
                p.grad = None
        before = before or loss.item()
    assert loss.item() < before - 0.1
    assert set(head.parameters()) == {"weight", "bias"} and "8, 16" in repr(head)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_captured_step(device: Any, recompute: bool) -> None:
    x, w, ids, b = problem(64, 32, 100, nf.bfloat16)

    def step(x: Any, ids: Any) -> Any:
        x.grad = w.grad = b.grad = None
        loss = linear_cross_entropy(x, w, ids, b, chunk_bytes=16 * 200, recompute=recompute)
        loss.backward()
        return loss, w.grad

    eager = [np.asarray(a).tobytes() for a in step(x, ids)]
    graphed = nf.cuda_graph(step)
    for _ in range(3):
        assert [np.asarray(a).tobytes() for a in graphed(x, ids)] == eager


def test_what_does_not_fit(device: Any) -> None:
    x, w, ids, b = problem(4, 8, 20, nf.float32)
    with pytest.raises(ShapeError, match=r"targets \[\.\.\.\]"):
        linear_cross_entropy(x, w, ids[:3], b)
    with pytest.raises(ShapeError, match=r"weight \[N, K\]"):
        linear_cross_entropy(x, w[:, :4], ids)
    with pytest.raises(ShapeError, match="bias"):
        linear_cross_entropy(x, w, ids, b[:3])
    with pytest.raises(ShapeError, match="at least one class"):
        linear_cross_entropy(x, w[:0], ids)
    with pytest.raises(DTypeError, match="integer targets"):
        linear_cross_entropy(x, w, ids.astype(nf.float32))
    with pytest.raises(DTypeError, match="float32, bfloat16"):
        linear_cross_entropy(x.astype(nf.float64), w.astype(nf.float64), ids)
    for wrong in (0, 1.5, True):
        with pytest.raises(ArgumentError, match="chunk_bytes"):
            linear_cross_entropy(x, w, ids, chunk_bytes=wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="reduction"):
        linear_cross_entropy(x, w, ids, reduction="average")  # type: ignore[arg-type]
