"""Threads and processes: two threads (on CUDA two streams) give the bits of one; a forked child computes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from tests.arrays.quantized_cases import values

TURNS = 6


def calls(x: Any, w: Any) -> list[Callable[[], Any]]:
    """Quantization, products, elementwise functions and reductions: all that keeps plans, workspaces or tables."""
    q = [nf.quantize(w, f) for f in (nf.mxfp8, nf.nvfp4, nf.fp8_e4m3, nf.fp8_e4m3_b128)]
    bf16 = [a.astype(nf.bfloat16) for a in (x, w)]
    return [
        *(lambda f=f: nf.quantize(x, f).codes for f in (nf.mxfp8, nf.nvfp4, nf.fp8_e4m3, nf.mxfp6_e2m3)),
        *(lambda b=b: nf.quantize(x, b.dtype) @ b.T for b in q),
        *(lambda b=b: x @ b.T for b in q),
        lambda: x @ w.T, lambda: bf16[0] @ bf16[1].T, lambda: nf.matmul(bf16[0][:65], bf16[1].T, dtype=nf.float32),
        lambda: nf.exp(x * 0.01) + x, lambda: nf.sum(x, axis=0), lambda: nf.mean(bf16[0]), lambda: nf.argmax(x, axis=1),
        lambda: x.T.copy(), lambda: nf.flip(q[0], axis=0).astype(nf.float32), lambda: nf.concat([q[1], q[1]]).codes,
        lambda: nf.random.default_rng(3).normal(size=(100, 7), device=x.device),
    ]  # fmt: skip


def bits(y: Any) -> bytes:
    return np.asarray(y).tobytes()


def test_two_threads_give_the_bits_of_one(device: Any) -> None:
    x, w = nf.asarray(values((192, 256), 1) / 64), nf.asarray(values((130, 256), 2) / 64)
    work = calls(x, w)
    expected = [bits(call()) for call in work]
    failures: list[Any] = []
    start = threading.Barrier(2)

    def stream() -> Any:
        if device.type == "cpu":
            return nullcontext()
        import cupy

        return cupy.cuda.Stream(non_blocking=True)

    def run(order: int) -> None:
        try:
            with stream():
                start.wait(timeout=60)
                for turn in range(TURNS):
                    places = range(len(work))[::order]
                    failures.extend((turn, i) for i in places if bits(work[i]()) != expected[i])
        except Exception as error:  # told by the main thread
            failures.append(error)

    if device.type == "cuda":
        import cupy

        cupy.cuda.Device().synchronize()  # the operands were made on another stream
    threads = [threading.Thread(target=run, args=(order,)) for order in (1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads) and not failures


def test_results_pass_from_thread_to_thread(device: Any) -> None:
    """Gradients and grad modes of one thread are not another's."""
    x = nf.asarray(values((8, 64)), requires_grad=True)
    seen: list[bool] = []

    def other() -> None:
        seen.append((x * 2).requires_grad)
        (x.astype(nf.mxfp8) @ nf.ones((64, 2), device=x.device)).sum().backward()

    with nf.no_grad():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(timeout=60)
        assert not (x * 2).requires_grad
    assert seen == [True] and x.grad is not None and (np.asarray(x.grad) == 2).all()


FORKED = """
import os, sys
import numpy as np
import nvfp as nf

def bits():
    x = nf.asarray(np.arange(512 * 512, dtype=np.float32).reshape(512, 512) % 97, device="cpu")
    q = nf.quantize(x, nf.nvfp4)
    return b"".join(np.asarray(y).tobytes() for y in (q.codes, q @ q.T, nf.exp(x * 0.01), nf.sum(x, axis=0), q))

before = bits()
child = os.fork()
if child == 0:
    again = os.fork()  # a child of the child, too
    good = bits() == before
    if again:
        good = good and os.waitstatus_to_exitcode(os.waitpid(again, 0)[1]) == 0
    os._exit(0 if good else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert bits() == before
print("fine")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_computes_after_a_cpu_kernel() -> None:
    environment = {**os.environ, "NVFP_NUM_THREADS": "3", "NVFP_DEVICE": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", FORKED], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0 and done.stdout.strip() == "fine", done.stderr
