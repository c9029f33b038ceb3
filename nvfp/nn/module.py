"""`Module`: named parameters, submodules and state; nothing hidden, nothing global."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.functions.conversion import astype
from nvfp.arrays.quantized import QuantizedArray
from nvfp.arrays.quantized_parameter import moved as rebind
from nvfp.dtypes.dense import as_dtype, bfloat16, float16, float32, float64
from nvfp.errors import ArgumentError, DTypeError, ShapeError, StateError, message
from nvfp.nn._initial import Initial, reset
from nvfp.nn._loading import extra_name, loaded, remedy
from nvfp.nn._names import Root, root, sites

# functional_call puts other arrays in the place of parameters: (id(module), name) -> Array.
_substitutes: ContextVar[Mapping[tuple[int, str], Array] | None] = ContextVar("nvfp_substitutes", default=None)
# Modules are noted here as they are made, where somebody wants to know them (`quantized_model_init`).
made: ContextVar[list[Module] | None] = ContextVar("nvfp_made_modules", default=None)
_span: Callable[[Any], AbstractContextManager[None]] | None = None


def set_span(span: Callable[[Any], AbstractContextManager[None]] | None) -> None:
    """Run every module inside ``span(module)`` from now on (`nf.inspect.nvtx`); None: outside any."""
    global _span
    _span = span


def _inside(span: AbstractContextManager[None], run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with span:
        return run(*args, **kwargs)


class Module:
    """Base of every layer.

    Assigning a parameter (`nf.Array` with ``is_parameter``) or a Module to an attribute registers it
    under that name. `parameters` and `state_dict` use dotted names, equal to TE's where it has them.

    Example:
        >>> import nvfp as nf
        >>> layer = nf.nn.Linear(3, 2, device="cpu", rng=nf.random.default_rng(0, device="cpu"))
        >>> {name: p.shape for name, p in layer.parameters().items()}
        {'weight': (2, 3), 'bias': (2,)}
    """

    def __init__(self) -> None:
        self.__dict__["_parameters"] = {}
        self.__dict__["_modules"] = {}
        self.__dict__["_initials"] = {}
        self.training = True
        noted = made.get()
        if noted is not None:
            noted.append(self)

    def __setattr__(self, name: str, value: object) -> None:
        if "_parameters" not in self.__dict__:
            got = f"{type(self).__name__}.{name} set before"
            raise StateError(message("Module", "super().__init__() first", got, "call it at the top of __init__"))
        if name in self._parameters and isinstance(value, Array) and not value.is_parameter:
            do = "assign nf.parameter(x), or write in place: p[...] = x inside nf.no_grad()"
            raise DTypeError(message("Module", f"a parameter (or None) for {name}", "an Array that is none", do))
        if isinstance(value, Module) and any(module is self for _, module in value.named_modules()):
            raise ArgumentError(
                message("Module", "modules without a cycle", f"{name} that holds its owner", "break it")
            )
        for kind in ("_parameters", "_modules", "_initials"):
            self.__dict__[kind].pop(name, None)
        if isinstance(value, Array) and value.is_parameter:
            self.__dict__.pop(name, None)
            self._parameters[name] = value
        elif isinstance(value, Module):
            self.__dict__.pop(name, None)
            self._modules[name] = value
        else:
            self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        for kind in ("_parameters", "_modules"):
            if name in self.__dict__[kind]:
                del self.__dict__[kind][name]
                self._initials.pop(name, None)
                return
        super().__delattr__(name)

    def __getattr__(self, name: str) -> Any:
        # Reached only for names that are not plain attributes: parameters and submodules.
        own = self.__dict__
        if name in own.get("_parameters", ()):
            substitutes = _substitutes.get()
            if substitutes is not None:
                return substitutes.get((id(self), name), own["_parameters"][name])
            return own["_parameters"][name]
        if name in own.get("_modules", ()):
            return own["_modules"][name]
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def add_initial(self, name: str, initial: Initial, device: Any) -> None:
        """Register a parameter that has its first values from ``initial``, or none yet on ``"meta"``."""
        setattr(self, name, initial.first(type(self).__name__, device))
        self._initials[name] = initial

    def reset_parameters(self, device: Any = None) -> None:
        """Give the parameters of this module and of all below their first values, in the order of registration.

        Layers that were made with ``device="meta"`` have parameters of a shape and a dtype alone, which take no
        memory; this gives them both values and memory. The values are those of a layer that is made at once with the
        same ``rng`` (a function of yours that draws gets a Generator spawned from it). Parameters that have values get
        new ones at their addresses, and lose their gradients; scaling state starts anew. Parameters that were assigned
        to a module from outside stay as they are.

        Args:
            device: where parameters go from ``"meta"``; the default device unless given.

        Raises:
            StateError: a parameter on ``"meta"`` whose first values no module here knows. Nothing is changed then.
            DeviceError: the device cannot be used here.

        Example:
            >>> import nvfp as nf
            >>> layer = nf.nn.Linear(3, 2, device="meta")
            >>> layer.weight.shape, layer.weight.nbytes
            ((2, 3), 0)
            >>> layer.reset_parameters(device="cpu")
            >>> layer(nf.ones((4, 3), device="cpu")).shape
            (4, 2)
        """
        reset(self.named_modules(), device)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward`."""
        run = self.forward if _span is None else partial(_inside, _span(self), self.forward)
        if root.get() is not None:
            return run(*args, **kwargs)
        token = root.set(Root(self))
        try:
            return run(*args, **kwargs)
        finally:
            root.reset(token)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output; every layer defines it."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yield (dotted name, module), this one first under the prefix itself."""
        yield prefix, self
        for name, module in self._modules.items():
            yield from module.named_modules(f"{prefix}.{name}" if prefix else name)

    def gemm_names(self) -> list[str]:
        """Return the names of all GEMMs, which a `nf.recipes.Policy` matches when this module is called.

        A layer with one GEMM has its own name; one with several, theirs behind it.

        Example:
            >>> import nvfp as nf
            >>> layer = nf.nn.Sequential(nf.nn.Linear(2, 2, device="cpu"), nf.nn.LayerNormMLP(2, 4, device="cpu"))
            >>> layer.gemm_names()
            ['0', '1.fc1', '1.fc2']
        """
        return [name for name, _ in sites(self)]

    def parameters(self) -> dict[str, Array]:
        """Return every parameter by dotted name, in the order of registration."""
        return {
            f"{prefix}.{name}" if prefix else name: p
            for prefix, module in self.named_modules()
            for name, p in module._parameters.items()
        }

    def extra_state(self) -> dict[str, Any]:
        """Return this module's own arrays that are not parameters (scaling and dropout state), by short name."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> Callable[[], None]:
        """Check what `extra_state` gave and return the call that puts it in place; raise before changing anything.

        Raises:
            StateError: names or shapes that are not this module's.
        """
        raise StateError(
            message("load_state_dict", f"no extra state for {type(self).__name__}", sorted(state), "drop these keys")
        )

    def state_dict(self) -> dict[str, Array]:
        """Return parameters and scaling state by dotted name; scaling state only where there is some.

        Entries share memory with the module; copy them before training on.
        """
        state = dict(self.parameters())
        for prefix, module in self.named_modules():
            for name, raw in module.extra_state().items():
                state[f"{prefix}.{name}" if prefix else name] = Array._wrap(raw)
        return state

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> tuple[str, ...]:
        """Copy saved values into the parameters and scaling state; nothing is changed on error.

        Args:
            state: name -> array (nf.Array or ndarray). ``_extra_state`` keys of TE are ignored, whatever they hold.
            strict: raise when a parameter is missing or a key is unknown. Scaling state may always
                be absent.

        Returns:
            The names of the ``_extra_state`` keys that were ignored, in the order of ``state``.

        Raises:
            StateError: missing or unknown names (strict), or scaling state of another kind of module.
            ShapeError: a shape that differs.
            DTypeError: no mapping, or values that are no numbers.
        """
        if not isinstance(state, Mapping):
            raise DTypeError(
                message("load_state_dict", "a mapping name -> array", type(state).__name__, "pass nf.load(path)")
            )
        parameters = self.parameters()
        given = {k: v for k, v in state.items() if not k.endswith("_extra_state")}
        extra: dict[str, dict[str, Any]] = {prefix: {} for prefix, _ in self.named_modules()}
        unknown = []
        for key, value in given.items():
            if key in parameters:
                continue
            prefix, name = extra_name(key)
            if name and prefix in extra:
                extra[prefix][name] = value
            else:
                unknown.append(key)
        missing = [k for k in parameters if k not in given]
        if strict and (missing or unknown):
            raise StateError(
                message(
                    "load_state_dict",
                    "exactly the module's names",
                    f"missing {missing}, unknown {unknown}",
                    remedy(missing, unknown),
                )
            )
        values = {key: loaded(given[key], p) for key, p in parameters.items() if key in given}
        for key, value in values.items():
            wanted = parameters[key].shape
            if value.shape != wanted:
                do = "load a matching checkpoint"
                raise ShapeError(message("load_state_dict", f"{key} of shape {wanted}", value.shape, do))
        commits = [
            module.load_extra_state({k: np.asarray(v) for k, v in extra[prefix].items()})
            for prefix, module in self.named_modules()
            if extra[prefix]
        ]
        for key, value in values.items():
            parameters[key].storage.write_(value.raw)
        for commit in commits:
            commit()
        return tuple(k for k in state if k not in given)

    def to(self, device: Any = None, dtype: Any = None) -> Module:
        """Move and/or cast every parameter, keeping the parameter objects; returns the module.

        Quantized parameters stay quantized; a dtype becomes that of their gradients.

        Args:
            device: target device or None.
            dtype: dense floating dtype or None.

        Raises:
            DTypeError: another dtype.
            DeviceError: the device cannot be used here. Nothing is changed then.
        """
        target = None if dtype is None else as_dtype(dtype)
        if target is not None and target not in (float32, bfloat16, float16, float64):
            do = "pass nf.bfloat16, or quantize under nf.autocast"
            raise DTypeError(message("Module.to", "a dense floating dtype", target, do))
        parameters = list(self.parameters().values())
        moved = [p.detach() for p in parameters]
        if target is not None:
            moved = [x if isinstance(x, QuantizedArray) else astype(x, target) for x in moved]
        if device is not None:
            moved = [x.to_device(device) for x in moved]
        for p, x in zip(parameters, moved, strict=True):
            p.grad = None
            if p.main_grad is not None and x.device is not p.device:
                p.main_grad = None
            if isinstance(p, QuantizedArray):
                rebind(p, x.raw, target)
            else:
                p._rebind(x.raw)
        for _, module in self.named_modules():
            module.moved(device)
        return self

    def moved(self, device: Any = None) -> None:
        """Called after `to` with its target device; layers drop or move what they keep beside the parameters."""

    def train(self, mode: bool = True) -> Module:
        """Set training mode on this module and all below; returns the module."""
        for _, module in self.named_modules():
            module.training = mode
        return self

    def eval(self) -> Module:
        """Set evaluation mode; returns the module."""
        return self.train(False)

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters; a ``main_grad`` is filled with zeros."""
        for p in self.parameters().values():
            p._clear_gradient()

    def backward_dw(self) -> None:
        """Compute the gradients of weights that layers with ``delay_wgrad_compute=True`` have put off.

        Call it after a backward pass, on a layer or on a whole model, before the optimizer's step. The last layer
        comes first; of one layer all that wait are computed, the oldest first. Nothing happens where nothing waits.
        """
        for _, module in reversed(list(self.named_modules())):
            for site in reversed(getattr(module, "_sites", ())):
                site.gradients.run()

    def extra_repr(self) -> str:
        """What the layer adds to its line of `repr`."""
        return ""

    def __repr__(self) -> str:
        lines = [f"({name}): {module!r}".replace("\n", "\n  ") for name, module in self._modules.items()]
        if not lines:
            return f"{type(self).__name__}({self.extra_repr()})"
        return f"{type(self).__name__}({self.extra_repr()}\n  " + "\n  ".join(lines) + "\n)"


