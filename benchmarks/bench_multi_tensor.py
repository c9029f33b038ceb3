"""Time `amax_history_update`, `scale_tensors` and `l2_norm` over all tensors of a model at once."""

from __future__ import annotations

from functools import partial

from _harness import BFLOAT16, FLOAT32, Bench, main

from nvfp.kernels.cast import cast
from nvfp.kernels.elementwise import elementwise
from nvfp.kernels.multi_tensor import l2_norm, prepare_amax_history_update, scale_tensors


def bench(b: Bench) -> None:
    modules, length, tensors = b.size((80, 1024, 3), (80, 1024, 3), (80, 1024, 3), (80, 64, 3))
    histories = elementwise("abs", b.normal((modules, length, tensors), FLOAT32))
    scales = b.normal((modules, tensors), FLOAT32)
    seen = elementwise("abs", b.normal((modules, tensors), FLOAT32))
    top = [(448.0, 448.0, 57344.0)] * modules
    update = prepare_amax_history_update(list(histories), list(scales), top)
    b.row(
        f"amax histories {length} x {tensors}, {modules} modules",
        update,
        moved=2 * (histories.nbytes + scales.nbytes),
        setup=partial(cast, seen, FLOAT32, out=histories[:, 0]),  # the update clears row 0: without it, all are skipped
    )
    b.host(f"amax histories, {modules} modules", update)
    layers, hidden = b.size((12, 2048), (12, 2048), (12, 2048), (2, 256))
    shapes = [(3 * hidden, hidden), (hidden, hidden), (4 * hidden, hidden), (hidden, 4 * hidden), *[(hidden,)] * 6]
    grads = [b.normal(shape, BFLOAT16) for shape in shapes * layers]
    factor, found = b.normal((), FLOAT32), b.normal((), FLOAT32)
    nbytes, what = sum(g.nbytes for g in grads), f"{len(grads)} tensors of bfloat16"
    scale = partial(scale_tensors, grads, factor, outs=grads, nonfinite=found)
    b.row(f"scale {what}, in place", scale, moved=2 * nbytes)
    b.row(f"l2 norm of {what}", partial(l2_norm, grads), moved=nbytes)
    b.host(f"scale {what}, in place", scale)
    b.host(f"l2 norm of {what}", partial(l2_norm, grads))


if __name__ == "__main__":
    main(bench)
