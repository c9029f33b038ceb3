"""`LayerNorm`, `RMSNorm` and `L2Normalization`: the normalisations as layers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.creation import full
from nvfp.arrays.functions._common import array, integers
from nvfp.arrays.random import Generator
from nvfp.dtypes.dense import float32
from nvfp.errors import DTypeError, ShapeError, message
from nvfp.kernels._norm import check_eps
from nvfp.nn import _te
from nvfp.nn._init import Constant, count
from nvfp.nn._initial import Initial
from nvfp.nn.functional.layer_norm import layer_norm
from nvfp.nn.functional.rms_norm import rms_norm
from nvfp.nn.module import Module
from nvfp.recipes.context import current_recipe


class _Norm(Module):
    """What both share: the parameters, and the input seen as rows."""

    _biased = False

    def __init__(
        self,
        normalized_shape: int | Iterable[int],
        eps: float = 1e-5,
        zero_centered_gamma: bool = False,
        *,
        params_dtype: Any = None,
        dtype: Any = None,
        device: Any = None,
        rng: Generator | None = None,
        **te: Any,
    ) -> None:
        super().__init__()
        layer = type(self).__name__
        if te.get("sequence_parallel", False) is None:  # TE's default for norms alone
            te = {**te, "sequence_parallel": False}
        _te.refuse(layer, te, {"sequence_parallel": False, "sm_margin": 0})
        if not isinstance(rng, Generator | None):
            raise DTypeError(message(layer, "rng=a Generator", repr(rng), "pass nf.random.default_rng(seed)"))
        shape = integers(layer, "normalized_shape", normalized_shape)
        if not shape:
            raise ShapeError(message(layer, "normalized_shape with an axis", shape, "pass the number of features"))
        self.normalized_shape = tuple(count(layer, "normalized_shape", length) for length in shape)
        self.eps, self.zero_centered_gamma = check_eps(layer, eps), bool(zero_centered_gamma)
        dtype = _te.parameter_dtype(layer, dtype, params_dtype)
        dtype = float32 if dtype is None else dtype
        gamma = Constant(0.0 if self.zero_centered_gamma else 1.0)
        self.add_initial("weight", Initial(self.normalized_shape, dtype, gamma), device)
        if self._biased:
            self.add_initial("bias", Initial(self.normalized_shape, dtype, Constant(0.0)), device)

    def _rows(self, x: Array) -> tuple[Array, tuple[int, ...]]:
        """Return ``x`` with the normalised axes made one, and its shape before."""
        layer, shape = type(self).__name__, self.normalized_shape
        x, weight = array(layer, x), self.weight
        if x.shape[-len(shape) :] != shape:
            expected = f"x [..., {', '.join(map(str, shape))}]"
            raise ShapeError(message(layer, expected, x.shape, "match normalized_shape"))
        if x.dtype != weight.dtype and current_recipe() is None:
            expected, got = "x and weight of one dtype outside autocast", f"{x.dtype} and {weight.dtype}"
            do = f"cast with x.astype(nf.{weight.dtype}), or make the module with dtype=nf.{x.dtype}"
            raise DTypeError(message(layer, expected, got, do))
        return (x if len(shape) == 1 else x.reshape((*x.shape[: -len(shape)], math.prod(shape)))), x.shape

    def _flat(self, p: Array | None) -> Array | None:
        return p if p is None or p.ndim == 1 else p.reshape((p.size,))

    def extra_repr(self) -> str:
        """Shape and options."""
        return f"{self.normalized_shape}, eps={self.eps}, zero_centered_gamma={self.zero_centered_gamma}"


class LayerNorm(_Norm):
    """``(x - mean) / sqrt(var + eps) * gamma + bias`` over the last axes.

    Args:
        normalized_shape: H, or the lengths of the last axes, which are normalised together.
        eps: added to the (biased) variance.
        zero_centered_gamma: gamma is ``1 + weight``, and the weight starts at 0 instead of 1.
        params_dtype: TE's name of ``dtype``.
        dtype: of the parameters; float32 unless given.
        device: of the parameters; the default device unless given. ``"meta"``: see `Module.reset_parameters`.
        rng: taken for likeness with other layers; the initial values are constants.
        te: other arguments of TE at their defaults; another value is refused by name.

    Shapes: x [..., *normalized_shape], weight and bias [*normalized_shape], result as x, in the dtype of x.

    Raises:
        ShapeError: the last axes of x are not ``normalized_shape``.
        DTypeError: outside autocast, x and weight differ in dtype.
        ArgumentError: a negative eps.
        NotBuiltError: a TE argument that is not built.

    Numerics: see `nvfp.kernels.layer_norm.layer_norm`: float32 inside, one rounding.

    Example:
        >>> import nvfp as nf
        >>> layer = nf.nn.LayerNorm(2, eps=0.0, device="cpu")
        >>> layer(nf.asarray([[1.0, 3.0], [4.0, 2.0]], device="cpu")).tolist()
        [[-1.0, 1.0], [1.0, -1.0]]
    """

    _biased = True

    def forward(self, x: Array) -> Array:
        """Return the normalised ``x``."""
        rows, shape = self._rows(x)
        options: dict[str, Any] = {"eps": self.eps, "zero_centered_gamma": self.zero_centered_gamma}
        y = layer_norm(rows, self._flat(self.weight), self._flat(self.bias), **options)  # type: ignore[arg-type]
        return y if y.shape == shape else y.reshape(shape)


class RMSNorm(_Norm):
    """``x / sqrt(mean(x^2) + eps) * gamma`` over the last axes.

    Args:
        normalized_shape: H, or the lengths of the last axes, which are normalised together.
        eps: added to the mean square.
        zero_centered_gamma: gamma is ``1 + weight``, and the weight starts at 0 instead of 1.
        params_dtype: TE's name of ``dtype``.
        dtype: of the weight; float32 unless given.
        device: of the weight; the default device unless given.
        rng: taken for likeness with other layers; the initial values are constants.
        te: other arguments of TE at their defaults; another value is refused by name.

    Shapes: x [..., *normalized_shape], weight [*normalized_shape], result as x, in the dtype of x.

    Raises:
        ShapeError: the last axes of x are not ``normalized_shape``.
        DTypeError: outside autocast, x and weight differ in dtype.
        ArgumentError: a negative eps.
        NotBuiltError: a TE argument that is not built.

    Numerics: see `nvfp.kernels.rms_norm.rms_norm`: float32 inside, one rounding.

    Example:
        >>> import nvfp as nf
        >>> layer = nf.nn.RMSNorm(2, eps=0.0, device="cpu")
        >>> layer(nf.asarray([[2.0, -2.0]], device="cpu")).tolist()
        [[1.0, -1.0]]
    """

    def forward(self, x: Array) -> Array:
        """Return the normalised ``x``."""
        rows, shape = self._rows(x)
        options: dict[str, Any] = {"eps": self.eps, "zero_centered_gamma": self.zero_centered_gamma}
        y = rms_norm(rows, self._flat(self.weight), **options)  # type: ignore[arg-type]
        return y if y.shape == shape else y.reshape(shape)


class L2Normalization(Module):
    """``x / sqrt(sum(x^2) + eps)`` over the last axis; no parameters.

    Args:
        features: H.
        eps: added to the sum of squares.
        options: what norms with parameters take (``dtype``, ``device``); without effect here.

    Shapes: x [..., H], result as x, in the dtype of x.

    Raises:
        ShapeError: the last axis of x is not H.
        ArgumentError: a negative eps.

    Numerics: the kernel of `RMSNorm` with the factor ``1 / sqrt(H)`` and ``eps / H``: float32 inside, one rounding.

    Source: Transformer Engine's ``qk_norm_type="L2Normalization"``.

    Example:
        >>> import nvfp as nf
        >>> nf.nn.L2Normalization(2, eps=0.0)(nf.asarray([[3.0, 4.0]], device="cpu")).tolist()
        [[0.6000000238418579, 0.800000011920929]]
    """

    def __init__(self, features: int, eps: float = 1e-6, **options: Any) -> None:
        super().__init__()
        self.features, self.eps = count("L2Normalization", "features", features), check_eps("L2Normalization", eps)
        self._factors: dict[Any, Array] = {}  # by device

    def forward(self, x: Array) -> Array:
        """Return the normalised ``x``."""
        x = array("L2Normalization", x)
        if x.shape[-1:] != (self.features,):
            expected = f"x [..., {self.features}]"
            raise ShapeError(message("L2Normalization", expected, x.shape, "match the number of features"))
        factor = self._factors.get(x.device)
        if factor is None:
            factor = self._factors[x.device] = full((self.features,), self.features**-0.5, device=x.device)
        return rms_norm(x, factor, eps=self.eps / self.features)

    def extra_repr(self) -> str:
        """Size and eps."""
        return f"{self.features}, eps={self.eps}"
