"""`LayerNormMLP`: normalization, Linear, activation, Linear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.random import Generator
from nvfp.autograd import recompute
from nvfp.dtypes.dense import float32
from nvfp.kernels.activation import KINDS
from nvfp.nn import _te
from nvfp.nn._gemm_site import GemmSite
from nvfp.nn._gradients import gradient_options
from nvfp.nn._init import Constant, Init, Normal, count
from nvfp.nn._initial import Initial
from nvfp.nn._normed import NormedModule
from nvfp.nn._quantized_init import weight_maker
from nvfp.nn.functional.activation import activation as act, clamp

_UNBUILT = {
    **_te.GEMM,
    "set_parallel_mode": False,
    "return_layernorm_output_gathered": False,
}


class LayerNormMLP(NormedModule):
    """``y = act(norm(x) W1^T + b1) W2^T + b2``; both GEMMs are quantized by the recipe in force.

    Args:
        hidden_size: H, of x and y.
        ffn_hidden_size: F, between the two GEMMs.
        eps: added to the variance (LayerNorm) or the mean square (RMSNorm).
        bias: add biases, initially zero.
        normalization: ``"LayerNorm"`` or ``"RMSNorm"``.
        activation: a kind of `nvfp.nn.functional.activation.activation`: ``"gelu"``, ``"relu"``, ``"silu"``,
            ``"qgelu"``, ``"srelu"``, and the gated ones ``"glu"``, ``"geglu"``, ``"qgeglu"``, ``"reglu"``,
            ``"sreglu"``, ``"swiglu"``, ``"clamped_swiglu"``, for which the first GEMM gives 2F: act(first half)
            times second half.
        activation_params: ``limit``, ``alpha`` and ``glu_linear_offset`` of ``"clamped_swiglu"``; 7.0, 1.702 and 1.0
            unless given.
        init_method: ``(shape, rng, dtype, device) -> Array`` for ``fc1_weight``; default normal with
            standard deviation 0.023, as TE.
        output_layer_init_method: the same for ``fc2_weight``.
        zero_centered_gamma: multiply by ``1 + layer_norm_weight``, which then starts at 0.
        checkpoint: keep only x, and run norm, first GEMM and activation again in backward (`nf.checkpoint`): the
            same bits with less memory.
        fuse_wgrad_accumulation: the GEMM of a weight's gradient adds to ``main_grad``, float32 at a fixed
            address, made at first use (see `nf.Array.main_grad`); ``.grad`` then stays None. A forward pass with
            ``is_first_microbatch=True`` has the next gradient replace what is there.
        delay_wgrad_compute: leave the weights' gradients for ``backward_dw()``; optimizers raise while they wait.
        return_bias: leave ``fc2_bias`` out of ``y`` and return it behind ``y``.
        return_layernorm_output: return ``norm(x)`` too, as the last value.
        dtype: of the parameters; float32 unless given. ``params_dtype`` is TE's name for it.
        device: of the parameters; the default device unless given. ``"meta"``: see `Module.reset_parameters`.
        rng: a `nf.random.Generator`; without one fresh entropy.
        name: shown in reports.
        te: TE's other arguments (several devices), at their defaults only.

    Shapes: x [..., H], layer_norm_weight [H], layer_norm_bias [H] (LayerNorm), fc1_weight [F, H] or [2F, H],
        fc1_bias, fc2_weight [H, F], fc2_bias [H], result [..., H] in the dtype of x.

    Raises:
        DTypeError: outside autocast, x and the weights differ in dtype.
        ShapeError: the last length of x is not H.
        ArgumentError: an unknown normalization or activation, parameters that it does not have, or a negative eps.
        NotBuiltError: another of TE's arguments, by name.

    Numerics: norm and activation compute in float32 and round to the dtype of x; the GEMMs as in
        `nf.nn.Linear`, each with its own scaling state (``scaling.fc1.*``, ``scaling.fc2.*``).

    Example:
        >>> import nvfp as nf
        >>> layer = nf.nn.LayerNormMLP(16, 24, activation="swiglu", device="cpu")
        >>> layer(nf.ones((2, 3, 16), device="cpu")).shape, layer.fc1_weight.shape
        ((2, 3, 16), (48, 16))
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        *,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        activation_params: Mapping[str, float] | None = None,
        init_method: Init | None = None,
        output_layer_init_method: Init | None = None,
        zero_centered_gamma: bool = False,
        return_bias: bool = False,
        return_layernorm_output: bool = False,
        checkpoint: bool = False,
        fuse_wgrad_accumulation: bool = False,
        delay_wgrad_compute: bool = False,
        dtype: Any = None,
        params_dtype: Any = None,
        device: Any = None,
        rng: Generator | None = None,
        name: str = "",
        **te: Any,
    ) -> None:
        super().__init__()
        _te.refuse("LayerNormMLP", te, _UNBUILT)
        gradients = gradient_options(
            "LayerNormMLP",
            fuse_wgrad_accumulation=fuse_wgrad_accumulation,
            delay_wgrad_compute=delay_wgrad_compute,
        )
        self.checkpoint = bool(checkpoint)
        h = self.hidden_size = count("LayerNormMLP", "hidden_size", hidden_size)
        f = self.ffn_hidden_size = count("LayerNormMLP", "ffn_hidden_size", ffn_hidden_size)
        self.activation = _te.one_of("LayerNormMLP", "activation", activation, tuple(KINDS))
        if activation_params is not None:
            clamp("LayerNormMLP", activation, activation_params)
        self.activation_params = None if activation_params is None else dict(activation_params)
        self.return_bias, self.return_layernorm_output, self.name = return_bias, return_layernorm_output, name
        dtype = _te.parameter_dtype("LayerNormMLP", dtype, params_dtype) or float32
        self._add_norm(
            h,
            normalization=normalization,
            eps=eps,
            zero_centered_gamma=zero_centered_gamma,
            dtype=dtype,
            device=device,
        )
        wide = 2 * f if KINDS[activation].gated else f
        sizes = {"fc1": (wide, h, init_method), "fc2": (h, f, output_layer_init_method)}
        for fc, (n, k, init) in sizes.items():
            make = weight_maker("LayerNormMLP")
            self.add_initial(f"{fc}_weight", Initial((n, k), dtype, init or Normal(0.023), rng, make), device)
            if bias:
                self.add_initial(f"{fc}_bias", Initial((n,), dtype, Constant(0.0)), device)
            else:
                setattr(self, f"{fc}_bias", None)
        self._fc1, self._fc2 = self._sites = (
            GemmSite("fc1", rng, **gradients),
            GemmSite("fc2", rng, **gradients),
        )

    def forward(self, x: Array, is_first_microbatch: bool | None = None) -> Any:
        """Return the layer's output, and behind it what ``return_bias`` and ``return_layernorm_output`` ask for.

        Args:
            x: [..., H].
            is_first_microbatch: as in `nf.nn.Linear`.
        """
        if self.checkpoint:
            return recompute.checkpoint(self._run, x, is_first_microbatch)
        return self._run(x, is_first_microbatch)

    def _run(self, x: Array, is_first_microbatch: bool | None) -> Any:
        options: dict[str, Any] = {"training": self.training, "first": is_first_microbatch}
        # Run again for its gradient, the segment's own result is not read.
        wanted = not (self.checkpoint and recompute.output_unread())
        normed = self._norm(x, shown=self.return_layernorm_output)
        extras = (normed,) if self.return_layernorm_output else ()
        y = self._fc1(normed, self.fc1_weight, self.fc1_bias, **options)
        del normed  # memory: nothing below needs it
        y, bias = act(y, self.activation, params=self.activation_params, defer=True), self.fc2_bias
        y = self._fc2(y, self.fc2_weight, None if self.return_bias else bias, needs_output=wanted, **options)
        extras = (bias, *extras) if self.return_bias else extras
        return (y, *extras) if extras else y

    def extra_repr(self) -> str:
        """Sizes, activation, normalization."""
        return (
            f"hidden_size={self.hidden_size}, ffn_hidden_size={self.ffn_hidden_size}, "
            f"activation={self.activation}, normalization={self.normalization}, eps={self.eps:g}"
        )
