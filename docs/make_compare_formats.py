"""Draws docs/compare_formats.png: ``python -m docs.make_compare_formats``.

The tensor stands for activations of a Transformer: normal values whose channels differ in size, a few of them by much.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import nvfp as nf
from nvfp.inspect import FormatComparison

PICTURE = Path(__file__).with_name("compare_formats.png")


def activations(rows: int = 512, channels: int = 1024) -> np.ndarray:
    """Normal numbers; the sizes of channels are log-normal, and one channel in a hundred is 20 times as large."""
    rng = np.random.Generator(np.random.PCG64(0))
    sizes = np.exp(0.6 * rng.standard_normal(channels))
    sizes[rng.random(channels) < 0.01] *= 20
    return (rng.standard_normal((rows, channels)) * sizes).astype(np.float32)


def comparison() -> FormatComparison:
    """Every format of nvfp, on these numbers."""
    return nf.compare_formats(nf.asarray(activations(), device="cpu"))


if __name__ == "__main__":
    found = comparison()
    print(found)
    found.plot(sys.argv[1] if len(sys.argv) > 1 else PICTURE)
