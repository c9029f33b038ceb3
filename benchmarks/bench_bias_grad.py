"""Time `bias_grad`: the column sums of a gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

from _harness import BFLOAT16, FLOAT32, Bench, main

from nvfp.kernels.bias_grad import bias_grad


def bench(b: Bench) -> None:
    for dtype in (BFLOAT16, FLOAT32):
        dy = b.normal(b.matrix, dtype)
        b.row(f"bias_grad {dtype}", partial(bias_grad, dy), moved=dy.nbytes, peer=partial(_torch, b, dy))
    small, out = b.normal((64, 64)), b.empty((64,))
    b.host("bias_grad into out", partial(bias_grad, small, out=out), limit=9)


def _torch(b: Bench, dy: Any, torch: Any) -> Any:
    return partial(b.tensor(dy).sum, 0)


if __name__ == "__main__":
    main(bench)
