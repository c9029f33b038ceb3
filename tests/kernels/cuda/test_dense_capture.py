"""A training step's dense kernels in a CUDA graph: nothing waits for the host, and replays equal eager runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nvfp.kernels.activation import activation_vjp
from nvfp.kernels.adam import adam
from nvfp.kernels.bias_grad import bias_grad
from nvfp.kernels.cross_entropy import cross_entropy, cross_entropy_vjp
from nvfp.kernels.cuda._launch import count_launches
from nvfp.kernels.embedding import embedding, embedding_vjp
from nvfp.kernels.multi_tensor import amax_history_update
from tests.devices import to_device, to_numpy
from tests.kernels.dense import BF16, F32, normal


def fresh() -> SimpleNamespace:
    """State and inputs of one small model: logits are looked up in a table that Adam then updates."""
    arrays = {
        "table": normal((300, 40), BF16), "master": normal((300, 40), BF16).astype(F32),
        "m": np.zeros((300, 40), F32), "v": np.zeros((300, 40), F32), "step": np.zeros((), np.int32),
        "ids": np.arange(2000) % 37, "targets": np.arange(2000) % 40, "one": np.ones((), F32),
        "hyper": np.array([1e-2, 0.9, 0.95, 1e-8, 0.1], F32), "scale": np.ones(3, F32),
        "history": np.abs(normal((16, 3))),
    }  # fmt: skip
    return SimpleNamespace(**{name: to_device(x, "cuda") for name, x in arrays.items()})


def work(s: SimpleNamespace) -> list[Any]:
    logits = embedding(s.table, s.ids)
    loss, lse, weight = cross_entropy(logits, s.targets, label_smoothing=0.1)
    dlogits = cross_entropy_vjp(logits, s.targets, lse, weight, s.one, label_smoothing=0.1)
    dlogits = activation_vjp(logits, dlogits)
    db = bias_grad(dlogits)
    dtable = embedding_vjp(dlogits, s.ids, 300, dtype=BF16)
    adam([s.table], [dtable], [s.m], [s.v], [s.master], s.hyper, s.step)
    amax_history_update([s.history], [s.scale], [(448.0,) * 3])
    return [loss, db, dtable, s.table, s.m, s.v, s.master, s.step, s.history, s.scale]


@pytest.mark.gpu
def test_a_captured_step_equals_eager_ones() -> None:
    import cupy

    eager, captured = fresh(), fresh()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        cupy.cuda.Device().synchronize()
        with count_launches() as count:
            work(captured)  # compiles, and leaves memory for the capture in the stream's pool
        stream.begin_capture()
        found = work(captured)
        graph = stream.end_capture()
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
        # gather 1, loss 2, its gradient 1, activation 1, bias 2, table: two passes of three, then 3; Adam 2, amax 1
        assert count.n == 19
        for _ in range(4):
            wanted = work(eager)
        stream.synchronize()
        for a, b in zip(found, wanted):
            assert to_numpy(a).tobytes() == to_numpy(b).tobytes()
    assert int(to_numpy(captured.step)) == 4
