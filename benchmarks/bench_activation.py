"""Time `activation` and its gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

from _harness import Bench, main

from nvfp.kernels.activation import activation, activation_vjp


def _gated(act: Any, x: Any) -> Any:
    a, b = x.chunk(2, dim=-1)
    return act(a) * b


def bench(b: Bench) -> None:
    x, dy = b.normal(b.matrix), b.normal(b.matrix)
    gelu = {"approximate": "tanh"}
    b.row(
        "gelu", partial(activation, x, "gelu"), moved=2 * x.nbytes,
        peer=lambda torch: partial(torch.nn.functional.gelu, b.tensor(x), **gelu),
    )  # fmt: skip
    b.row(
        "gelu gradient", partial(activation_vjp, x, dy, "gelu"), moved=3 * x.nbytes,
        peer=lambda torch: partial(torch.ops.aten.gelu_backward, b.tensor(dy), b.tensor(x), **gelu),
    )  # fmt: skip
    b.row(
        "silu", partial(activation, x, "silu"), moved=2 * x.nbytes,
        peer=lambda torch: partial(torch.nn.functional.silu, b.tensor(x)),
    )  # fmt: skip
    b.row(
        "silu gradient", partial(activation_vjp, x, dy, "silu"), moved=3 * x.nbytes,
        peer=lambda torch: partial(torch.ops.aten.silu_backward, b.tensor(dy), b.tensor(x)),
    )  # fmt: skip
    b.row(
        "relu", partial(activation, x, "relu"), moved=2 * x.nbytes,
        peer=lambda torch: partial(torch.relu, b.tensor(x)),
    )  # fmt: skip
    b.row("srelu", partial(activation, x, "srelu"), moved=2 * x.nbytes)
    pairs = b.normal((b.matrix[0], 2 * b.matrix[1]))
    for kind, act in (("swiglu", "silu"), ("geglu", "gelu")):
        b.row(
            kind, partial(activation, pairs, kind), moved=1.5 * pairs.nbytes,
            peer=lambda torch, act=act: partial(_gated, getattr(torch.nn.functional, act), b.tensor(pairs)),
        )  # fmt: skip
        b.row(f"{kind} gradient", partial(activation_vjp, pairs, dy, kind), moved=2.5 * pairs.nbytes)
    b.row("clamped_swiglu", partial(activation, pairs, "clamped_swiglu"), moved=1.5 * pairs.nbytes)
    b.row("clamped_swiglu gradient", partial(activation_vjp, pairs, dy, "clamped_swiglu"), moved=2.5 * pairs.nbytes)
    small, out = b.normal((64, 64)), b.empty((64, 64))
    b.host("gelu into out", partial(activation, small, "gelu", out=out), limit=9)


if __name__ == "__main__":
    main(bench)
