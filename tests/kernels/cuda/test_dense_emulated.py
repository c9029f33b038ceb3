"""The CUDA twins of the dense stems, run on the CPU (see `emulator`): the CPU twins' bits, or the oracle's numbers.

Each test compiles its kernels, so dtypes are few here; a GPU runs all of them through the tests of the contracts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvfp.kernels.activation import Clamp
from nvfp.kernels.cpu import (
    activation as cpu_activation,
    adam as cpu_adam,
    bias_grad as cpu_bias_grad,
    dropout as cpu_dropout,
    multi_tensor as cpu_multi_tensor,
    rope as cpu_rope,
    sgd as cpu_sgd,
)
from nvfp.kernels.cuda import (
    _entries,
    activation,
    adam,
    bias_grad,
    cross_entropy,
    dropout,
    embedding,
    multi_tensor,
    rope,
    sgd,
)
from nvfp.kernels.cuda._launch import count_launches
from nvfp.kernels.multi_tensor import PIECE
from tests.kernels.cuda import emulator
from tests.kernels.dense import BF16, F32, SPECIAL, bits, normal
from tests.kernels.test_multi_tensor import many, tensors
from tests.oracles import cross_entropy as cross_entropy_oracle, embedding as embedding_oracle
from tests.tolerances import check


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulator.install(monkeypatch)


def off_vectors(x: np.ndarray) -> np.ndarray:
    """The same numbers one element behind a 16-byte address."""
    buffer = np.empty(x.size + 32, x.dtype)
    start = -(buffer.ctypes.data // x.dtype.itemsize) % (16 // x.dtype.itemsize) + 1
    y = buffer[start : start + x.size].reshape(x.shape)
    y[...] = x
    return y


def gpu_nan(dtype: np.dtype) -> np.ndarray:
    """The NaN that a GPU's arithmetic makes: all ones but for the sign."""
    return np.array(np.iinfo(f"i{dtype.itemsize}").max).astype(f"i{dtype.itemsize}").view(dtype)


@pytest.mark.parametrize(
    ("kind", "dtype"), [*zip(("gelu", "relu", "silu", "qgelu", "srelu"), (F32, BF16) * 3)], ids=str
)
def test_activation_bits(dtype: np.dtype, kind: str) -> None:
    x = np.concatenate([normal((5003,), dtype, scale=4.0), np.array(SPECIAL, F32).astype(dtype), [gpu_nan(dtype)]])
    dy = normal(x.shape, dtype, 1)
    for a, b in ((x, dy), (off_vectors(x), dy), (x[:0], dy[:0])):
        assert np.array_equal(bits(activation.activation(a, kind)), bits(cpu_activation.activation(a, kind)))
        assert np.array_equal(
            bits(activation.activation_vjp(a, b, kind)), bits(cpu_activation.activation_vjp(a, b, kind))
        )


