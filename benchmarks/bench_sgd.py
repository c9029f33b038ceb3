"""Time `sgd`: one step with momentum over all parameters of a model."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from _harness import BFLOAT16, FLOAT32, Bench, main

from nvfp.kernels.cast import cast
from nvfp.kernels.sgd import sgd

HYPER = (1e-2, 0.9, 0.0, 1e-4)  # lr, momentum, dampening, weight decay


def bench(b: Bench) -> None:
    layers, width = b.size((6, 2048), (4, 1024), (2, 512), (1, 256))
    layer: list[tuple[int, ...]] = [(3 * width, width), (width, width), (4 * width, width), (width,)]
    shapes = layer * layers
    count = sum(int(np.prod(s)) for s in shapes)
    name = f"sgd {len(shapes)} tensors, {count / 1e6:.1f} M"
    words = b.xp.asarray(np.array(HYPER, np.float32)), b.word(0, np.dtype(np.int32))
    nothing = [None] * len(shapes)

    params, grads, m = _lists(b, shapes, FLOAT32)
    b.row(
        f"{name} float32, nesterov",
        partial(sgd, params, grads, m, nothing, *words, nesterov=True),
        moved=20 * count,  # read p, g, m; write p, m
        peer=partial(_torch, b, params, grads),
    )
    b.row(f"{name} float32, no momentum", partial(sgd, params, grads, nothing, nothing, *words), moved=12 * count)

    params, grads, m = _lists(b, shapes, BFLOAT16)
    masters = [cast(p, FLOAT32) for p in params]
    # Read g, m, master (2 + 4 + 4 bytes), write m, master, p (4 + 4 + 2).
    b.row(f"{name} bfloat16, float32 masters", partial(sgd, params, grads, m, masters, *words), moved=20 * count)

    small = _lists(b, [(64,)] * len(shapes), FLOAT32)
    b.host(f"sgd {len(shapes)} tensors", partial(sgd, *small, nothing, *words))


def _lists(b: Bench, shapes: list[tuple[int, ...]], dtype: np.dtype) -> tuple[list[Any], ...]:
    """Parameters, gradients and momentum."""
    params, grads = ([b.normal(s, dtype, 0.02) for s in shapes] for _ in range(2))
    return params, grads, [b.normal(s, FLOAT32, 0.02) for s in shapes]


def _torch(b: Bench, params: list[Any], grads: list[Any], torch: Any) -> Any:
    leaves = [b.tensor(p) for p in params]
    for leaf, g in zip(leaves, grads):
        leaf.grad = b.tensor(g)
    lr, momentum, _, decay = HYPER
    return torch.optim.SGD(leaves, lr=lr, momentum=momentum, weight_decay=decay, nesterov=True, fused=True).step


if __name__ == "__main__":
    main(bench)
