"""Time `rope` on queries as they stand in a fused buffer."""

from __future__ import annotations

from functools import partial

import numpy as np
from _harness import FLOAT32, Bench, main

from nvfp.kernels.rope import rope


def bench(b: Bench) -> None:
    batch, length, heads, width = b.size((8, 4096, 16, 128), (4, 4096, 16, 128), (2, 1024, 12, 64), (1, 512, 12, 64))
    theta = np.outer(np.arange(length), 10000.0 ** (-np.arange(0, width, 2) / width)).astype(FLOAT32)
    freqs = b.xp.asarray(np.hstack([theta, theta]))
    fused = b.normal((batch, length, heads, 3, width))
    query, plain = fused[:, :, :, 0], b.normal((batch, length, heads, width))
    moved = 2 * plain.nbytes
    b.row("rope", partial(rope, plain, freqs), moved=moved)
    b.row("rope interleaved", partial(rope, plain, freqs, interleaved=True), moved=moved)
    b.row("rope half the width", partial(rope, plain, freqs[:, : width // 2]), moved=moved)
    b.row("rope slice of qkv", partial(rope, query, freqs), moved=moved)
    b.row("rope slice of qkv in place", partial(rope, query, freqs, out=query), moved=moved)
    small, out, few = b.normal((1, 16, 4, 64)), b.empty((1, 16, 4, 64)), freqs[:16, :64]
    table = b.xp.ascontiguousarray(few)
    b.host("rope into out", partial(rope, small, table, out=out), limit=9)


if __name__ == "__main__":
    main(bench)
