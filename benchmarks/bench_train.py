"""Time a whole training step: embedding, layers, head, loss, AdamW; launched by the host and captured in a CUDA graph.

Token and position embedding, L TransformerLayers (causal, no dropout), LayerNorm, an untied head of 50,304 words, all
in bfloat16, the loss of every token, AdamW with float32 master weights. Wall time over steps in a row; the loss is not
read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from _harness import Bench, main
from _recorded import RECORDED
from _row import Limit, Row

import nvfp as nf

RECIPES: dict[str, Callable[[], Any]] = {
    "bf16": lambda: None,
    "delayed": nf.recipes.DelayedScaling,
    "current": nf.recipes.Float8CurrentScaling,
    "block": nf.recipes.Float8BlockScaling,
}


@dataclass(frozen=True)
class Size:
    """A model and its batch, with what an H200 should need, in ms: at the roofs, and what is aimed at."""

    layers: int
    hidden: int
    heads: int
    length: int
    batch: int
    vocabulary: int = 50304
    floors: tuple[float, ...] = ()
    targets: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[int, ...]:
        """What names it."""
        return self.layers, self.hidden, self.heads, self.length, self.batch

    def flops(self) -> float:
        """Of the matrix products of a step, attention's (causal) included."""
        tokens, layer = self.batch * self.length, 12 * self.hidden**2
        products = 6 * tokens * (self.layers * layer + self.hidden * self.vocabulary)
        return products + self.layers * 3 * 2 * tokens * self.length * self.hidden


SMALL = Size(12, 768, 12, 1024, 16, floors=(20.3, 17.2, 18.5, 18.7), targets=(29, 25, 26))
LARGE = Size(24, 2048, 16, 2048, 4, floors=(101.6, 71.1, 75.1, 81.5), targets=(125, 98, 104))


class Model(nf.nn.Module):
    """A decoder with learned positions; ids [B, L] -> loss of the next id."""

    def __init__(self, size: Size, device: Any) -> None:
        super().__init__()
        place: dict[str, Any] = {"dtype": nf.bfloat16, "device": device}
        options = {**place, "rng": nf.random.default_rng(0, device=device)}
        self.words = nf.nn.Embedding(size.vocabulary, size.hidden, **options)
        self.places = nf.nn.Embedding(size.length, size.hidden, **options)
        layers = (
            nf.nn.TransformerLayer(
                size.hidden, 4 * size.hidden, size.heads, hidden_dropout=0.0, attention_dropout=0.0, **options
            )
            for _ in range(size.layers)
        )
        self.layers = nf.nn.Sequential(*layers)
        self.norm = nf.nn.LayerNorm(size.hidden, **place)
        self.head = nf.nn.Linear(size.hidden, size.vocabulary, bias=False, **options)

    def forward(self, ids: nf.Array, positions: nf.Array, targets: nf.Array) -> nf.Array:
        """Return the mean loss."""
        x = self.norm(self.layers(self.words(ids) + self.places(positions)))
        with nf.autocast(enabled=False):
            return nf.nn.cross_entropy(self.head(x), targets)


def make_step(size: Size, recipe: Any, device: Any) -> Callable[[], nf.Array]:
    """A training step on one batch."""
    model = Model(size, device)
    optimizer = nf.optim.AdamW(model.parameters(), lr=1e-4)
    drawn = np.random.default_rng(0).integers(0, size.vocabulary, (2, size.batch, size.length), np.int32)
    ids, targets = (nf.asarray(part, device=device) for part in drawn)
    positions = nf.asarray(np.arange(size.length, dtype=np.int32)[None], device=device)

    def step() -> nf.Array:
        optimizer.zero_grad()
        with nf.autocast(enabled=recipe is not None, recipe=recipe):
            loss = model(ids, positions, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def bench(b: Bench) -> None:
    tiny, least = Size(2, 128, 2, 64, 4, 512), Size(1, 64, 2, 32, 2, 256)
    for size in b.size([SMALL, LARGE], [SMALL], [tiny], [least]):
        for i, (name, recipe) in enumerate(RECIPES.items()):
            step = make_step(size, recipe(), b.device)
            _row(b, size, i, f"train {name}, eager", step)
            if b.cuda:
                _row(b, size, i, f"train {name}, captured", nf.cuda_graph(step))
            del step
            b.release()


def _row(b: Bench, size: Size, i: int, name: str, step: Callable[[], Any]) -> None:
    for _ in range(3):  # compiles; captures
        step()
    with nf.inspect.peak_memory(b.device) as memory:
        step()
    b.synchronize()
    steps = 5 if b.quick or not b.cuda else 10
    groups = [_wall(b, step, steps) for _ in range(3)]
    known = RECORDED.get((name.partition(",")[0], size.key))
    is_h200 = b.cuda and "H200" in b.device.name
    target = size.targets[i] / 1e3 if is_h200 and i < len(size.targets) else None
    limits = () if target is None else (Limit(f"{target * 1e3:g} ms", target / min(groups), 1.0),)
    median = sorted(groups)[1]
    known = known if is_h200 else None
    text = f"{name} {size.key}"
    b._add(Row(text, median, min(groups), max(groups), 0, size.flops(), None, recorded=known, limits=limits))
    floor = f"; floor {size.floors[i]} ms, x {median * 1e3 / size.floors[i]:.2f}" if is_h200 else ""
    rate = size.batch * size.length / median
    print(f"    {rate:,.0f} tokens/s, peak {memory.bytes / 2**30:.2f} GiB ({memory.source}){floor}", flush=True)


def _wall(b: Bench, step: Callable[[], Any], steps: int) -> float:
    b.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    b.synchronize()
    return (time.perf_counter() - began) / steps


if __name__ == "__main__":
    main(bench)
