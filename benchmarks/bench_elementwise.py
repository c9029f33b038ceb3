"""Time `elementwise`: arithmetic, broadcasting, choosing, transcendental ops."""

from __future__ import annotations

from functools import partial

import numpy as np
from _harness import FLOAT32, Bench, main

from nvfp.kernels.elementwise import elementwise


def bench(b: Bench) -> None:
    x, y, wide = b.normal(b.matrix), b.normal(b.matrix), b.normal(b.matrix, FLOAT32)
    bias = b.normal(b.matrix[-1:])
    mask = elementwise("less", x, y)
    n = x.size
    b.row(
        "add bfloat16", partial(elementwise, "add", x, y), moved=6 * n,
        peer=lambda torch: partial(torch.add, b.tensor(x), b.tensor(y)),
    )  # fmt: skip
    b.row(
        "add a bias row", partial(elementwise, "add", x, bias), moved=4 * n,
        peer=lambda torch: partial(torch.add, b.tensor(x), b.tensor(bias)),
    )  # fmt: skip
    b.row("add a transposed matrix", partial(elementwise, "add", x, y.reshape(y.shape[::-1]).T), moved=6 * n,
        peer=lambda torch: partial(torch.add, b.tensor(x), b.tensor(y).view(y.shape[::-1]).t()),
    )  # fmt: skip
    b.row("multiply_add with scalars", partial(elementwise, "multiply_add", x, 0.5, 0.25), moved=4 * n)
    b.row(
        "exp bfloat16", partial(elementwise, "exp", x), moved=4 * n,
        peer=lambda torch: partial(torch.exp, b.tensor(x)),
    )  # fmt: skip
    b.row(
        "exp float32", partial(elementwise, "exp", wide), moved=8 * n,
        peer=lambda torch: partial(torch.exp, b.tensor(wide)),
    )  # fmt: skip
    b.row(
        "less", partial(elementwise, "less", x, y), moved=5 * n,
        peer=lambda torch: partial(torch.lt, b.tensor(x), b.tensor(y)),
    )  # fmt: skip
    b.row(
        "where", partial(elementwise, "where", mask, x, y), moved=7 * n,
        peer=lambda torch: partial(torch.where, b.tensor(mask.view(np.uint8), "bool"), b.tensor(x), b.tensor(y)),
    )  # fmt: skip
    small, out = b.normal((64, 64)), b.empty((64, 64))
    b.host("add into out", partial(elementwise, "add", small, small, out=out), limit=9)
    b.host("add", partial(elementwise, "add", small, small))


if __name__ == "__main__":
    main(bench)
