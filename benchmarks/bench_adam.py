"""Time `adam`: one step of AdamW over all parameters of a model."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from _harness import BFLOAT16, FLOAT32, Bench, main

from nvfp.kernels.adam import adam
from nvfp.kernels.cast import cast
from nvfp.kernels.elementwise import elementwise

HYPER = (1e-4, 0.9, 0.95, 1e-8, 0.1)


def bench(b: Bench) -> None:
    layers, width = b.size((6, 2048), (4, 1024), (2, 512), (1, 256))
    layer: list[tuple[int, ...]] = [(3 * width, width), (width, width), (4 * width, width), (width,)]
    shapes = layer * layers
    count = sum(int(np.prod(s)) for s in shapes)
    name = f"adamw {len(shapes)} tensors, {count / 1e6:.1f} M"
    words = b.xp.asarray(np.array(HYPER, np.float32)), b.word(0, np.dtype(np.int32))

    wide = _lists(b, shapes, FLOAT32)
    plain: tuple[Any, ...] = (*wide, [None] * len(shapes), *words)
    b.row(f"{name} float32", partial(adam, *plain), moved=28 * count, peer=partial(_torch, b, wide[0], wide[1]))

    params, grads, m, v = _lists(b, shapes, BFLOAT16)
    masters = [cast(p, FLOAT32) for p in params]
    mixed = (params, grads, m, v, masters, *words)
    # Read g, m, v, master (2 + 4 + 4 + 4 bytes), write m, v, master, p (4 + 4 + 4 + 2).
    b.row(f"{name} bfloat16, float32 masters", partial(adam, *mixed), moved=28 * count)

    small: tuple[Any, ...] = (*_lists(b, [(64,)] * len(shapes), FLOAT32), [None] * len(shapes), *words)
    b.host(f"adamw {len(shapes)} tensors", partial(adam, *small))


def _lists(b: Bench, shapes: list[tuple[int, ...]], dtype: np.dtype) -> tuple[list[Any], ...]:
    """Parameters, gradients and both moments; second moments are squares."""
    params, grads = ([b.normal(s, dtype, 0.02) for s in shapes] for _ in range(2))
    m = [b.normal(s, FLOAT32, 0.02) for s in shapes]
    return params, grads, m, [elementwise("square", x) for x in m]


def _torch(b: Bench, params: list[Any], grads: list[Any], torch: Any) -> Any:
    leaves = [b.tensor(p) for p in params]
    for leaf, g in zip(leaves, grads):
        leaf.grad = b.tensor(g)
    lr, beta1, beta2, eps, decay = HYPER
    return torch.optim.AdamW(leaves, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay, fused=True).step


if __name__ == "__main__":
    main(bench)
