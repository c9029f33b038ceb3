"""Time `softmax` as attention calls it (float32 scores in, 16-bit weights out, causal or masked), and its gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from _harness import BFLOAT16, FLOAT32, Bench, main

from nvfp.kernels.softmax import softmax, softmax_vjp


def bench(b: Bench) -> None:
    shape = b.size((8, 16, 2048, 2048), (2, 16, 2048, 2048), (8, 4, 256, 256), (2, 4, 128, 128))
    scores, weights = b.normal(shape, FLOAT32), b.empty(shape)
    name = f"softmax {'x'.join(map(str, shape))}"
    moved = scores.nbytes + weights.nbytes
    forward = partial(softmax, scores, scale=0.125, dtype=BFLOAT16, out=weights)
    b.row(name, forward, moved=moved, peer=partial(_torch, b, scores))
    b.row(f"{name} causal", partial(forward, causal="top_left"), moved=weights.nbytes + scores.nbytes / 2)
    mask = b.xp.asarray(np.arange(shape[-1])[None, None, None] >= np.full((shape[0], 1, 1, 1), shape[-1] - 9))
    b.row(f"{name} padding mask", partial(forward, mask=mask), moved=moved)
    forward()
    gradient = b.empty(shape)
    backward = partial(softmax_vjp, weights, scores, scale=0.125, dtype=BFLOAT16, out=gradient)
    b.row(f"{name} gradient", backward, moved=moved + gradient.nbytes)
    small, out = b.normal((8, 64), FLOAT32), b.empty((8, 64))
    b.host("softmax into out", partial(softmax, small, out=out))


def _torch(b: Bench, scores: Any, torch: Any) -> Any:
    x = b.tensor(scores)
    return lambda: torch.softmax(x, -1).to(torch.bfloat16)


if __name__ == "__main__":
    main(bench)
