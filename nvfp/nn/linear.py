"""`Linear`: the layer all recipes are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.random import Generator
from nvfp.dtypes.dense import float32
from nvfp.nn import _te
from nvfp.nn._gemm_site import GemmModule, GemmSite
from nvfp.nn._gradients import gradient_options
from nvfp.nn._init import Init, Normal, count
from nvfp.nn._joined import add_parts, part_sizes


class Linear(GemmModule):
    """``y = x W^T + b``; quantized by the recipe of the `nf.autocast` it is called in.

    Args:
        in_features: K.
        out_features: N.
        bias: add a bias [N], initially zero.
        init_method: ``(shape, rng, dtype, device) -> Array`` for the weight; default normal with
            standard deviation 0.023, as TE.
        fuse_wgrad_accumulation: the GEMM of the weight's gradient adds to ``weight.main_grad``, float32 at a fixed
            address, made at first use (see `nf.Array.main_grad`); ``.grad`` then stays None. A forward pass with
            ``is_first_microbatch=True`` has the next gradient replace what is there.
        delay_wgrad_compute: leave the weight's gradient for ``backward_dw()``; optimizers raise while it waits.
        save_original_input: keep x itself for backward and quantize it again there: less memory where x is kept
            anyway. Not under delayed scaling, whose scale has moved on by then.
        return_bias: leave the bias out of ``y`` and return ``(y, bias)``.
        parameters_split: names of equal parts of N, or name -> rows: the weight is then the parameters
            ``<name>_weight`` (and ``<name>_bias``) one below the other. They lie side by side in memory
            and are one GEMM.
        dtype: of the parameters; float32 unless given. ``params_dtype`` is TE's name for it.
        device: of the parameters; the default device unless given. ``"meta"``: see `Module.reset_parameters`.
        rng: a `nf.random.Generator`; without one fresh entropy.
        name: shown in reports.
        te: TE's other arguments (several devices), at their defaults only.

    Shapes: x [..., K], weight [N, K], bias [N], result [..., N] in the dtype of x.

    Raises:
        DTypeError: outside autocast, x and weight differ in dtype.
        ShapeError: the last length of x is not K.
        ArgumentError: parts that do not add up to N.
        NotBuiltError: another of TE's arguments, by name.

    Numerics: see `nvfp.nn.functional.linear.linear`. Under delayed scaling the module owns float32
        scales and amax histories (`state_dict` keys ``scaling.*``, present once there are some);
        in evaluation mode the scales are used and no amax is recorded.

    Example:
        >>> import nvfp as nf
        >>> layer = nf.nn.Linear(32, 8, device="cpu", rng=nf.random.default_rng(0, device="cpu"))
        >>> with nf.autocast(enabled=True, recipe=nf.recipes.MXFP8BlockScaling()):
        ...     layer(nf.ones((4, 32), device="cpu")).shape
        (4, 8)
        >>> list(nf.nn.Linear(4, 6, bias=False, parameters_split=("key", "value"), device="cpu").parameters())
        ['key_weight', 'value_weight']
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        fuse_wgrad_accumulation: bool = False,
        delay_wgrad_compute: bool = False,
        save_original_input: bool = False,
        init_method: Init | None = None,
        return_bias: bool = False,
        parameters_split: Mapping[str, int] | Sequence[str] | None = None,
        dtype: Any = None,
        params_dtype: Any = None,
        device: Any = None,
        rng: Generator | None = None,
        name: str = "",
        **te: Any,
    ) -> None:
        super().__init__()
        _te.refuse("Linear", te, _te.LINEAR)
        gradients = gradient_options(
            "Linear",
            fuse_wgrad_accumulation=fuse_wgrad_accumulation,
            delay_wgrad_compute=delay_wgrad_compute,
            save_original_input=save_original_input,
        )
        in_features = count("Linear", "in_features", in_features)
        out_features = count("Linear", "out_features", out_features)
        self.in_features, self.out_features, self.name = in_features, out_features, name
        self.return_bias = return_bias
        self._weight, self._bias = add_parts(
            self,
            part_sizes("Linear", parameters_split, out_features),
            in_features,
            init_method or Normal(0.023),
            bias=bias,
            dtype=_te.parameter_dtype("Linear", dtype, params_dtype) or float32,
            device=device,
            rng=rng,
        )
        self._joins = (self._weight, self._bias)
        self._site = GemmSite(rng=rng, **gradients)
        self._sites = (self._site,)

    def forward(
        self, x: Array, is_first_microbatch: bool | None = None, fp8_output: bool = False, fp8_grad: bool = False
    ) -> Any:
        """Return ``x W^T + b``, or ``(x W^T, b)`` with ``return_bias``.

        Args:
            x: [..., K].
            is_first_microbatch: True quantizes the weight and keeps it for later calls; False uses
                the kept one as long as the weight has not changed since; None keeps nothing.
            fp8_output: return a `QuantizedArray` in the recipe's format for inputs, which the next quantized layer
                uses as it is. Recipes with one scale per tensor only.
            fp8_grad: likewise for the gradient of ``x``, which must come from a quantized layer.

        Raises:
            ArgumentError: a recipe that cannot do what is asked for.
        """
        bias = self._bias(self, shown=self.return_bias)
        inner = None if self.return_bias else bias
        y = self._site(
            x,
            self._weight(self),
            inner,
            training=self.training,
            first=is_first_microbatch,
            parts=self._weight.parts(self),
            fp8_output=fp8_output,
            fp8_grad=fp8_grad,
        )
        return (y, bias) if self.return_bias else y

    def extra_repr(self) -> str:
        """Sizes."""
        bias = any(name in self._parameters for name in self._bias.names)
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}"
