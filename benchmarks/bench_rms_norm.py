"""Time `rms_norm` and its gradient: a read and a write of the matrix forward, two reads and a write backward."""

from __future__ import annotations

from functools import partial
from typing import Any

from _harness import Bench, main

from nvfp.kernels.rms_norm import rms_norm, rms_norm_vjp


def bench(b: Bench) -> None:
    for shape in b.size(((16384, 768), (16384, 4096), (16384, 8192)), ((4096, 4096),), ((2048, 1024),), ((512, 768),)):
        x, dy, gamma, out = b.normal(shape), b.normal(shape), b.normal(shape[1:]), b.empty(shape)
        name = f"rms_norm {shape[0]} x {shape[1]}"
        rstd = rms_norm(x, gamma)[1]
        peer = partial(_torch, b, x, gamma)
        b.row(name, partial(rms_norm, x, gamma, out=out), moved=2 * x.nbytes, peer=peer)
        b.row(f"{name}, gradient", partial(rms_norm_vjp, dy, x, gamma, rstd), moved=3 * x.nbytes)
    heads = b.normal(b.size((2**20, 128), (2**18, 128), (2**14, 64), (2**12, 64)))
    gamma = b.normal(heads.shape[1:])
    b.row(
        f"rms_norm of heads {heads.shape[0]} x {heads.shape[1]}", partial(rms_norm, heads, gamma),
        moved=2 * heads.nbytes, peer=partial(_torch, b, heads, gamma),
    )  # fmt: skip
    small, out = b.normal((64, 64)), b.empty((64, 64))
    b.host("rms_norm into out", partial(rms_norm, small, b.normal((64,)), out=out))


def _torch(b: Bench, x: Any, gamma: Any, torch: Any) -> Any:
    return partial(torch.nn.functional.rms_norm, b.tensor(x), x.shape[1:], b.tensor(gamma), 1e-5)


if __name__ == "__main__":
    main(bench)
