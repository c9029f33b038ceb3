"""Several parameters of a module that one GEMM reads as one weight: query, key and value beside each other.

The parts lie side by side in one buffer, so joining them costs nothing and their gradients are slices
of one wgrad. Where they do not (other arrays under `functional_call`, a parameter that was assigned
anew, a copied module) they are put together by `nf.concat`: the same values, with a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.creation import empty_raw
from nvfp.arrays.functions.joining import concat
from nvfp.arrays.random import Generator
from nvfp.arrays.storage import Storage, copy_into
from nvfp.autograd.tape import record
from nvfp.errors import ArgumentError, DTypeError, StateError, message
from nvfp.nn._init import Constant, Init, count
from nvfp.nn._initial import Initial, Unmade
from nvfp.nn._quantized_init import check_parts, weight_maker
from nvfp.nn.module import Module


class JoinedStorage(Storage):
    """The memory of all parts: written when a part is written, so its version is the sum of theirs."""

    __slots__ = ("parts",)

    def __init__(self, raw: Any, parts: tuple[Storage, ...]) -> None:
        self.raw = raw
        self.parts = parts

    @property
    def version(self) -> int:  # type: ignore[override]
        """How often a part has been written."""
        return sum(part.version for part in self.parts)

    def touch(self) -> None:
        """Count a write to the whole."""
        for part in self.parts:
            part.touch()


class Joined:
    """The parameters of one module that together are one [N, K] weight or [N] bias.

    Args:
        names: of the parameters, in order of their rows.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._views: tuple[Any, ...] = ()
        self._storage: JoinedStorage | None = None

    def __call__(self, owner: Module, *, shown: bool = False) -> Any:
        """Return the whole: the parameter itself where there is one only, None where there is none.

        Args:
            owner: the module.
            shown: the user gets the whole, so that its gradient may be an array of theirs. It is then a copy:
                the parts take their gradients out of the whole's without one, which is for our own rules only.
        """
        if len(self.names) == 1:
            return getattr(owner, self.names[0])
        parts = [getattr(owner, name) for name in self.names]
        absent = [name for name, p in zip(self.names, parts, strict=True) if p is None]
        if len(absent) == len(parts):
            return None
        if absent:
            expected, got = f"all of {', '.join(self.names)}, or None for each", f"None for {', '.join(absent)}"
            raise StateError(message(type(owner).__name__, expected, got, "assign a parameter to each, or to none"))
        if (
            shown
            or len(self._views) != len(parts)
            or any(getattr(p, "raw", None) is not v for p, v in zip(parts, self._views, strict=True))
        ):
            return concat(parts)
        storages = tuple([p.storage for p in parts])
        if self._storage is None or self._storage.parts != storages:
            self._storage = JoinedStorage(self._whole, storages)
        node = record("join", parts, _join_vjp, saved=(self._bounds,))
        return wrap(self._whole, node=node, storage=self._storage)

    def parts(self, owner: Module) -> tuple[Array, ...]:
        """The parameters (or what stands in their place) that together are the whole."""
        return tuple([getattr(owner, name) for name in self.names])

    def lay(self, owner: Module) -> None:
        """Move the parts side by side into one new buffer; the parameter objects stay.

        Parts that are absent or without values yet, or assigned with other dtypes or lengths, stay where they are.
        """
        self._views, self._storage = (), None
        parts = [owner._parameters[name] for name in self.names if name in owner._parameters]
        if any(type(p.raw) is Unmade for p in parts):
            return
        kinds = {(p.dtype, p.device, p.shape[1:]) for p in parts}
        if len(self.names) == 1 or len(parts) < len(self.names) or len(kinds) > 1 or parts[0].ndim == 0:
            return
        first = parts[0]
        self._bounds = [0, *accumulate(p.shape[0] for p in parts)]
        self._whole = empty_raw((self._bounds[-1], *first.shape[1:]), first.dtype, first.device)
        self._views = tuple([self._whole[a:b] for a, b in pairwise(self._bounds)])
        for part, raw in zip(parts, self._views, strict=True):
            copy_into(raw, part.raw)
            part._rebind(raw)

    def __getstate__(self) -> tuple[str, ...]:
        return self.names  # a copy's parameters lie each by itself

    def __setstate__(self, names: tuple[str, ...]) -> None:
        self.__init__(names)  # type: ignore[misc]


