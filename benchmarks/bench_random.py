"""Time `random`: Philox bits, uniform and normal values, integers; the output is all that moves."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from _harness import BFLOAT16, FLOAT32, INT64, Bench, main

from nvfp.kernels.random import random


def bench(b: Bench) -> None:
    draw: Any = partial(random, key=1, ordinal=0, device=str(b.device))
    count, place = b.matrix[0] * b.matrix[1], str(b.device)
    b.row("random bits", partial(draw, "bits", b.matrix, dtype=np.dtype(np.uint32)), moved=4 * count)
    b.row(
        "random uniform float32", partial(draw, "uniform", b.matrix, dtype=FLOAT32), moved=4 * count,
        peer=lambda torch: partial(torch.rand, b.matrix, device=place),
    )  # fmt: skip
    b.row(
        "random normal float32", partial(draw, "normal", b.matrix, dtype=FLOAT32), moved=4 * count,
        peer=lambda torch: partial(torch.randn, b.matrix, device=place),
    )  # fmt: skip
    b.row(
        "random normal bfloat16", partial(draw, "normal", b.matrix, dtype=BFLOAT16), moved=2 * count,
        peer=lambda torch: partial(torch.randn, b.matrix, device=place, dtype=torch.bfloat16),
    )  # fmt: skip
    b.row(
        "random integers int64", partial(draw, "integers", b.matrix, dtype=INT64, low=0, high=1000), moved=8 * count,
        peer=lambda torch: partial(torch.randint, 0, 1000, b.matrix, device=place),
    )  # fmt: skip
    b.host("random normal", partial(draw, "normal", (64, 64), dtype=BFLOAT16))


if __name__ == "__main__":
    main(bench)
