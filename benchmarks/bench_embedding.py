"""Time `embedding`: rows of a table by index, and the deterministic gradient of the table."""

from __future__ import annotations

from functools import partial
from typing import Any

from _harness import BFLOAT16, Bench, main

from nvfp.kernels.embedding import embedding, embedding_vjp


def bench(b: Bench) -> None:
    rows, width, tokens = b.size((50304, 4096, 16384), (50304, 1024, 8192), (50304, 256, 8192), (8192, 128, 2048))
    table, ids, dy = b.normal((rows, width)), b.integers(rows, (tokens,)), b.normal((tokens, width))
    b.row(
        f"embedding {tokens} of {rows} x {width}", partial(embedding, table, ids), moved=2 * dy.nbytes + ids.nbytes,
        peer=lambda torch: partial(torch.nn.functional.embedding, b.tensor(ids), b.tensor(table)),
    )  # fmt: skip
    few = b.integers(256, (tokens,))  # bytes as tokens: rows that many ids share
    for name, index in (("gradient", ids), ("gradient, 256 rows named", few)):
        b.row(
            f"embedding {name}", partial(embedding_vjp, dy, index, rows, dtype=BFLOAT16),
            moved=dy.nbytes + table.nbytes + ids.nbytes,
            peer=partial(_gradient, b, dy, index, rows),
        )  # fmt: skip
    small, out = table[:64], b.empty((16, width))
    b.host("embedding into out", partial(embedding, small, b.integers(64, (16,)), out=out), limit=9)


def _gradient(b: Bench, dy: Any, ids: Any, rows: int, torch: Any) -> Any:
    return partial(torch.ops.aten.embedding_dense_backward, b.tensor(dy), b.tensor(ids), rows, -1, False)


if __name__ == "__main__":
    main(bench)
