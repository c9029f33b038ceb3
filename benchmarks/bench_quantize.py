"""Time `quantize`: row copies, and row and column copies in one call."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from _formats import lines, rivals
from _harness import FLOAT32, Bench, main

from nvfp.dtypes.formats import fp8_e4m3, fp8_e4m3_b128, mxfp8, nvfp4
from nvfp.kernels._stochastic import Rng
from nvfp.kernels.amax import amax
from nvfp.kernels.hadamard import hadamard
from nvfp.kernels.input_fn import Activated, ActivationGradient, Normalized, apply
from nvfp.kernels.operand import OperandPair
from nvfp.kernels.quantize import quantize


def bench(b: Bench) -> None:
    x = b.normal(b.matrix)
    scale, seen, largest = b.word(100.0), b.word(), amax(x)
    # name, format, how often x must be read, arguments
    cases: tuple[tuple[str, Any, int, dict[str, Any]], ...] = (
        ("fp8 delayed", fp8_e4m3, 1, {"scale": scale, "amax_out": seen}),
        ("fp8 current", fp8_e4m3, 2, {}),
        ("block 1x128", fp8_e4m3_b128, 1, {"scale_layout": "k_major128"}),
        ("block 1x128 plain scales", fp8_e4m3_b128, 1, {}),
        ("block 128x128", fp8_e4m3_b128.replace(block=(128, 128)), 1, {"scale_layout": "k_major128"}),
        ("mxfp8", mxfp8, 1, {}),
        ("mxfp8 tiles128x4", mxfp8, 1, {"scale_layout": "tiles128x4"}),
        ("nvfp4, amax given", nvfp4, 1, {"amax": largest}),
        ("nvfp4", nvfp4, 2, {}),
        ("nvfp4 16x16, amax given", nvfp4.replace(block=(16, 16)), 1, {"amax": largest}),
    )
    for name, fmt, reads, arguments in cases:
        for col in (False, True):
            call = partial(quantize, x, fmt, col=col, **arguments)
            title = f"quantize {name} {'row+col' if col else 'row'}"
            peer = None if col else {"fp8 delayed": _delayed, "fp8 current": _current}.get(name)
            b.row(
                title, call, moved=reads * x.nbytes + _written(call()), known=(title, x.shape),
                peer=None if peer is None else partial(peer, b.tensor, x),
            )  # fmt: skip
    _drawn(b, x, largest)
    _fused(b, x, scale, seen, largest)
    _normed(b, x, scale, seen)
    if not b.cuda:
        _limits(b)
    small = b.normal((128, 128))
    b.host("quantize fp8 delayed row+col", partial(quantize, small, fp8_e4m3, col=True, scale=scale), limit=16)
    block = partial(quantize, small, fp8_e4m3_b128, col=True, scale_layout="k_major128")
    b.host("quantize block 1x128 row+col", block, limit=16)
    b.host("quantize mxfp8 row+col", partial(quantize, small, mxfp8, col=True), limit=16)
    b.host("quantize nvfp4 row+col", partial(quantize, small, nvfp4, col=True, amax=largest), limit=16)
    gelu = partial(quantize, small, fp8_e4m3, col=True, scale=scale, input_fn=Activated("gelu"))
    b.host("quantize fp8 delayed row+col of gelu", gelu, limit=16)


def _drawn(b: Bench, x: Any, largest: Any) -> None:
    """NVFP4 as its recipe has it (column copies are rotated, gradients rounded stochastically); MXFP8 stochastic."""
    turned = b.word(0.0)
    hadamard(x, axis=0, amax_out=turned)
    rng = Rng(key=1, ordinal=0, step=b.xp.zeros((), np.int64))
    random: dict[str, Any] = {"rounding": "stochastic", "rng": rng}
    given: dict[str, Any] = {"amax": (largest, turned)}
    for name, reads, arguments in (
        ("stochastic, amax given", 1, {"amax": largest, **random}),
        ("rotated, amax given", 1, {"rotation": "rht16", **given}),
        ("stochastic, rotated, amax given", 1, {"rotation": "rht16", **given, **random}),
        ("stochastic, rotated", 2, {"rotation": "rht16", **random}),
    ):
        call = partial(quantize, x, nvfp4, col=True, **arguments)
        b.row(f"quantize nvfp4 {name} row+col", call, moved=reads * x.nbytes + _written(call()))
    call = partial(quantize, x, mxfp8, col=True, **random)
    b.row("quantize mxfp8 stochastic row+col", call, moved=x.nbytes + _written(call()))


def _fused(b: Bench, x: Any, scale: Any, seen: Any, largest: Any) -> None:
    """Input functions and column sums in the same pass; bytes: what the function reads, and codes and scales."""
    dy, half = b.normal(b.matrix), b.normal((b.matrix[0], b.matrix[1] // 2))
    ways: tuple[tuple[str, Any, dict[str, Any]], ...] = (
        ("fp8 delayed", fp8_e4m3, {"scale": scale, "amax_out": seen}),
        ("mxfp8", mxfp8, {}),
        ("nvfp4, amax given", nvfp4, {"amax": largest}),
    )
    functions: tuple[tuple[str, Any, Any, int, dict[str, Any]], ...] = (
        ("gelu", x, Activated("gelu"), x.nbytes, {}),
        ("swiglu", x, Activated("swiglu"), x.nbytes, {}),
        ("gelu gradient + bias", dy, ActivationGradient("gelu", x), 2 * x.nbytes, {"bias_grad": True}),
        ("swiglu gradient + bias", half, ActivationGradient("swiglu", x), x.nbytes + half.nbytes, {"bias_grad": True}),
    )
    for name, fmt, arguments in ways:
        for function, source, f, read, sums in functions:
            call = partial(quantize, source, fmt, col=True, input_fn=f, **arguments, **sums)
            title = f"quantize {name} row+col of {function}"
            b.row(title, call, moved=read + _written(call()), known=(title, x.shape))


def _normed(b: Bench, x: Any, scale: Any, seen: Any) -> None:
    """Norms in the same pass, and the two steps that it replaces; bytes: the source once, codes and scales."""
    weight, shift = (b.normal((x.shape[1],)) for _ in range(2))
    for norm in ("rms_norm", "layer_norm"):
        mean = b.empty((x.shape[0],), FLOAT32) if norm == "layer_norm" else None
        bias = None if mean is None else shift
        f = Normalized(norm, weight, bias, mean=mean, rstd=b.empty((x.shape[0],), FLOAT32))  # type: ignore[arg-type]
        for name, fmt, arguments in (
            ("fp8 delayed", fp8_e4m3, {"scale": scale, "amax_out": seen}),
            ("mxfp8", mxfp8, {}),
        ):
            given: dict[str, Any] = {"col": True, **arguments}
            fused = partial(quantize, x, fmt, input_fn=f, **given)
            title, moved = f"quantize {name} row+col of {norm}", x.nbytes + _written(fused())
            b.row(title, fused, moved=moved, known=(title, x.shape))
            b.row(f"{norm}, then quantize {name} row+col", partial(_in_two, x, f, fmt, given), moved=moved)


def _in_two(x: Any, f: Normalized, fmt: Any, given: dict[str, Any]) -> OperandPair:
    return quantize(apply(x, f), fmt, **given)


def _limits(b: Bench) -> None:
    """Every block format along one axis, and fp8 by tensor, from float32: at least 1 GB/s of it."""
    x = b.normal(b.matrix, FLOAT32)
    rng = Rng(key=1, ordinal=0, step=np.zeros((), np.int64))
    random: dict[str, Any] = {"rounding": "stochastic", "rng": rng}
    cases: list[tuple[str, Any, dict[str, Any]]] = [("fp8 current", fp8_e4m3, {})]
    cases += [(name, fmt, {}) for name, fmt in lines(x.shape[1]).items()]
    cases += [("nvfp4 stochastic", nvfp4, random), ("mxfp8_e4m3 stochastic", mxfp8, random)]
    for name, fmt, arguments in cases:
        call = partial(quantize, x, fmt, **arguments)
        b.row(
            f"quantize float32 {name}", call, moved=x.nbytes + _written(call()), least=("float32 in", x.nbytes, 1e9),
            rivals=rivals(name, x),
        )  # fmt: skip


def _written(pair: OperandPair) -> int:
    return sum(side.nbytes for side in (pair.row, pair.col) if side is not None)


def _delayed(tensor: Any, x: Any, torch: Any) -> Any:
    """torch, eager: scale and cast, without the amax."""
    t, scale = tensor(x), torch.tensor(100.0, device=tensor(x).device)
    return lambda: (t * scale).to(torch.float8_e4m3fn)


def _current(tensor: Any, x: Any, torch: Any) -> Any:
    """torch, eager: amax, scale, cast."""
    t = tensor(x)
    return lambda: (t * (448.0 / torch.linalg.vector_norm(t, float("inf")))).to(torch.float8_e4m3fn)


if __name__ == "__main__":
    main(bench)
