"""The normalization in front of a layer's first GEMM: parameters ``layer_norm_weight`` and ``layer_norm_bias``."""

from __future__ import annotations

from typing import Any

from nvfp.arrays.array import Array
from nvfp.kernels._norm import check_eps
from nvfp.nn import _te
from nvfp.nn._gemm_site import GemmModule
from nvfp.nn._init import Constant
from nvfp.nn._initial import Initial
from nvfp.nn.functional.layer_norm import layer_norm
from nvfp.nn.functional.rms_norm import rms_norm

NORMALIZATIONS = ("LayerNorm", "RMSNorm")


class NormedModule(GemmModule):
    """Base of the layers that normalize their input first."""

    def _add_norm(
        self, features: int, *, normalization: str, eps: float, zero_centered_gamma: bool, dtype: Any, device: Any
    ) -> None:
        """Give the module its norm; gamma starts at 1 (0 if it counts from 1), beta at 0."""
        layer = type(self).__name__
        self.normalization = _te.one_of(layer, "normalization", normalization, NORMALIZATIONS)
        self.eps, self.zero_centered_gamma = check_eps(layer, eps), bool(zero_centered_gamma)
        gamma = Constant(0.0 if zero_centered_gamma else 1.0)
        self.add_initial("layer_norm_weight", Initial((features,), dtype, gamma), device)
        if normalization == "LayerNorm":
            self.add_initial("layer_norm_bias", Initial((features,), dtype, Constant(0.0)), device)
        else:
            self.layer_norm_bias = None

    def _norm(self, x: Array, *, shown: bool) -> Array:
        """The normalized input; unless it is shown, the GEMM behind may compute it as it quantizes."""
        options: dict[str, Any] = {
            "eps": self.eps, "zero_centered_gamma": self.zero_centered_gamma, "defer": not shown,
        }  # fmt: skip
        if self.normalization == "RMSNorm":
            return rms_norm(x, self.layer_norm_weight, **options)
        return layer_norm(x, self.layer_norm_weight, self.layer_norm_bias, **options)