@contextmanager
def substituted(module: Module, params: Mapping[str, Array]) -> Iterator[None]:
    """Read other arrays in the place of parameters inside the block, in this context only."""
    table = dict(_substitutes.get() or {})
    known = {
        f"{prefix}.{name}" if prefix else name: (id(owner), name)
        for prefix, owner in module.named_modules()
        for name in owner._parameters
    }
    if not isinstance(params, Mapping) or not all(isinstance(p, Array) for p in params.values()):
        got = (
            type(params).__name__
            if not isinstance(params, Mapping)
            else sorted({type(p).__name__ for p in params.values()})
        )
        do = "pass a dict like model.parameters()"
        raise DTypeError(message("functional_call", "a mapping name -> Array", got, do))
    unknown = [name for name in params if name not in known]
    if unknown:
        raise ArgumentError(
            message("functional_call", f"names out of {sorted(known)}", unknown, "pass a dict like model.parameters()")
        )
    table.update({known[name]: value for name, value in params.items()})
    token = _substitutes.set(table)
    try:
        yield
    finally:
        _substitutes.reset(token)


def functional_call(module: Module, params: Mapping[str, Array], *args: Any, **kwargs: Any) -> Any:
    """Run a module with other arrays in the place of its parameters.

    Args:
        module: the module; its own parameters are not read where ``params`` names them.
        params: dotted name -> Array, like ``module.parameters()``; may be a part of them.
        args: passed to the module.
        kwargs: passed to the module.

    Returns:
        What the module returns. Scaling state still belongs to the module.

    Raises:
        ArgumentError: an unknown name.
        DTypeError: no mapping, or values that are no Arrays.

    Example:
        >>> import nvfp as nf
        >>> layer = nf.nn.Linear(1, 1, bias=False, device="cpu")
        >>> w = nf.asarray([[2.0]], device="cpu")
        >>> nf.nn.functional_call(layer, {"weight": w}, nf.asarray([3.0], device="cpu")).item()
        6.0
    """
    with substituted(module, params):
        return module(*args, **kwargs)
