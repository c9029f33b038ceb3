"""Time `dropout`, its gradient and the form with a residual."""

from __future__ import annotations

from functools import partial
from typing import Any

from _harness import INT64, Bench, main

from nvfp.kernels.dropout import advance_steps, dropout, dropout_vjp


def bench(b: Bench) -> None:
    x, residual, step = b.normal(b.matrix), b.normal(b.matrix), b.word(0, INT64)
    place: dict[str, Any] = {"key": 1, "ordinal": 0, "step": step}
    b.row(
        "dropout", partial(dropout, x, 0.1, **place), moved=2 * x.nbytes,
        peer=lambda torch: partial(torch.nn.functional.dropout, b.tensor(x), 0.1),
    )  # fmt: skip
    b.row("dropout gradient", partial(dropout_vjp, x, 0.1, **place), moved=2 * x.nbytes)
    b.row("dropout + residual", partial(dropout, x, 0.1, residual=residual, **place), moved=3 * x.nbytes)
    small, out = b.normal((64, 64)), b.empty((64, 64))
    b.host("dropout into out", partial(dropout, small, 0.1, out=out, **place))
    words = [b.word(0, INT64) for _ in range(50)]
    b.host("advance 50 steps", partial(advance_steps, words))


if __name__ == "__main__":
    main(bench)
