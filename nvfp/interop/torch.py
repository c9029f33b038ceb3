"""Narrow linear layers for torch models: `Linear`, `convert_model`, `report`. Importing this imports torch.

The GEMMs are nvfp's, under one of its recipes; parameters, gradients and state are torch's. See docs/interop.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from nvfp.errors import DeviceError, DTypeError, GradientError, message
from nvfp.interop._torch_backward import finished, torch_backward
from nvfp.interop._torch_convert import Report as Report, Row as Row, check_used, checked_patterns, matches
from nvfp.interop._torch_memory import current_stream, put_together, take_apart, to_array, to_tensor
from nvfp.interop._torch_site import NAMES, Site, carried_over, fits_history, fresh_buffers
from nvfp.optional import need
from nvfp.recipes.base import Recipe
from nvfp.recipes.context import default_recipe
from nvfp.recipes.plan import LinearPlan
from nvfp.recipes.state import copy_history

torch: Any = need("torch", extra="torch")


class Linear(torch.nn.Linear):  # type: ignore[misc]
    """``y = x W^T + b``, quantized by a recipe: a `torch.nn.Linear` whose three GEMMs are nvfp's.

    Parameters have torch's names and initial values, so state dicts of `torch.nn.Linear` load, and a model's too.

    Args:
        in_features: K.
        out_features: N.
        bias: add a bias [N].
        device: torch's.
        dtype: of the parameters: torch.float32, bfloat16 or float16.
        recipe: a Recipe; by default what `nf.autocast` takes without one on this machine. ``nf.autocast`` has no
            effect on this layer.

    Attributes:
        recipe: may be changed at any time; scaling state is carried over. Under a `nf.recipes.Policy` or `CustomRecipe`
            the layer's name is the one that `convert_model` found, else ``""``.

    Shapes: x [..., K], weight [N, K], result [..., N] in the dtype of x (inside ``torch.autocast``: its dtype; the
        weight is quantized from what it is).

    Raises:
        DTypeError: a recipe that is none, or x of another dtype.
        ShapeError: the last length of x is not K.
        DeviceError: x is neither on the CPU nor on CUDA.
        GradientError: a second derivative is taken.

    State: under delayed scaling the buffers ``scaling_forward_scale``, ``scaling_forward_amax_history`` and the same
        of ``backward``; with stochastic rounding ``scaling_rounding`` (key, step). They stay float32 and int64
        whatever ``.to(dtype)`` says, and a state dict may lack them. A step ends at the end of the backward pass.

    Numerics: bit for bit those of `nf.nn.Linear` under the same recipe.

    Example:
        >>> import torch, nvfp as nf
        >>> layer = nf.interop.torch.Linear(32, 8, recipe=nf.recipes.MXFP8BlockScaling())
        >>> y = layer(torch.ones(4, 32))
        >>> y.sum().backward()
        >>> y.shape, y.dtype, layer.weight.grad.shape
        (torch.Size([4, 8]), torch.float32, torch.Size([8, 32]))
    """

    _gemm_name = ""  # dotted, in the model that was converted

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        recipe: Recipe | None = None,
    ) -> None:
        recipe = checked_recipe("torch.Linear", recipe)
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        self._begin(recipe)

    def _begin(self, recipe: Recipe) -> None:
        """Make a torch.nn.Linear of this class one of ours."""
        self._site = Site()
        self._recipe = recipe
        for name, buffer in fresh_buffers(self._plan, self.weight.device).items():
            self.register_buffer(name, buffer)
        # torch's Transformer layers read weights past forward (their fast path), unless a hook is there.
        self.register_forward_pre_hook(_stay_visible)

    @property
    def recipe(self) -> Recipe:
        """The recipe of this layer."""
        return self._recipe

    @recipe.setter
    def recipe(self, value: Recipe) -> None:
        self._take(checked_recipe("torch.Linear", value), self._plan)

    def _take(self, recipe: Recipe, before: LinearPlan) -> None:
        """Follow another recipe than the one of the plan before."""
        old = self._scaling()
        plan = recipe.linear_plan(self._gemm_name)
        new = carried_over(plan, before, old, fresh_buffers(plan, self.weight.device))
        self._recipe = recipe
        for name in old:
            delattr(self, name)
        for name, buffer in new.items():
            self.register_buffer(name, buffer)
        self._site.drop()

    @property
    def _plan(self) -> LinearPlan:
        return self._recipe.linear_plan(self._gemm_name)

    def _scaling(self) -> dict[str, Any]:
        return {name: self._buffers[name] for name in NAMES if self._buffers.get(name) is not None}

    def forward(self, input: Any) -> Any:
        """Return ``input W^T + b``.

        Args:
            input: [..., K], a torch tensor on the layer's device.
        """
        return _run(self, input)

    def reset_parameters(self) -> None:
        """Draw new initial values, as torch.nn.Linear; scaling state starts anew."""
        super().reset_parameters()
        if "_site" in self.__dict__:
            self._reset_scaling()

    def _reset_scaling(self) -> None:
        for name, buffer in fresh_buffers(self._plan, self.weight.device).items():
            self._buffers[name] = buffer
        self._site = Site()

    def train(self, mode: bool = True) -> Linear:
        """Set training mode; amaxes are recorded in it only."""
        self._site.drop()  # weights that were written past torch's counter meanwhile (w.data.copy_) are read again
        return super().train(mode)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        """Sizes and recipe."""
        return f"{super().extra_repr()}, recipe={self._recipe}"

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        before = self._scaling()
        made = super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers[name]
            if new.dtype != old.dtype:  # .half() and .to(dtype) mean the parameters
                self._buffers[name] = old.to(new.device)
        if any(old.is_meta and not self._buffers[name].is_meta for name, old in before.items()):
            self._reset_scaling()  # to_empty left them without values
        self._site.drop()
        return made

    def _load_from_state_dict(
        self,
        state_dict: Any,
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing: Any,
        unexpected: Any,
        errors: Any,
    ) -> None:
        for name in NAMES:
            saved, own = state_dict.get(prefix + name), self._buffers.get(name)
            if saved is not None and own is None:
                del state_dict[prefix + name]  # of another recipe
            elif saved is not None and name.endswith("history") and fits_history(saved, own):
                state_dict[prefix + name] = torch.zeros_like(own)
                copy_history(saved, state_dict[prefix + name])
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)
        absent = {prefix + name for name in NAMES}
        missing[:] = [key for key in missing if key not in absent]
        self._site.adopt(self)

    def _replicate_for_data_parallel(self) -> Any:
        replica = super()._replicate_for_data_parallel()
        replica._site = Site()
        return replica


def convert_model(module: Any, recipe: Recipe | None = None, keep: Sequence[str] = ()) -> Any:
    """Make the linear layers of a torch model narrow, in place: each `torch.nn.Linear` becomes a `Linear`.

    Parameters, hooks and the modules themselves stay the objects they were, so an optimizer made before still fits.
    Subclasses of torch.nn.Linear are left alone (they may be read past their ``forward``, as the output projection of
    `torch.nn.MultiheadAttention` is); a `Linear` that is there already gets the recipe.

    Args:
        module: a torch.nn.Module.
        recipe: for all of them; None as in `Linear`. Where layers shall differ, a `nf.recipes.Policy` by their dotted
            names in ``module``, or assign ``layer.recipe`` afterwards.
        keep: names that stay in high precision, as `fnmatch` patterns over dotted names: ``"lm_head"``,
            ``"layers.0"`` with all below it, ``"*.out_proj"``.

    Returns:
        The module.

    Raises:
        DTypeError: no module, or no recipe.
        ArgumentError: a pattern that no linear layer matches, or tensors of one layer that no GEMM takes together.

    Example:
        >>> import torch, nvfp as nf
        >>> model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 10))
        >>> model = nf.interop.torch.convert_model(model, nf.recipes.MXFP8BlockScaling(), keep=["2"])
        >>> print(nf.interop.torch.report(model))
        0            64 x 32      MXFP8BlockScaling
        2            10 x 64      torch.nn.Linear
        1 of 2 linear layers, 76.2% of their weights
    """
    recipe, patterns = checked_recipe("convert_model", recipe), checked_patterns(keep)
    found = {name: m for name, m in _modules("convert_model", module) if type(m) in (torch.nn.Linear, Linear)}
    check_used(patterns, list(found))
    chosen = {name: layer for name, layer in found.items() if not matches(name, patterns)}
    for name in chosen:
        recipe.linear_plan(name)  # what is wrong with it is told before anything changes
    for name, layer in chosen.items():
        if type(layer) is Linear:
            before = layer._plan
            layer._gemm_name = name
            layer._take(recipe, before)
        else:
            layer.__class__ = Linear
            layer._gemm_name = name
            layer._begin(recipe)
    for _, encoder in module.named_modules():
        if isinstance(encoder, torch.nn.TransformerEncoder) and any(isinstance(m, Linear) for m in encoder.modules()):
            encoder.use_nested_tensor = False  # its layers would get nested tensors in evaluation
    return module


def report(module: Any) -> Report:
    """Return which linear layers of a torch model are narrow, and why the others are not.

    Args:
        module: a torch.nn.Module.

    Returns:
        A `Report`; print it for a table.

    Raises:
        DTypeError: no module.
    """
    rows = []
    for name, m in _modules("report", module):
        if isinstance(m, torch.nn.Linear):
            shape = (m.out_features, m.in_features)
            narrow = isinstance(m, Linear) and not m._plan.dense
            rows.append(Row(name, shape, str(m.recipe)) if narrow else Row(name, shape, None, _why(m)))
    return Report(tuple(rows))


def _why(module: Any) -> str:
    """Why a linear module computes in high precision."""
    kind = type(module)
    if isinstance(module, Linear):
        return f"in high precision under {module.recipe}"
    return "torch.nn.Linear" if kind is torch.nn.Linear else f"{kind.__name__}, a subclass of torch.nn.Linear"


def _modules(op: str, module: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(module, torch.nn.Module):
        raise DTypeError(message(op, "a torch.nn.Module", type(module).__name__, "pass the model"))
    yield from module.named_modules()


def checked_recipe(op: str, recipe: Any) -> Recipe:
    """Return the recipe to use (the default one for None), or raise DTypeError."""
    found = default_recipe() if recipe is None else recipe
    if not isinstance(found, Recipe):
        raise DTypeError(message(op, "recipe=a Recipe", repr(recipe), "pass e.g. nf.recipes.DelayedScaling()"))
    return found


def _stay_visible(module: Any, args: Any) -> None:
    """Do nothing: that there is a hook is the point."""


def _forward(layer: Linear, x: Any) -> Any:
    if not isinstance(x, torch.Tensor) or x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        got = getattr(x, "dtype", type(x).__name__)
        raise DTypeError(message("torch.Linear", "a float32, bfloat16 or float16 tensor", got, "cast it first"))
    if x.device.type not in ("cpu", "cuda"):
        raise DeviceError(message("torch.Linear", "a tensor on cpu or cuda", x.device, "move it with x.to(...)"))
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    tensors = (x, layer.weight, layer.bias)
    grad_mode = torch.is_grad_enabled()
    needs = tuple(grad_mode and t is not None and t.requires_grad for t in tensors)
    if any(needs):
        return _Quantized.apply(*tensors, layer, needs)
    with current_stream(x.device):
        return to_tensor(layer._site.linear(layer, layer._plan, tensors, needs, grad_mode))


# What torch.compile would trace is no torch code: the graph breaks here.
_run = torch.compiler.disable(_forward)


class _Quantized(torch.autograd.Function):  # type: ignore[misc]
    """The three GEMMs as one operation of torch's graph."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, layer: Linear, needs: tuple[bool, ...]) -> Any:
        """Quantize and multiply; tensors for backward are given to torch, which frees or offloads them."""
        with current_stream(x.device):
            y = layer._site.linear(layer, layer._plan, (x, weight, bias), needs, True)
            node: Any = y._node
            tensors, ctx.template = take_apart(node.saved, (x, weight))
            ctx.save_for_backward(*tensors)
            ctx.rule, ctx.needs, ctx.layer, ctx.weight = node.vjp, needs, layer, weight
            return to_tensor(y)

    @staticmethod
    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        """Dgrad and wgrad as the recipe says, and the bias gradient."""
        site, states = ctx.layer._site, _forward_state(ctx.template)
        with current_stream(dy.device), torch_backward(dy.device):
            end = finished()
            end.drops[id(site)] = site.drop
            if states is not None:
                end.states[id(states)] = states
            saved = put_together(ctx.template, ctx.saved_tensors)
            found = ctx.rule(saved, to_array(dy), ctx.needs)
            gradients = [None if g is None else to_tensor(g) for g in found]
        if torch.is_grad_enabled():  # create_graph=True
            gradients = [None if g is None else _Once.apply(g, dy, ctx.weight, _anchor()) for g in gradients]
        return (*gradients, None, None)


def _forward_state(template: tuple[Any, ...]) -> Any:
    """The forward scaling state to update when this pass ends, or None."""
    states = template[3]
    return states.forward if states is not None and states.recording else None


def _anchor() -> Any:
    return torch.zeros((), requires_grad=True)


class _Once(torch.autograd.Function):  # type: ignore[misc]
    """A gradient that cannot be differentiated again, and says so instead of counting as constant."""

    @staticmethod
    def forward(ctx: Any, gradient: Any, *sources: Any) -> Any:
        """Return the gradient."""
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Raise."""
        do = "take second derivatives with a torch.nn.Linear in its place"
        raise GradientError(message("torch.Linear", "first derivatives", "a derivative of its gradient", do))
