"""Matrices on which block quantizers part: heavy tails, subnormals, ties, maxima beside a boundary, NaN and inf."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import nvfp as nf
from nvfp.device import Device
from nvfp.dtypes.block import ExactBlocks, quantize_exact
from nvfp.dtypes.formats import QuantDType
from nvfp.dtypes.packing import unpack
from tests.dtypes.inputs import SIXTEEN_BITS

ROWS, COLUMNS, PART = 24, 96, 32
KINDS = ("normal", "tails", "bf16", "wide", "tiny", "ties", "edges", "nonfinite", "ragged")


def matrix(kind: str, seed: int = 0) -> np.ndarray:
    """A seeded float32 matrix (bfloat16 under "bf16"); magnitudes change from one run of 32 columns to the next."""
    rng = np.random.default_rng([seed, *map(ord, kind)])
    x = rng.standard_normal((ROWS, COLUMNS // PART, PART))
    run = (ROWS, COLUMNS // PART, 1)
    if kind in ("tails", "bf16"):
        x = x * np.exp(2 * rng.standard_normal(x.shape))
        x[rng.random(x.shape) < 0.06] = 0
        x[3, 1], x[4, 0, 3] = 0, -0.0
    elif kind == "wide":
        x = x * np.exp2(rng.uniform(-40, 40, run))
    elif kind == "tiny":  # float32 subnormals, scales at the lower end of E8M0
        x = x * np.exp2(rng.uniform(-150, -115, run))
    elif kind == "ties":  # half steps of E2M1, every block with the maximum 6 * 2**e
        x = rng.choice([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 0, 0.125, 4.5], x.shape) * rng.choice([-1, 1], x.shape)
        x[..., ::16] = 6
        x = x * np.exp2(rng.integers(-4, 5, run))
    elif kind == "edges":  # maxima at, below and above the significands where scale rules part
        x = rng.uniform(-1, 1, x.shape)
        tops = np.float32([1, 1.25, 1.5, 1.75, 1.875, 1.9375, 1.984375, 1.9921875])
        beside = np.concatenate([np.nextafter(tops, np.float32(s)) for s in (0, 9)])
        x[..., 7] = rng.choice(np.concatenate([tops, beside]).astype(np.float64), run[:2])
        x = x * np.exp2(rng.integers(-6, 7, run))
    with np.errstate(under="ignore"):
        out = x.reshape(ROWS, COLUMNS).astype(np.float32)
    if kind == "nonfinite":
        out[0, 5], out[1, 40], out[2, 3], out[3, 70:72] = np.inf, -np.inf, np.nan, (np.nan, np.inf)
        out[4], out[5], out[6, :32], out[7, 0] = 0, -0.0, np.nan, 3.4e38
    if kind == "ragged":
        out = out[:21, :77]
    return out.astype(SIXTEEN_BITS["bfloat16"]) if kind == "bf16" else out


def blocks_of(x: np.ndarray, length: int) -> npt.NDArray[np.float32]:
    """[rows, blocks, length] of a matrix; a last block that is not full is filled up with zeros."""
    rows, columns = x.shape
    filled = np.zeros((rows, -(-columns // length) * length), np.float32)
    filled[:, :columns] = x.astype(np.float32)
    return filled.reshape(rows, -1, length)


def public_blocks(q: nf.QuantizedArray) -> ExactBlocks:
    """The parts of a quantized array as its attributes give them, codes unpacked."""
    fmt = q.dtype
    codes = nf.asnumpy(q.codes).view(np.uint8)
    scale = nf.asnumpy(q.scale)
    return ExactBlocks(
        unpack(codes, q.shape[q.axis], q.axis) if fmt.element.packed else codes,
        scale if fmt.scale_family == "float32" else scale.view(fmt.scale.storage),
        None if q.tensor_scale is None else nf.asnumpy(q.tensor_scale),
    )


def both_ways(x: np.ndarray, fmt: QuantDType, axis: int, device: Device) -> dict[str, ExactBlocks]:
    """The exact rules, and `nf.quantize` on the device."""
    q = nf.quantize(nf.asarray(x, device=device), fmt, axis=axis)
    return {"exact": quantize_exact(x, fmt, axis=axis), "nf.quantize": public_blocks(q)}


def check_blocks(
    x: np.ndarray,
    fmt: QuantDType,
    device: Device,
    codes: np.ndarray,
    scale: np.ndarray,
    meant: np.ndarray | None = None,
) -> None:
    """Both ways, along either axis, give these ``codes`` and ``scale`` (blocks along the last axis) of a matrix.

    Args:
        x: the matrix.
        fmt: a row with 1-D blocks.
        device: where `nf.quantize` runs.
        codes: codes of an oracle, unpacked.
        scale: its scales.
        meant: blocks that the oracle is meant for; all by default.
    """
    meant = np.ones(scale.shape, bool) if meant is None else meant
    elements = np.repeat(meant, fmt.block_shape[1], axis=1)[:, : x.shape[1]]  # type: ignore[index]
    for axis in (1, 0):
        view = x if axis else x.T
        for name, blocks in both_ways(view, fmt, axis, device).items():
            mine = [part if axis else part.T for part in (blocks.codes, blocks.scale)]
            told = f"{name}, {fmt}, axis {axis}"
            np.testing.assert_array_equal(mine[1][meant], scale[meant], err_msg=f"scales by {told}")
            np.testing.assert_array_equal(mine[0][elements], codes[elements], err_msg=f"codes by {told}")
