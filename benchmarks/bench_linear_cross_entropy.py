"""Time a head and its loss, forward and backward, with peak memory: in chunks, and as two functions."""

from __future__ import annotations

from functools import partial
from typing import Any

from _harness import BFLOAT16, Bench, main

from nvfp.arrays.array import Array, wrap
from nvfp.inspect import peak_memory
from nvfp.nn.functional.cross_entropy import cross_entropy
from nvfp.nn.functional.linear import linear
from nvfp.nn.functional.linear_cross_entropy import linear_cross_entropy

MIB = 1 << 20


def bench(b: Bench) -> None:
    sizes: list[tuple[int, int, int]] = b.size(
        [(16384, 768, 50304), (16384, 2048, 50304)], [(4096, 768, 50304)], [(512, 256, 8192)], [(128, 64, 1024)]
    )
    for tokens, width, classes in sizes:
        x, w = (_variable(b.normal(shape, BFLOAT16)) for shape in ((tokens, width), (classes, width)))
        ids = wrap(b.integers(classes, (tokens,)))
        ways: dict[str, Any] = {"apart": _pair}
        for size in (64, 128, 256, 512):
            ways[f"chunks of {size} MiB"] = partial(linear_cross_entropy, chunk_bytes=size * MIB)
        ways["chunks, recomputed"] = partial(linear_cross_entropy, recompute=True)
        for name, way in ways.items():
            _row(
                b,
                f"head {tokens} x {width} x {classes} {name}",
                partial(_step, way, x, w, ids),
                tokens * width * classes,
            )


def _variable(raw: Any) -> Array:
    x = wrap(raw)
    x.requires_grad = True
    return x


def _pair(x: Array, w: Array, ids: Array) -> Array:
    return cross_entropy(linear(x, w), ids)


def _step(way: Any, x: Array, w: Array, ids: Array) -> None:
    x.grad = w.grad = None
    way(x, w, ids).backward()


def _row(b: Bench, name: str, step: Any, products: int) -> None:
    step()
    with peak_memory(str(b.device)) as peak:
        step()
    b.row(f"{name} (peak {(peak.bytes - peak.start) / MIB:.0f} MiB)", step, flops=6 * products, roof="bfloat16")


if __name__ == "__main__":
    main(bench)
