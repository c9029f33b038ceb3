"""Time a TransformerLayer, forward and backward, under every recipe: GPU, wall, captured; and its peak memory.

"In a row": ten steps between two CUDA events, median of five, so that the host may run ahead, as in training. "Wall":
host time of a step over 30 in a row, waited for at the end, median of five; "captured" the same of an `nf.cuda_graph`.
Parameters, input and incoming gradient are bfloat16, attention is causal, nothing is dropped, gradients are cleared.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from _harness import Bench, main
from _recorded import Recorded
from _row import Limit, Row
from _timing import Call, Timing, forget_scratch, time_in_a_row
from bench_linear import RECIPES

import nvfp as nf
from nvfp.arrays.array import wrap

ORDER = ("bf16", "delayed", "current", "block", "mxfp8", "nvfp4")


@dataclass(frozen=True)
class Size:
    """One layer, and what is known of it on an H200, in ms and GiB; rows in `ORDER`, TE's without its last two.

    Attributes:
        hidden: E; the MLP has 4 E.
        heads: H.
        length: L of a sequence.
        batch: B.
        floor: what the roofs allow.
        te: TransformerEngine 2.20.2, ten steps in a row (hidden 768: wall of its eager layer).
        graphed: its wall as a captured graph.
        targets: of the steps in a row, or None.
        walls: targets of eager and captured wall, or None.
        peak: TE's peak memory.
    """

    hidden: int
    heads: int
    length: int
    batch: int
    floor: tuple[float, ...] = ()
    te: tuple[float, ...] = ()
    graphed: tuple[float, ...] = ()
    targets: tuple[float, ...] = ()
    walls: tuple[float, float] | None = None
    peak: tuple[float, ...] = ()

    @property
    def flops(self) -> float:
        """Of the products of a step: four GEMMs three times, causal attention once and 2.5 times."""
        tokens = self.batch * self.length
        return 72.0 * tokens * self.hidden**2 + 7.0 * tokens * self.length * self.hidden

    @property
    def name(self) -> str:
        """Sizes in words."""
        return f"{self.hidden}, {self.heads} heads, {self.batch} x {self.length}"


SIZES = (
    Size(4096, 32, 2048, 4, (13.818, 8.303, 8.682, 10.029), (17.784, 11.465, 12.353, 14.052), (),
         (15.8, 10.0, 10.6, 11.8, 17.5, 18.5), None, (1.97, 2.35, 2.73, 2.61)),
    Size(2048, 16, 2048, 4, (3.737, 2.469, 2.635, 2.900), (5.247, 5.162, 5.918, 4.997), (5.133, 3.806, 4.108, 4.512),
         (4.5, 3.2, 3.4, 3.7, 5.2, 5.6), None, (0.90, 0.97, 1.22, 1.10)),
    Size(768, 12, 1024, 8, (0.570, 0.443, 0.500, 0.504), (4.525, 5.430, 5.126, 4.770), (1.145, 1.390, 1.224, 1.351),
         (), (1.6, 0.85), (0.37, 0.33, 0.51, 0.46)),
    Size(768, 12, 128, 2, (0.015, 0.018, 0.023, 0.020), (4.512, 4.963, 5.073, 5.586), (1.150, 1.339, 1.339, 1.351),
         (), (1.4, 0.25), (0.12, 0.08, 0.08, 0.08)),
)  # fmt: skip
SMALL = (Size(64, 4, 32, 2),)


def bench(b: Bench) -> None:
    for size in b.size(SIZES, SIZES, SMALL, SMALL):
        for name in ORDER:
            _layer(b, size, name)
            b.release()


def _layer(b: Bench, size: Size, name: str) -> None:
    recipe, e = RECIPES[name](), size.hidden
    options: dict[str, Any] = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "dtype": nf.bfloat16}
    layer = nf.nn.TransformerLayer(e, 4 * e, size.heads, device=b.device, rng=nf.random.default_rng(0), **options)
    shape = (size.batch, size.length, e)
    x, dy = wrap(b.normal(shape)), wrap(b.normal(shape))

    def step(x: nf.Array) -> nf.Array:
        x.requires_grad = True
        for variable in (x, *layer.parameters().values()):
            variable.grad = None
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            y: nf.Array = layer(x)
        y.backward(dy)
        return y

    def eager() -> None:
        step(x)

    at, h200 = ORDER.index(name), b.cuda and "H200" in b.device.name
    row = f"TransformerLayer {name} ({size.name})"
    roof = b.roofs.get("float8 fast" if name in ("delayed", "current", "block") else "bfloat16") if b.cuda else None

    def add(row: str, t: Timing, te: tuple[float, ...], target: tuple[float, ...]) -> None:
        limits = tuple(Limit(f"speed at the target of {ms} ms", ms / 1e3 / t.median, 1.0) for ms in target if h200)
        known = Recorded("TE 2.20.2", te[0] / 1e3) if te and h200 else None
        b._add(Row(row, t.median, t.low, t.high, 0, size.flops, roof, recorded=known, limits=limits))

    if b.cuda:
        t = time_in_a_row(eager, steps=10, groups=3 if b.quick else 5)
        add(f"{row}, in a row", t, size.te[at : at + 1] if size.targets else (), size.targets[at : at + 1])
        if h200 and at < len(size.floor):
            print(f"    floor {size.floor[at]:.3f} ms, x {t.median * 1e3 / size.floor[at]:.2f}", flush=True)
        if size.targets:  # TE's default: attention's backward adds in any order
            layer.self_attention.core_attention.deterministic = False
            t = time_in_a_row(eager, steps=10, groups=3 if b.quick else 5)
            add(f"{row}, any order, in a row", t, size.te[at : at + 1], size.targets[at : at + 1])
            layer.self_attention.core_attention.deterministic = True
        forget_scratch()
        with nf.inspect.peak_memory(b.device) as peak:
            eager()
        known = f", TE {size.peak[at]} GiB" if h200 and at < len(size.peak) else ""
        print(f"    peak memory {peak.bytes / 2**30:.3f} GiB{known}", flush=True)
    walls = (size.walls[:1], size.walls[1:]) if size.walls else ((), ())
    add(f"{row}, wall", _wall(b, eager), () if size.targets else size.te[at : at + 1], walls[0])
    if b.cuda:
        for variable in (x, *layer.parameters().values()):
            variable.grad = None
        graph = nf.cuda_graph(step)
        t = _wall(b, lambda: graph(x))
        add(f"{row}, captured, wall", t, size.graphed[at : at + 1], walls[1])


def _wall(b: Bench, call: Call) -> Timing:
    """Host time of a step, the GPU's included at the end of a group."""
    steps, groups = (30, 5) if b.cuda else (3, 3)

    def group() -> float:
        b.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            call()
        b.synchronize()
        return (time.perf_counter() - start) / steps

    for _ in range(3):  # compiles, captures
        call()
    found = sorted(group() for _ in range(groups))
    return Timing(found[groups // 2], found[0], found[-1])


if __name__ == "__main__":
    main(bench)
