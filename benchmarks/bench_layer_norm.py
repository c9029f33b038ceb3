"""Time `layer_norm` and its gradient: a read and a write of the matrix forward, two reads and a write backward."""

from __future__ import annotations

from functools import partial
from typing import Any

from _harness import FLOAT32, Bench, main

from nvfp.kernels.layer_norm import layer_norm, layer_norm_vjp


def bench(b: Bench) -> None:
    for shape in b.size(((16384, 768), (16384, 4096), (16384, 8192)), ((4096, 4096),), ((2048, 1024),), ((512, 768),)):
        x, dy, out = b.normal(shape), b.normal(shape), b.empty(shape)
        for kind, gamma, beta in (
            ("", b.normal(shape[1:]), b.normal(shape[1:])),
            (", float32 weight", b.normal(shape[1:], FLOAT32), b.normal(shape[1:], FLOAT32)),
        ):
            name = f"layer_norm {shape[0]} x {shape[1]}{kind}"
            _, mean, rstd = layer_norm(x, gamma, beta)
            same = not kind  # torch wants one dtype
            b.row(
                name, partial(layer_norm, x, gamma, beta, out=out), moved=2 * x.nbytes,
                peer=partial(_torch, b, x, gamma, beta) if same else None,
            )  # fmt: skip
            b.row(
                f"{name}, gradient", partial(layer_norm_vjp, dy, x, gamma, mean, rstd), moved=3 * x.nbytes,
                peer=partial(_torch_vjp, b, dy, x, gamma, beta, mean, rstd) if same else None,
            )  # fmt: skip
    small, gamma, out = b.normal((64, 64)), b.normal((64,)), b.empty((64, 64))
    b.host("layer_norm into out", partial(layer_norm, small, gamma, gamma, out=out))


def _torch(b: Bench, x: Any, gamma: Any, beta: Any, torch: Any) -> Any:
    return partial(torch.nn.functional.layer_norm, b.tensor(x), x.shape[1:], b.tensor(gamma), b.tensor(beta))


def _torch_vjp(b: Bench, dy: Any, x: Any, gamma: Any, beta: Any, mean: Any, rstd: Any, torch: Any) -> Any:
    stats = [b.tensor(s).reshape(-1, 1) for s in (mean, rstd)]
    if not b.cuda:  # there torch keeps them in the dtype of x
        stats = [s.to(torch.bfloat16) for s in stats]
    arrays = (b.tensor(dy), b.tensor(x), x.shape[1:], *stats, b.tensor(gamma), b.tensor(beta), [True] * 3)
    return partial(torch.ops.aten.native_layer_norm_backward, *arrays)


if __name__ == "__main__":
    main(bench)
