"""Time `weight_only_gemm` at decoding shapes: bytes of the weight read, against torch's bfloat16 linear.

The weights are taken in turn from so many copies that none is still in the cache when its turn comes again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from _harness import Bench, main

from nvfp.dtypes.formats import fp8_e4m3, fp8_e4m3_b128, mxfp4, mxfp8, nvfp4
from nvfp.kernels.quantize import quantize
from nvfp.kernels.weight_only_gemm import PackedWeight, prepack, weight_only_gemm

_CACHED = 200e6  # bytes; an H200 has 60 MB of L2


def bench(b: Bench) -> None:
    shapes = ((4096, 4096), (14336, 4096), (4096, 14336), (128256, 4096))
    for n, k in b.size(shapes, shapes[:2], ((4096, 4096),), ((1024, 1024),)):
        w = b.normal((n, k))
        for fmt in (fp8_e4m3, fp8_e4m3_b128, mxfp8, mxfp4, nvfp4):
            packed = _packed(w, fmt)
            turns = _copies(b, packed)
            for m in b.size((1, 4, 8, 16), (1, 8), (1, 8), (1, 8)):
                x, out = b.normal((m, k)), b.empty((m, n))
                call = partial(_turn, itertools.cycle(turns).__next__, x, out)
                wanted = fmt in (fp8_e4m3, nvfp4)
                b.row(
                    f"weight_only_gemm {fmt} {n}x{k}, M = {m}",
                    call,
                    moved=packed.nbytes + x.nbytes + out.nbytes,
                    peer=partial(_torch, b, w, x) if wanted else None,
                )
            del turns
        del w
    small = _packed(b.normal((128, 128)), nvfp4)
    x, out = b.normal((1, 128)), b.empty((1, 128))
    b.host("weight_only_gemm nvfp4 into out", partial(weight_only_gemm, x, small, out=out), limit=13)


def _packed(w: Any, fmt: Any) -> PackedWeight:
    row = quantize(w, fmt).row
    assert row is not None
    return prepack(row)


def _copies(b: Bench, packed: PackedWeight) -> list[PackedWeight]:
    """The weight, and others of its bytes elsewhere."""
    assert packed.codes is not None
    count = max(1, round(_CACHED / packed.nbytes)) if b.cuda else 0
    parts = (packed.scale, packed.factor, packed.tensor_scale, packed.format, packed.shape)
    return [packed, *(PackedWeight(packed.codes.copy(), *parts) for _ in range(count))]


def _turn(following: Callable[[], PackedWeight], x: Any, out: Any) -> Any:
    return weight_only_gemm(x, following(), out=out)


def _torch(b: Bench, w: Any, x: Any, torch: Any) -> Any:
    wide = b.tensor(w)
    count = max(1, round(_CACHED / w.nbytes)) if b.cuda else 0
    following = itertools.cycle([wide, *(wide.clone() for _ in range(count))]).__next__
    inputs = b.tensor(x)
    return lambda: torch.nn.functional.linear(inputs, following())


if __name__ == "__main__":
    main(bench)
