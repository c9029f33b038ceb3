"""Time `amax_history_update`: the scales and histories of all modules of a model at once."""

from __future__ import annotations

from functools import partial

from _harness import FLOAT32, Bench, main

from nvfp.kernels.cast import cast
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.multi_tensor import amax_history_update


def bench(b: Bench) -> None:
    modules, length, tensors = b.size((80, 1024, 3), (80, 1024, 3), (80, 1024, 3), (80, 64, 3))
    histories = elementwise("abs", b.normal((modules, length, tensors), FLOAT32))
    scales = b.normal((modules, tensors), FLOAT32)
    seen = elementwise("abs", b.normal((modules, tensors), FLOAT32))
    top = [(448.0, 448.0, 57344.0)] * modules
    update = partial(amax_history_update, list(histories), list(scales), top)
    b.row(
        f"amax histories {length} x {tensors}, {modules} modules",
        update,
        moved=2 * (histories.nbytes + scales.nbytes),
        setup=partial(cast, seen, FLOAT32, out=histories[:, 0]),  # the update clears row 0: without it, all are skipped
    )
    b.host(f"amax histories, {modules} modules", update)


if __name__ == "__main__":
    main(bench)
