"""First values of parameters: given when a layer is made, or later for those on ``"meta"``; and given again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from dataclasses import dataclass
from math import prod
from typing import Any

from nvfp.arrays.array import Array, parameter, wrap
from nvfp.arrays.creation import on_device
from nvfp.arrays.quantized import QuantizedArray
from nvfp.arrays.random import Generator
from nvfp.arrays.storage import QuantizedStorage
from nvfp.autograd.tape import Leaf
from nvfp.device import Device
from nvfp.dtypes.dense import as_dtype, bfloat16, float16, float32, float64
from nvfp.errors import DTypeError, ShapeError, StateError, message
from nvfp.nn._init import Constant, Init, Normal

META = "meta"


class Unmade:
    """What a parameter on ``"meta"`` has in the place of memory: a shape and a dtype. All else raises StateError."""

    __slots__ = ("dtype", "shape")
    nbytes = 0

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def problem(self) -> StateError:
        """What kernels raise that are given this."""
        got = f"one of shape {self.shape} on device '{META}'"
        return StateError(message("parameter", "a parameter with values", got, "call model.reset_parameters() first"))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols that it does not have
            raise AttributeError(name)
        raise self.problem


@dataclass(eq=False, slots=True)
class Initial:
    """How one parameter gets its values.

    Attributes:
        shape: of the parameter.
        dtype: of the values.
        init: gives them; None where a pickled module had a function of the user's.
        rng: for ``init``.
        make: parameter of the values.
        reserved: for the first call of ``init`` where that comes later than the layer: other draws of ``rng`` do not
            change it.
    """

    shape: tuple[int, ...]
    dtype: Any
    init: Init | None
    rng: Generator | None = None
    make: Callable[[Array], Array] = parameter
    reserved: Generator | None = None

    def values(self, layer: str, device: Any) -> Array:
        """New values on a device.

        Raises:
            ShapeError: ``init`` gives another shape.
        """
        assert self.init is not None, "checked before"
        found = self.init(self.shape, self.reserved or self.rng, self.dtype, device)
        self.reserved = None
        if found.shape != self.shape:
            raise ShapeError(message(layer, f"initial values of shape {self.shape}", found.shape, "correct the init"))
        return found

    def first(self, layer: str, device: Any) -> Array:
        """The parameter: with values, or on ``"meta"`` without."""
        if not isinstance(device, str) or device != META:
            return self.make(self.values(layer, device))
        dtype = as_dtype(self.dtype)
        if dtype not in (float32, bfloat16, float16, float64):
            raise DTypeError(message(layer, "a floating dtype", dtype, "pass e.g. dtype=nf.bfloat16"))
        self._reserve(layer)
        made = wrap(Unmade(self.shape, dtype), node=Leaf(self.shape))
        made.is_parameter = True
        return made

    def _reserve(self, layer: str) -> None:
        """Take from ``rng`` what ``init`` would take now: one draw of our own, of a user's it is not known."""
        if self.rng is None:
            return
        if not isinstance(self.rng, Generator):
            raise DTypeError(message(layer, "rng=a Generator", repr(self.rng), "pass nf.random.default_rng(seed)"))
        if isinstance(self.init, Normal):
            self.reserved = copy(self.rng)
            self.rng.random(device="cpu")
        else:
            self.reserved = self.rng.spawn(1)[0]

    def give(self, layer: str, p: Array, device: Device) -> None:
        """Give a parameter its values, at its address where it has memory; its gradient is forgotten.

        Args:
            layer: the public name, for messages.
            p: the parameter.
            device: where it goes from ``"meta"``.
        """
        if type(p.raw) is Unmade:
            made = self.make(self.values(layer, device))
            p.__class__ = type(made)  # the same object for all who hold it, a tied layer say
            p._rebind(made.raw, made.dtype, made._storage)
            return
        values = self.values(layer, p.device)
        p.storage.write_(values.raw)
        if isinstance(p, QuantizedArray) and isinstance(p.storage, QuantizedStorage) and p.storage.initial is not None:
            p.storage.initial = values.detach().to_device("cpu").copy()
        p._clear_gradient()

    def __deepcopy__(self, memo: dict[int, Any]) -> Initial:
        return Initial(self.shape, self.dtype, self.init, deepcopy(self.rng, memo))  # one for all that share it

    def __reduce__(self) -> tuple[Any, ...]:
        known = self.init if isinstance(self.init, Normal | Constant) else None
        return Initial, (self.shape, self.dtype, known, self.rng)  # only of parameters that are made


def reset(modules: Iterator[tuple[str, Any]], device: Any) -> None:
    """Give first values to all parameters of modules that know them; `Module.reset_parameters`."""
    place = on_device(device)
    owners = [module for _, module in modules]
    known = [(owner, name, initial) for owner in owners for name, initial in owner._initials.items()]
    _check(owners, known)
    late = [owner for owner in owners if any(type(p.raw) is Unmade for p in owner._parameters.values())]
    for owner, name, initial in known:
        initial.give(type(owner).__name__, owner._parameters[name], place)
    for owner in late:
        owner.moved()
    for owner in owners:
        for site in getattr(owner, "_sites", ()):
            site.restart()


def _check(owners: list[Any], known: list[tuple[Any, str, Initial]]) -> None:
    """Raise where a parameter without values would get none."""
    found = {id(owner._parameters[name]) for owner, name, _ in known}
    lost = [(owner, name) for owner, name, initial in known if initial.init is None]
    lost += [
        (owner, name)
        for owner in owners
        for name, p in owner._parameters.items()
        if type(p.raw) is Unmade and id(p) not in found
    ]
    for owner, name in lost:
        expected = "parameters whose first values a module here knows"
        got = f"{name}, which was made elsewhere or whose init_method was not pickled"
        do = "reset the whole model, or make it anew and load a state dict"
        raise StateError(message(type(owner).__name__, expected, got, do))