@pytest.mark.parametrize(
    ("kind", "dtype"), [("swiglu", BF16), ("glu", F32), ("sreglu", BF16), ("clamped_swiglu", F32)], ids=str
)
def test_gated_activation_bits(dtype: np.dtype, kind: str) -> None:
    for shape in ((37, 64), (37, 66), (0, 8), (5, 0), (2, 2)):
        x = normal(shape, dtype, scale=4.0)
        x[:1, :1] = gpu_nan(dtype)
        dy = normal((shape[0], shape[1] // 2), dtype, 1)
        given = {"params": Clamp(2.5, -1.1, 0.3) if kind == "clamped_swiglu" else None}
        for a in (x, off_vectors(x)):
            y = cpu_activation.activation(a, kind, **given)
            expected = cpu_activation.activation_vjp(a, dy, kind, **given)
            assert np.array_equal(bits(activation.activation(a, kind, **given)), bits(y))
            assert np.array_equal(bits(activation.activation_vjp(a, dy, kind, **given)), bits(expected))
            activation.activation_vjp(a, dy, kind, out=a, **given)
            assert np.array_equal(bits(a), bits(expected))


def test_dropout_bits() -> None:
    step = np.asarray(2**33 + 5, np.int64)
    for n, offset in ((0, 0), (1, 0), (5003, 0), (5003, 4), (5003, 7), (8, 2), (4096, 2**35)):
        x, residual = normal((n,), BF16), normal((n,), BF16, 1)
        place = {"key": 2**64 - 5, "ordinal": 9, "step": step, "offset": offset}
        for added in (residual, None):
            y, used = dropout.dropout(x, 0.3, residual=added, **place)
            assert used == step
            assert np.array_equal(bits(y), bits(cpu_dropout.dropout(x, 0.3, residual=added, **place)[0]))
        assert np.array_equal(bits(dropout.dropout_vjp(x, 0.3, **place)), bits(y))
    words = [np.asarray(k, np.int64) for k in range(1203)]
    with count_launches() as count:
        dropout.advance_steps(words)
    assert count.n == 3
    assert [int(w) for w in words] == list(range(1, 1204))


@pytest.mark.parametrize(("width", "rotated", "interleaved"), [(64, 32, False), (40, 24, True), (7, 4, True)])
def test_rope_bits(width: int, rotated: int, interleaved: bool) -> None:
    fused = normal((2, 5, 3, 3, width), BF16)
    freqs = normal((6, rotated), scale=100.0)
    for x in (fused[:, :, :, 1], fused[:, ::-1, :, 2].transpose(0, 2, 1, 3), fused[:, :0, 0]):
        for inverse in (False, True):
            options = {"interleaved": interleaved, "inverse": inverse}
            expected = cpu_rope.rope(x, freqs, **options)
            assert np.array_equal(bits(rope.rope(x, freqs, **options)), bits(expected))
    view = fused[:, :, :, 1]
    rope.rope(view, freqs, out=view, **options)
    assert np.array_equal(
        bits(view), bits(cpu_rope.rope(normal((2, 5, 3, 3, width), BF16)[:, :, :, 1], freqs, **options))
    )


def test_rope_of_more_pairs_than_a_block_keeps() -> None:
    x, freqs = normal((3, 1, 2, 1300)), normal((1, 1200), scale=9.0)
    assert np.array_equal(bits(rope.rope(x, freqs)), bits(cpu_rope.rope(x, freqs)))


@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (130, 8), (700, 40), (65, 33)], ids=str)
def test_bias_grad_bits(shape: tuple[int, int]) -> None:
    dy = normal(shape, BF16)
    assert np.array_equal(bits(bias_grad.bias_grad(dy, dtype=F32)), bits(cpu_bias_grad.bias_grad(dy, dtype=F32)))


@pytest.mark.parametrize("mode", ["adamw", "adam_l2"])
def test_adam_bits(mode: str) -> None:
    sizes = [0, 1, 5, 4096, 4097, 9001] + [3] * 70  # two tables of tensors
    params = [normal((n,), BF16, k) for k, n in enumerate(sizes)]
    grads = [normal((n,), F32, 100 + k) for k, n in enumerate(sizes)]
    masters = [p.astype(F32) if k % 2 else None for k, p in enumerate(params)]
    results = []
    for twin in (adam, cpu_adam):
        moved: list[list[Any]] = [
            [x if x is None else (x.copy() if k % 3 else off_vectors(x)) for k, x in enumerate(xs)]
            for xs in (params, grads, [np.zeros(n, F32) for n in sizes], [np.zeros(n, F32) for n in sizes], masters)
        ]
        step, hyper = np.zeros((), np.int32), np.array([1e-2, 0.9, 0.95, 1e-8, 0.1], F32)
        with count_launches() as count:
            for skip in (0.0, 1.0, 0.0, None):
                flag = None if skip is None else np.array(skip, F32)
                twin.adam(*moved, hyper, step, mode=mode, skip=flag)
        assert step == 3
        assert count.n == (12 if twin is adam else 0)
        results.append([x for xs in moved for x in xs if x is not None])
    assert all(np.array_equal(bits(a), bits(b)) for a, b in zip(*results))


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_bits(nesterov: bool) -> None:
    sizes = [0, 1, 5, 4096, 4097, 9001] + [3] * 70
    params = [normal((n,), BF16, k) for k, n in enumerate(sizes)]
    grads = [normal((n,), F32, 100 + k) for k, n in enumerate(sizes)]
    buffers = [np.full(n, np.nan, F32) if k % 5 else None for k, n in enumerate(sizes)]
    masters = [p.astype(F32) if k % 2 else None for k, p in enumerate(params)]
    results = []
    for twin in (sgd, cpu_sgd):
        moved: list[list[Any]] = [
            [x if x is None else (x.copy() if k % 3 else off_vectors(x)) for k, x in enumerate(xs)]
            for xs in (params, grads, buffers, masters)
        ]
        step, hyper = np.zeros((), np.int32), np.array([1e-2, 0.9, 0.25, 0.1], F32)
        for skip in (0.0, 1.0, 0.0, None):
            twin.sgd(*moved, hyper, step, nesterov=nesterov, skip=None if skip is None else np.array(skip, F32))
        assert step == 3
        results.append([x for xs in moved for x in xs if x is not None])
    assert all(np.array_equal(bits(a), bits(b)) for a, b in zip(*results))


