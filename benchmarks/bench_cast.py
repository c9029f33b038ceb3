"""Time `cast`: between dense dtypes, to and from codes, and the strided copy."""

from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np
from _formats import bare_cast
from _harness import BFLOAT16, FLOAT32, Bench, main

from nvfp.kernels.cast import cast

E4M3, E2M1 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float4_e2m1fn)


def bench(b: Bench) -> None:
    x, wide = b.normal(b.matrix), b.normal(b.matrix, FLOAT32)
    codes = cast(x, E4M3)
    n = x.size
    b.row(
        "cast bfloat16 to float32", partial(cast, x, FLOAT32), moved=6 * n,
        peer=lambda torch: partial(b.tensor(x).to, torch.float32),
    )  # fmt: skip
    b.row(
        "cast float32 to bfloat16", partial(cast, wide, BFLOAT16), moved=6 * n,
        peer=lambda torch: partial(b.tensor(wide).to, torch.bfloat16),
    )  # fmt: skip
    b.row(
        "cast bfloat16 to e4m3", partial(cast, x, E4M3), moved=3 * n,
        peer=lambda torch: partial(b.tensor(x).to, torch.float8_e4m3fn),
    )  # fmt: skip
    b.row("cast bfloat16 to e2m1, a byte each", partial(cast, x, E2M1), moved=3 * n)
    b.row(
        "cast e4m3 to bfloat16", partial(cast, codes, BFLOAT16, source=E4M3), moved=3 * n,
        peer=lambda torch: partial(b.tensor(codes, "float8_e4m3fn").to, torch.bfloat16),
    )  # fmt: skip
    if not b.cuda:
        b.row(
            "cast float32 to e4m3", partial(cast, wide, E4M3), moved=5 * n, rivals=bare_cast(wide, "e4m3"),
            peer=lambda torch: partial(b.tensor(wide).to, torch.float8_e4m3fn),
        )  # fmt: skip
        b.row(
            "cast float32 to e2m1, a byte each", partial(cast, wide, E2M1), moved=5 * n, rivals=bare_cast(wide, "e2m1")
        )
    halves = x[:, ::2]
    b.row(
        "copy of every other column, bfloat16", partial(cast, halves, BFLOAT16), moved=3 * n,
        peer=lambda torch: b.tensor(x)[:, ::2].contiguous,
    )  # fmt: skip
    small = b.normal((64, 64))
    out = b.empty((64, 64), FLOAT32)
    b.host("cast into out", partial(cast, small, FLOAT32, out=out), limit=9)
    b.host("cast", partial(cast, small, FLOAT32))


if __name__ == "__main__":
    main(bench)
