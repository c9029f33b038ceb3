"""Time `hadamard` along the rows and along the columns of a matrix."""

from __future__ import annotations

from functools import partial

from _harness import Bench, main

from nvfp.kernels.hadamard import hadamard


def bench(b: Bench) -> None:
    x, word = b.normal(b.matrix), b.word(0.0)
    moved = 2 * x.nbytes
    b.row("hadamard along M", partial(hadamard, x, axis=0), moved=moved)
    b.row("hadamard along M, with amax", partial(hadamard, x, axis=0, amax_out=word), moved=moved)
    b.row("hadamard along K", partial(hadamard, x, axis=1), moved=moved)
    small, out = b.normal((64, 64)), b.empty((64, 64))
    b.host("hadamard into out", partial(hadamard, small, axis=0, out=out))


if __name__ == "__main__":
    main(bench)
