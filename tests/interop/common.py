"""What the bridges' tests share: recipes, the device under test for torch, and values to compare."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp import recipes

RECIPES = {
    "delayed": recipes.DelayedScaling(amax_history_len=4),
    "newest": recipes.DelayedScaling(amax_history_len=3, amax_compute_algo="most_recent", margin=1),
    "current": recipes.Float8CurrentScaling(),
    "block": recipes.Float8BlockScaling(),
    "mxfp8": recipes.MXFP8BlockScaling(),
    "nvfp4": recipes.NVFP4BlockScaling(),
}
DELAYED, MX, SR = RECIPES["delayed"], RECIPES["mxfp8"], RECIPES["nvfp4"]


def place(torch: Any, device: Any) -> Any:
    """The device under test as torch's."""
    if device.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return torch.device(str(device))


def values(x: Any) -> np.ndarray:
    """A tensor or Array as float64."""
    x = nf.from_dlpack(x.detach()) if not isinstance(x, nf.Array) else x.detach()
    return np.asarray(x.to_device("cpu"), np.float64)


def same(a: Any, b: Any) -> bool:
    """Whether two tensors or Arrays have the same dtype and bits."""
    bits = [values(x) for x in (a, b)]
    kinds = [str(x.dtype).removeprefix("torch.") for x in (a, b)]
    return kinds[0] == kinds[1] and np.array_equal(*bits) and np.array_equal(*(np.signbit(x) for x in bits))
