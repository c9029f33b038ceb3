"""Time causal `attention` forward and backward, in each backend that runs here, beside torch's.

Counted are 4 B H L L D FLOPs forward, halved because causal, and 2.5 times that backward.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from _harness import BFLOAT16, FLOAT32, INT64, Bench, main

from nvfp.kernels.attention import BACKENDS, attention, attention_vjp
from nvfp.nn.functional.attention import explain_attention


def bench(b: Bench) -> None:
    dtype = BFLOAT16 if b.cuda else FLOAT32
    for shape in b.size(
        ((4, 4096, 16, 128), (16, 1024, 12, 64)), ((4, 2048, 16, 128),), ((16, 64, 4, 32), (16, 128, 4, 32)),
        ((16, 64, 4, 32),),
    ):  # fmt: skip
        for backend in BACKENDS:
            if explain_attention(shape, shape, shape, dtype=dtype, device=b.device, backend=backend).backend:
                _shape(b, shape, dtype, backend)
    small = b.normal((1, 64, 2, 64), BFLOAT16)
    b.host("attention", partial(attention, small, small, small))


def _shape(b: Bench, shape: tuple[int, ...], dtype: np.dtype, backend: str) -> None:
    batch, length, heads, depth = shape
    q, k, v, dout = (b.normal(shape, dtype) for _ in range(4))
    flops, roof = 2 * batch * heads * length * length * depth, dtype.name
    name = f"attention {backend} {'x'.join(map(str, shape))}"
    call = partial(attention, q, k, v, backend=backend)
    out, saved = call()
    b.row(f"{name} forward", call, flops=flops, roof=roof, peer=partial(_forward, b, q, k, v))
    backward = partial(attention_vjp, dout, q, k, v, out, saved)
    b.row(f"{name} backward", backward, flops=2.5 * flops, roof=roof, peer=partial(_backward, b, q, k, v, dout))
    drops = partial(call, dropout=0.1, key=1, step=b.word(0, INT64))
    b.row(f"{name} dropout forward", drops, flops=flops, roof=roof)


def _heads(b: Bench, *arrays: Any) -> list[Any]:
    """Torch's view [B, H, L, D]."""
    return [b.tensor(x).transpose(1, 2) for x in arrays]


def _forward(b: Bench, q: Any, k: Any, v: Any, torch: Any) -> Any:
    return partial(torch.nn.functional.scaled_dot_product_attention, *_heads(b, q, k, v), is_causal=True)


def _backward(b: Bench, q: Any, k: Any, v: Any, dout: Any, torch: Any) -> Any:
    inputs = [x.requires_grad_() for x in _heads(b, q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
    (gradient,) = _heads(b, dout)
    return partial(torch.autograd.grad, out, inputs, gradient, retain_graph=True)


if __name__ == "__main__":
    main(bench)
