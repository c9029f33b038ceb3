"""Which GEMMs are too small to gain from a recipe: the rule of ``nf.autocast(min_gemm=...)``, as data.

Forward and backward of one ``y = x W^T`` with x [M, K] and W [N, K] quantize x, W and dy, each both ways, and run three
narrow GEMMs in place of three of bfloat16. They gain where

    saved * M N K  >  cost * (M K + N K + M N) + fixed

``saved`` is what the three GEMMs save per multiply-add of one, ``cost`` what quantization takes per element.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nvfp.capability import Compute
from nvfp.errors import ArgumentError, message
from nvfp.recipes.plan import LinearPlan, Scaling

MinGemm = int | Literal["measured"] | None


@dataclass(frozen=True)
class Crossover:
    """One measured row.

    Attributes:
        compute: compute capability it was measured on.
        dtype: quantized dtype of the input.
        scaling: where its scale comes from.
        saved: seconds per multiply-add that the three GEMMs save.
        cost: seconds per element of x, W and dy that quantization takes.
        fixed: seconds per layer that do not depend on its size.
        source: where the figures come from.

    Example:
        >>> row = CROSSOVERS[0]
        >>> row.gains(4096, 4096, 4096), row.gains(256, 256, 256)
        (True, False)
    """

    compute: Compute
    dtype: str
    scaling: Scaling
    saved: float
    cost: float
    fixed: float
    source: str

    def gains(self, m: int, n: int, k: int) -> bool:
        """Whether a layer of this size is faster quantized."""
        return self.saved * m * n * k > self.cost * (m * k + n * k + m * n) + self.fixed

    @property
    def square(self) -> int:
        """The least M = N = K, a multiple of 16, that gains."""
        size = 16
        while not self.gains(size, size, size):
            size += 16
        return size


# Fitted to nf.nn.Linear, forward and backward in bfloat16, 8 layers from 768 x 768 to 8192 x 8192 at 512, 2048 and 8192
# tokens (benchmarks/crossover.py). Launched by the host, `fixed` is far larger (0.26 to 0.52 ms there), so more layers
# lose than these rows say. MXFP8 and NVFP4, expanded to bfloat16 on this chip, gain at no size.
_FIT = "fit to 24 layers captured in a graph, one H200, 2026-12-01"
CROSSOVERS: tuple[Crossover, ...] = (
    Crossover((9, 0), "fp8_e4m3", "delayed", saved=4.28e-15, cost=1.792e-12, fixed=11.7e-6, source=_FIT),
    Crossover((9, 0), "fp8_e4m3", "current", saved=3.987e-15, cost=1.753e-12, fixed=20.32e-6, source=_FIT),
    Crossover((9, 0), "fp8_e4m3_b128", "block", saved=3.448e-15, cost=1.887e-12, fixed=12.25e-6, source=_FIT),
)


def crossover(plan: LinearPlan, compute: Compute | None) -> Crossover | None:
    """Return the measured row of a plan on a chip, or None.

    Args:
        plan: of a linear layer; its input decides.
        compute: compute capability; None is the CPU, which has no row.
    """
    if plan.x.format is None:
        return None
    key = (compute, plan.x.format.name, plan.x.scaling)
    return next((row for row in CROSSOVERS if (row.compute, row.dtype, row.scaling) == key), None)


def check_min_gemm(value: object) -> None:
    """Raise unless ``value`` is what ``autocast(min_gemm=)`` takes."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not (value is None or value == "measured" or whole):
        do = 'pass a number of multiply-adds M*N*K, "measured", or leave it out'
        raise ArgumentError(message("autocast", "min_gemm as an int >= 0, 'measured' or None", repr(value), do))


def too_small(least: MinGemm, plan: LinearPlan, compute: Compute | None, m: int, n: int, k: int, *, half: bool) -> bool:
    """Whether a GEMM is left in high precision.

    Args:
        least: ``min_gemm``: multiply-adds, or ``"measured"``.
        plan: what the recipe wants.
        compute: compute capability of the device; None: the CPU, where ``"measured"`` changes nothing.
        m: tokens.
        n: outputs.
        k: inputs.
        half: whether the input has 16 bits; ``"measured"`` compares with bfloat16 and leaves others alone.

    Raises:
        ArgumentError: ``"measured"`` where nothing was measured.
    """
    if least is None or (least == "measured" and (compute is None or not half or plan.dense)):
        return False
    if least != "measured":
        return m * n * k < least
    row = crossover(plan, compute)
    if row is None:
        got = f"{plan.x.format} with {plan.x.scaling} scales on compute capability {compute[0]}.{compute[1]}"  # type: ignore[index]
        do = "pass min_gemm as a number of multiply-adds, or leave it out"
        raise ArgumentError(message("autocast", "a measured crossover for min_gemm='measured'", got, do))
    return not row.gains(m, n, k)