@pytest.mark.parametrize("algorithm", ["max", "most_recent"])
def test_amax_history_bits(algorithm: str) -> None:
    for modules, longest, launches in ((3, 300, 1), (100, 5, 2)):
        histories, scales, tops = many(modules, modules, longest)
        results = []
        for twin in (multi_tensor, cpu_multi_tensor):
            moved = [[x.copy() for x in xs] for xs in (histories, scales)]
            with count_launches() as count:
                twin.prepare_amax_history_update(*moved, tops, algorithm=algorithm, margin=1)()
            assert count.n == (launches if twin is multi_tensor else 0)
            results.append([x for xs in moved for x in xs])
        assert all(np.array_equal(bits(a), bits(b)) for a, b in zip(*results))


def test_scale_tensors_bits_and_l2_norm() -> None:
    xs, factor, found = tensors((BF16,)), np.asarray(F32.type(0.3)), np.zeros((), F32)
    xs[-1][-1] = np.inf
    for one, other in zip(
        multi_tensor.scale_tensors(xs, factor, nonfinite=found), cpu_multi_tensor.scale_tensors(xs, factor)
    ):
        assert np.array_equal(bits(one), bits(other))
    assert found == 1
    xs[-1][-1] = 1
    check(multi_tensor.l2_norm(xs), cpu_multi_tensor.l2_norm(xs), "l2_norm", factor=2.0)
    many_small = [np.full(3, 2, BF16)] * (2 * multi_tensor.ENTRIES + 1)
    with count_launches() as count:
        assert multi_tensor.l2_norm(many_small) == F32.type(np.sqrt(12.0 * len(many_small)))
    assert count.n == 4


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy(smoothing: float) -> None:
    for rows, vocabulary in ((3, 2), (6, 50), (3, 2051)):
        x, ids = normal((rows, vocabulary), BF16, scale=3.0), np.arange(rows) % vocabulary
        ids[1] = -100
        for logits in (x, off_vectors(x)):
            for reduction, dloss in (("mean", np.ones(1, F32)), ("none", normal((rows,)))):
                loss, lse, weight = cross_entropy.cross_entropy(
                    logits, ids, label_smoothing=smoothing, reduction=reduction
                )
                out = logits.copy() if reduction == "mean" else None  # in place
                given = logits if out is None else out
                dx = cross_entropy.cross_entropy_vjp(given, ids, lse, weight, dloss, label_smoothing=smoothing, out=out)
                options = {"label_smoothing": smoothing, "reduction": reduction}
                check(loss, cross_entropy_oracle.cross_entropy(x, ids, **options), "cross_entropy")
                check(dx, cross_entropy_oracle.cross_entropy_vjp(x, ids, dloss, **options), "cross_entropy", scale=3)


