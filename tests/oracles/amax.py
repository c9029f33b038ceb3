"""The exact amax: a maximum over Python floats."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from nvfp.dtypes.codec import round_to_odd32


def amax(x: npt.ArrayLike, *, finite: bool = False, out: npt.ArrayLike | None = None) -> np.ndarray:
    """The word that `kernels.amax.amax` must give; ``out`` is the old word (a NaN in it is replaced)."""
    magnitudes = [abs(v) for v in round_to_odd32(x).ravel().tolist()]
    kept = [m for m in magnitudes if not math.isnan(m) and not (finite and math.isinf(m))]
    old = [] if out is None else np.asarray(out, np.float32).reshape(-1).tolist()
    return np.asarray(max([*kept, *(m for m in old if not math.isnan(m))], default=0.0), np.float32)