def _join_vjp(saved: tuple[Any, ...], dy: Array, needs: tuple[bool, ...]) -> tuple[Array | None, ...]:
    """Rows of the gradient: views of one buffer that no other array shares (see ``shown``)."""
    return tuple([wrap(dy.raw[a:b]) if need else None for (a, b), need in zip(pairwise(saved[0]), needs, strict=True)])


def part_sizes(layer: str, split: Mapping[str, int] | Sequence[str] | None, rows: int) -> dict[str, int]:
    """Return prefix -> rows of a weight with ``rows`` rows: ``parameters_split`` of TE.

    Args:
        layer: the public name, for messages.
        split: None (one parameter), names for equal parts, or a mapping name -> rows.
        rows: N.

    Raises:
        DTypeError: something else.
        ArgumentError: no or repeated names, or sizes that do not add up to N.
    """
    if split is None:
        return {"": rows}
    if isinstance(split, str) or not isinstance(split, Mapping | Sequence):
        raise DTypeError(message(layer, "parameters_split as names or name -> rows", repr(split), "pass a dict"))
    names = [name if isinstance(name, str) and name.isidentifier() and name[0] != "_" else "" for name in split]
    if not names or not all(names) or len({n.removesuffix("_") for n in names}) != len(names):
        raise ArgumentError(message(layer, "distinct names in parameters_split", list(split), "name every part once"))
    if isinstance(split, Mapping):
        sizes = [count(layer, f"parameters_split[{name!r}]", size) for name, size in split.items()]
    else:
        sizes = [rows // len(names)] * len(names)
    if sum(sizes) != rows:
        do = "give sizes that add up" if isinstance(split, Mapping) else "pass name -> rows instead"
        raise ArgumentError(message(layer, f"parts of {rows} rows together", dict(zip(names, sizes, strict=True)), do))
    return {f"{name.removesuffix('_')}_": size for name, size in zip(names, sizes, strict=True)}


def add_parts(
    owner: Module,
    sizes: Mapping[str, int],
    columns: int,
    init: Init,
    *,
    bias: bool,
    dtype: Any,
    device: Any,
    rng: Generator | None,
) -> tuple[Joined, Joined]:
    """Give a module the parameters ``<prefix>weight`` [n, K] and ``<prefix>bias`` [n], and return how they join.

    Args:
        owner: the module.
        sizes: prefix -> n.
        columns: K.
        init: of every weight.
        bias: zeros; without it the names hold None.
        dtype: of the parameters.
        device: of the parameters.
        rng: for ``init``.

    Raises:
        ArgumentError: a name that the module has already, or several parts of a weight that is to be quantized.
    """
    taken = [name for name in sizes if hasattr(owner, f"{name}weight")]
    if taken:
        do = "choose other names in parameters_split"
        raise ArgumentError(message(type(owner).__name__, "names that are free", f"{taken[0]}weight", do))
    check_parts(type(owner).__name__, len(sizes))
    for prefix, rows in sizes.items():
        make = weight_maker(type(owner).__name__)
        owner.add_initial(f"{prefix}weight", Initial((rows, columns), dtype, init, rng, make), device)
    for prefix, rows in sizes.items():
        if bias:
            owner.add_initial(f"{prefix}bias", Initial((rows,), dtype, Constant(0.0)), device)
        else:
            setattr(owner, f"{prefix}bias", None)
    joins = [Joined(tuple(f"{prefix}{kind}" for prefix in sizes)) for kind in ("weight", "bias")]
    for join in joins:
        join.lay(owner)
    return joins[0], joins[1]
