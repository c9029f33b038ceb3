"""Time `reduce`: sums, extrema and positions over all elements, rows and columns."""

from __future__ import annotations

from functools import partial

from _harness import FLOAT32, Bench, main

from nvfp.kernels.reduce import reduce


def bench(b: Bench) -> None:
    x, wide = b.normal(b.matrix), b.normal(b.matrix, FLOAT32)
    b.row(
        "sum bfloat16", partial(reduce, "sum", x), moved=x.nbytes,
        peer=lambda torch: b.tensor(x).sum,
    )  # fmt: skip
    b.row(
        "sum float32", partial(reduce, "sum", wide), moved=wide.nbytes,
        peer=lambda torch: b.tensor(wide).sum,
    )  # fmt: skip
    b.row(
        "sum bfloat16 over rows (axis 0)", partial(reduce, "sum", x, axis=0), moved=x.nbytes,
        peer=lambda torch: partial(b.tensor(x).sum, 0),
    )  # fmt: skip
    b.row(
        "sum bfloat16 over columns (axis 1)", partial(reduce, "sum", x, axis=1), moved=x.nbytes,
        peer=lambda torch: partial(b.tensor(x).sum, 1),
    )  # fmt: skip
    b.row("sumsq bfloat16", partial(reduce, "sumsq", x, dtype=FLOAT32), moved=x.nbytes)
    b.row(
        "max bfloat16 over columns", partial(reduce, "max", x, axis=1), moved=x.nbytes,
        peer=lambda torch: partial(b.tensor(x).amax, 1),
    )  # fmt: skip
    b.row(
        "argmax bfloat16 over columns", partial(reduce, "argmax", x, axis=1), moved=x.nbytes,
        peer=lambda torch: partial(b.tensor(x).argmax, 1),
    )  # fmt: skip
    small, out = b.normal((64, 64)), b.empty((64,))
    b.host("sum over columns into out", partial(reduce, "sum", small, axis=1, out=out), limit=9)
    b.host("sum of all", partial(reduce, "sum", small))


if __name__ == "__main__":
    main(bench)