def test_cross_entropy_of_what_has_no_answer() -> None:
    x, ids = normal((6, 9), BF16), np.array([9, -1, 3, 2, 2, 2])
    x[3, 3], x[4], x[5, 1] = np.nan, -np.inf, np.inf
    loss, lse, weight = cross_entropy.cross_entropy(x, ids, reduction="none")
    dx = cross_entropy.cross_entropy_vjp(x, ids, lse, weight, np.ones(6, F32))
    assert np.isnan(loss).tolist() == [True, True, False, True, True, True]
    assert not dx[:2].any()
    loss, _, weight = cross_entropy.cross_entropy(x, np.full(6, -100))
    assert (loss, weight) == (0, 0)


@pytest.mark.parametrize(
    ("count", "rows", "width", "dtype"),
    [
        (900, 7, 8, BF16),
        (40, 5, 3, F32),
        (1500, 256, 16, BF16),
        (1200, 300, 3, F32),
        (700, 3, 1030, F32),
        (0, 4, 8, BF16),
    ],
    ids=str,
)
def test_embedding(count: int, rows: int, width: int, dtype: np.dtype) -> None:
    ids = (np.random.default_rng(0).integers(0, rows, count) * (np.arange(count) % 3 > 0)).astype(np.int64)
    table, dy = normal((rows, width), dtype), normal((count, width), dtype)
    assert embedding.embedding(table, ids).tobytes() == table[ids].tobytes()
    size = 1 + embedding_oracle.embedding_vjp(np.abs(dy), ids, rows)
    dtable = embedding.embedding_vjp(dy, ids, rows, dtype=dtype)
    check(dtable, embedding_oracle.embedding_vjp(dy, ids, rows), "embedding", scale=size)
    if count:
        bad = ids.copy()
        bad[[0, count // 2]] = -1, rows
        good = (bad >= 0) & (bad < rows)
        check(
            embedding.embedding_vjp(dy, bad, rows, dtype=dtype),
            embedding_oracle.embedding_vjp(dy[good], bad[good], rows), "embedding", scale=size,
        )  # fmt: skip
        assert np.isnan(embedding.embedding(table, bad)[~good].astype(F32)).all()


@pytest.mark.parametrize(("rows", "chunk"), [(1, 256), (3, 1024), (256, 256), (257, 1024), (70_000, 256)])
def test_the_sort_is_stable(rows: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "_SMALL_CHUNK", chunk)
    ids = np.random.default_rng(rows).integers(-1, rows + 1, 2500)  # -1 and rows are left out
    keys, order, valid = embedding._sorted(ids, rows)
    kept = np.flatnonzero((ids >= 0) & (ids < rows))
    wanted = kept[np.argsort(ids[kept], kind="stable")]
    assert valid == kept.size
    assert np.array_equal(order[: kept.size], wanted)
    assert np.array_equal(keys[: kept.size], ids[wanted])


def test_constants_of_launchers_and_sources_agree() -> None:
    """Tables passed by value stay below 4 KiB, and Python's copies of a source's constants are the source's."""
    assert _entries.BATCH.itemsize + 8 < 4096
    assert multi_tensor.BATCH.itemsize < 4096
    assert multi_tensor.TENSORS_BATCH.itemsize + 16 < 4096
    assert dropout.BATCH.itemsize < 4096
    names = ("include/entries.cuh", "multi_tensor.cu", "multi_tensor_pieces.cu", "embedding.cu", "dropout.cu")
    texts = {Path(m).stem: (emulator.SOURCES / m).read_text() for m in names}
    assert f"constexpr int ENTRIES = {_entries.ENTRIES};" in texts["entries"]
    assert f"THREADS = {_entries.THREADS}, PER_THREAD = 4, TURNS = 4;" in texts["entries"]
    assert _entries.CHUNK == _entries.THREADS * 4 * 4
    assert f"COLUMNS = {multi_tensor.COLUMNS}, RECORDS = {multi_tensor.RECORDS};" in texts["multi_tensor"]
    assert f"constexpr int PIECE = {PIECE};" in texts["multi_tensor_pieces"]
    assert f"constexpr int ENTRIES = {multi_tensor.ENTRIES};" in texts["multi_tensor_pieces"]
    assert f"WORDS = {dropout.WORDS};" in texts["dropout"]
    assert f"constexpr int DIGITS = {embedding._DIGITS};" in texts["embedding"]
