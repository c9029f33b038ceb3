"""Time `amax`: one read of the tensor."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from _harness import BFLOAT16, FLOAT32, Bench, main

from nvfp.kernels.amax import amax


def bench(b: Bench) -> None:
    word = b.word()
    for dtype in (BFLOAT16, FLOAT32):
        x = b.normal(b.matrix, dtype)
        b.row(f"amax {dtype}", partial(amax, x), moved=x.nbytes, peer=partial(_torch, b, x))
        b.row(f"amax {dtype}, finite, into a word", partial(amax, x, finite=True, out=word), moved=x.nbytes)
    small = b.normal((64, 64))
    b.host("amax into a word", partial(amax, small, out=word), limit=9)
    b.host("amax", partial(amax, small))


def _torch(b: Bench, x: Any, torch: Any) -> Any:
    return partial(torch.linalg.vector_norm, b.tensor(x), math.inf)


if __name__ == "__main__":
    main(bench)
