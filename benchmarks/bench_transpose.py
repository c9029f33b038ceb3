"""Time `transpose`: the last two axes swapped, of items and of packed 4-bit codes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from _harness import FLOAT32, Bench, main

from nvfp.kernels.transpose import transpose


def bench(b: Bench) -> None:
    rows, columns = b.matrix
    for name, x in (
        ("bfloat16", b.normal(b.matrix)),
        ("float32", b.normal(b.matrix, FLOAT32)),
        ("8-bit codes", b.normal((rows, columns // 2)).view(np.uint8)),
    ):
        b.row(f"transpose {name}", partial(transpose, x), moved=2 * x.nbytes, peer=partial(_torch, b, x))
    nibbles = b.normal((rows, columns // 4)).view(np.uint8)
    b.row("transpose packed 4-bit codes", partial(transpose, nibbles, packed=True), moved=2 * nibbles.nbytes)
    small, out = b.normal((64, 64)), b.empty((64, 64))
    b.host("transpose into out", partial(transpose, small, out=out), limit=9)


def _torch(b: Bench, x: Any, torch: Any) -> Any:
    return b.tensor(x).t().contiguous


if __name__ == "__main__":
    main(bench)
