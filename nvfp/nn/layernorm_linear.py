"""`LayerNormLinear`: a normalization and a Linear behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.random import Generator
from nvfp.dtypes.dense import float32
from nvfp.nn import _te
from nvfp.nn._gemm_site import GemmSite
from nvfp.nn._gradients import gradient_options
from nvfp.nn._init import Init, Normal, count
from nvfp.nn._joined import add_parts, part_sizes
from nvfp.nn._normed import NormedModule

_UNBUILT = {**_te.LINEAR, "return_layernorm_output_gathered": False}


class LayerNormLinear(NormedModule):
    """``y = norm(x) W^T + b``; the GEMM is quantized by the recipe of the `nf.autocast` it is called in.

    Args:
        in_features: K.
        out_features: N.
        eps: added to the variance (LayerNorm) or the mean square (RMSNorm).
        bias: add a bias [N], initially zero.
        init_method: ``(shape, rng, dtype, device) -> Array`` for the weight; default normal with
            standard deviation 0.023, as TE.
        normalization: ``"LayerNorm"`` or ``"RMSNorm"``.
        zero_centered_gamma: multiply by ``1 + layer_norm_weight``, which then starts at 0.
        fuse_wgrad_accumulation: the GEMM of the weight's gradient adds to ``weight.main_grad``, float32 at a fixed
            address, made at first use (see `nf.Array.main_grad`); ``.grad`` then stays None. A forward pass with
            ``is_first_microbatch=True`` has the next gradient replace what is there.
        delay_wgrad_compute: leave the weight's gradient for ``backward_dw()``; optimizers raise while it waits.
        return_bias: leave the bias out of ``y`` and return it behind ``y``.
        return_layernorm_output: return ``norm(x)`` too, as the last value.
        parameters_split: as in `nf.nn.Linear`.
        dtype: of the parameters; float32 unless given. ``params_dtype`` is TE's name for it.
        device: of the parameters; the default device unless given. ``"meta"``: see `Module.reset_parameters`.
        rng: a `nf.random.Generator`; without one fresh entropy.
        name: shown in reports.
        te: TE's other arguments (several devices), at their defaults only.

    Shapes: x [..., K], layer_norm_weight [K], layer_norm_bias [K] (LayerNorm), weight [N, K], bias [N],
        result [..., N] in the dtype of x.

    Raises:
        DTypeError: outside autocast, x and weight differ in dtype.
        ShapeError: the last length of x is not K.
        ArgumentError: an unknown normalization, a negative eps, or parts that do not add up to N.
        NotBuiltError: another of TE's arguments, by name.

    Numerics: statistics in float32; the normalized value is rounded to the dtype of x, then quantized as
        `nf.nn.Linear` does. Scaling state as there.

    Example:
        >>> import nvfp as nf
        >>> layer = nf.nn.LayerNormLinear(16, 8, normalization="RMSNorm", device="cpu")
        >>> layer(nf.ones((2, 3, 16), device="cpu")).shape, list(layer.parameters())
        ((2, 3, 8), ['layer_norm_weight', 'weight', 'bias'])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        *,
        bias: bool = True,
        fuse_wgrad_accumulation: bool = False,
        delay_wgrad_compute: bool = False,
        init_method: Init | None = None,
        normalization: str = "LayerNorm",
        zero_centered_gamma: bool = False,
        return_bias: bool = False,
        return_layernorm_output: bool = False,
        parameters_split: Mapping[str, int] | Sequence[str] | None = None,
        dtype: Any = None,
        params_dtype: Any = None,
        device: Any = None,
        rng: Generator | None = None,
        name: str = "",
        **te: Any,
    ) -> None:
        super().__init__()
        _te.refuse("LayerNormLinear", te, _UNBUILT)
        gradients = gradient_options(
            "LayerNormLinear",
            fuse_wgrad_accumulation=fuse_wgrad_accumulation,
            delay_wgrad_compute=delay_wgrad_compute,
        )
        in_features = count("LayerNormLinear", "in_features", in_features)
        out_features = count("LayerNormLinear", "out_features", out_features)
        self.in_features, self.out_features, self.name = in_features, out_features, name
        self.return_bias, self.return_layernorm_output = return_bias, return_layernorm_output
        dtype = _te.parameter_dtype("LayerNormLinear", dtype, params_dtype) or float32
        self._add_norm(
            in_features,
            normalization=normalization,
            eps=eps,
            zero_centered_gamma=zero_centered_gamma,
            dtype=dtype,
            device=device,
        )
        self._weight, self._bias = add_parts(
            self,
            part_sizes("LayerNormLinear", parameters_split, out_features),
            in_features,
            init_method or Normal(0.023),
            bias=bias,
            dtype=dtype,
            device=device,
            rng=rng,
        )
        self._joins = (self._weight, self._bias)
        self._site = GemmSite(rng=rng, **gradients)
        self._sites = (self._site,)

    def forward(self, x: Array, is_first_microbatch: bool | None = None, fp8_output: bool = False) -> Any:
        """Return ``norm(x) W^T + b``, and behind it what ``return_bias`` and ``return_layernorm_output`` ask for.

        Args:
            x: [..., K].
            is_first_microbatch: as in `nf.nn.Linear`.
            fp8_output: likewise.
        """
        normed = self._norm(x, shown=self.return_layernorm_output)
        bias = self._bias(self, shown=self.return_bias)
        inner = None if self.return_bias else bias
        y = self._site(
            normed,
            self._weight(self),
            inner,
            training=self.training,
            first=is_first_microbatch,
            parts=self._weight.parts(self),
            fp8_output=fp8_output,
        )
        extras = ((bias,) if self.return_bias else ()) + ((normed,) if self.return_layernorm_output else ())
        return (y, *extras) if extras else y

    def extra_repr(self) -> str:
        """Sizes and normalization."""
        bias = any(name in self._parameters for name in self._bias.names)
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}, "
            f"normalization={self.normalization}, eps={self.eps:g}"
        )
