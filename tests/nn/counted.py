"""What a head with its loss and a step with a cache ask of a GPU, counted on one that computes nothing; prints JSON.

For a process of its own: ``python -m tests.nn.counted``.
"""

from __future__ import annotations

import json
from typing import Any

from tests.fake_gpu import MEMORY, fake_gpu

EVENTS = fake_gpu()

import nvfp as nf  # noqa: E402
from nvfp.nn.functional.linear_cross_entropy import linear_cross_entropy  # noqa: E402

TOKENS, WIDTH, CLASSES = 16384, 768, 50304


def head(**options: Any) -> dict[str, Any]:
    """One forward and backward: launches, products, and bytes kept in between and at most."""
    x, w = (nf.empty(shape, dtype=nf.bfloat16, requires_grad=True) for shape in ((TOKENS, WIDTH), (CLASSES, WIDTH)))
    ids = nf.empty((TOKENS,), dtype=nf.int64)
    linear_cross_entropy(x, w, ids, **options).backward()
    x.grad = w.grad = None
    first, start = len(EVENTS), MEMORY.live
    MEMORY.peak = start
    loss = linear_cross_entropy(x, w, ids, **options)
    kept = MEMORY.live - start
    loss.backward()
    work = EVENTS[first:]
    return {
        "kernels": sum(e.kind == "kernel" for e in work), "gemms": sum(e.kind == "gemm" for e in work),
        "others": [e.name for e in work if e.kind not in ("kernel", "gemm")], "flops": sum(e.flops for e in work),
        "kept": kept, "peak": MEMORY.peak - start,
    }  # fmt: skip


def decode(**options: Any) -> dict[str, Any]:
    """One token for each of four sequences through an attention layer: what `pre_step` and the layer launch."""
    layer = nf.nn.MultiheadAttention(512, 8, num_gqa_groups=2, dtype=nf.bfloat16).eval()
    cache = nf.nn.InferenceParams(4, 1024, 2, 64, dtype=nf.bfloat16, **options)
    freqs = nf.nn.RotaryPositionEmbedding(64)(1024)
    cache.pre_step(dict.fromkeys(range(4), 100))
    layer(nf.empty((4, 100, 512), dtype=nf.bfloat16), inference_params=cache, rotary_pos_emb=freqs)
    before = len(EVENTS)
    cache.pre_step(dict.fromkeys(range(4), 1))
    between, token = len(EVENTS), nf.empty((4, 1, 512), dtype=nf.bfloat16)
    layer(token, inference_params=cache, rotary_pos_emb=freqs)
    names = [e.name if e.kind == "kernel" else e.kind for e in EVENTS]
    return {"pre_step": names[before:between], "layer": names[between:]}


def report() -> dict[str, Any]:
    """All counts."""
    heads = {"plain": head(), "small": head(chunk_bytes=1 << 26), "recompute": head(recompute=True)}
    with nf.no_grad():
        return {"head": heads, "decode": decode(), "paged": decode(is_paged=True, page_size=64)}


if __name__ == "__main__":
    print(json.dumps(report()))
