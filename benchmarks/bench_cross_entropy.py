"""Time `cross_entropy`: the loss reads the logits once, the gradient reads them and writes as much."""

from __future__ import annotations

from functools import partial
from typing import Any

from _harness import Bench, main

from nvfp.kernels.cross_entropy import cross_entropy, cross_entropy_vjp


def bench(b: Bench) -> None:
    tokens, vocabulary = b.size((16384, 50304), (4096, 50304), (512, 50304), (128, 8192))
    logits, targets = b.normal((tokens, vocabulary)), b.integers(vocabulary, (tokens,))
    gradient = b.empty(logits.shape)
    _, lse, weight = cross_entropy(logits, targets)
    one = b.word(1.0)
    name = f"cross_entropy {tokens} x {vocabulary}"
    b.row(
        f"{name} loss", partial(cross_entropy, logits, targets), moved=logits.nbytes,
        peer=lambda torch: partial(torch.nn.functional.cross_entropy, b.tensor(logits), b.tensor(targets)),
    )  # fmt: skip
    backward = partial(cross_entropy_vjp, logits, targets, lse, weight, one, out=gradient)
    b.row(f"{name} gradient", backward, moved=2 * logits.nbytes)

    def both() -> Any:
        _, lse, weight = cross_entropy(logits, targets)
        return cross_entropy_vjp(logits, targets, lse, weight, one, out=gradient)

    b.row(f"{name} both", both, moved=3 * logits.nbytes, peer=partial(_torch, b, logits, targets))
    small, ids = b.normal((16, 64)), b.integers(64, (16,))
    b.host("cross_entropy", partial(cross_entropy, small, ids))


def _torch(b: Bench, logits: Any, targets: Any, torch: Any) -> Any:
    x, ids = b.tensor(logits).requires_grad_(), b.tensor(targets)

    def step() -> None:
        x.grad = None
        torch.nn.functional.cross_entropy(x, ids).backward()

    return step


if __name__ == "__main__":
    main(bench)
