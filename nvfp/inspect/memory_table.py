"""`memory`: the bytes that each parameter of a model holds, copy by copy."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from nvfp.arrays.array import Array
from nvfp.arrays.quantized import QuantizedArray
from nvfp.errors import DTypeError, message
from nvfp.inspect._json import as_json
from nvfp.kernels.operand import Operand
from nvfp.nn.module import Module

_NAMES = ("name", "shape", "dtype")


@dataclass(frozen=True)
class ParameterMemory:
    """Bytes of one parameter.

    Attributes:
        name: dotted.
        shape: of the parameter.
        dtype: its name.
        high_precision: the parameter itself, where it is dense.
        row: codes in the order of fprop: of a quantized parameter, or kept by ``is_first_microbatch``.
        column: codes kept in the order of dgrad, likewise.
        scales: scales of these codes.
        initial: first values kept by `nf.quantized_model_init` (on the CPU).
        grad: ``.grad``.
        main_grad: ``main_grad``.
        master: float32 master weights of the optimizer.
        moments: its moments.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    high_precision: int = 0
    row: int = 0
    column: int = 0
    scales: int = 0
    initial: int = 0
    grad: int = 0
    main_grad: int = 0
    master: int = 0
    moments: int = 0

    @property
    def total(self) -> int:
        """Bytes of all of it."""
        return sum(getattr(self, name) for name in COPIES)

    def as_dict(self) -> dict[str, Any]:
        """The figures by name, ``total`` among them."""
        return asdict(self) | {"total": self.total}


COPIES = tuple(f.name for f in fields(ParameterMemory) if f.name not in _NAMES)


class MemoryTable(Sequence[ParameterMemory]):
    """The memory of every parameter: a sequence that prints as a table.

    Attributes:
        total: the sums, under the name ``"total"``.

    Example:
        >>> print(MemoryTable([ParameterMemory("weight", (2, 4), "float32", 32, grad=32)]))
        name    shape   dtype    high_precision  grad  total
        weight  (2, 4)  float32              32    32     64
        total                                32    32     64
    """

    def __init__(self, rows: Iterable[ParameterMemory]) -> None:
        self._rows = tuple(rows)
        self.total = ParameterMemory("total", (), "", **{c: sum(getattr(r, c) for r in self._rows) for c in COPIES})

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def as_dict(self) -> dict[str, Any]:
        """Return ``{"parameters": [...], "total": {...}}``."""
        return {"parameters": [row.as_dict() for row in self], "total": self.total.as_dict()}

    def to_json(self, path: str | os.PathLike[str] | None = None, indent: int | None = 2) -> str:
        """Return `as_dict` as JSON, and write it to ``path`` if one is given.

        Args:
            path: a file, which is replaced.
            indent: spaces per level; None for one line.
        """
        return as_json(self.as_dict(), path, indent)

    def __repr__(self) -> str:
        shown = [c for c in COPIES if getattr(self.total, c)]  # a column without a byte says nothing
        lines = [(*_NAMES, *shown, "total"), *(_cells(row, shown) for row in (*self, self.total))]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        left = len(_NAMES)
        return "\n".join(
            "  ".join(c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
            for line in lines
        )


def memory(model: Module, optimizer: Any = None) -> MemoryTable:
    """List the bytes that each parameter of a model holds: itself, quantized copies, gradients, optimizer state.

    Args:
        model: any `nf.nn.Module`. Tied parameters count once, under their first name.
        optimizer: an optimizer of `nf.optim` over its parameters, whose master weights and moments are listed too.

    Returns:
        A `MemoryTable`. A kept quantized weight that several parameters are joined in is shared out by their rows.

    Raises:
        DTypeError: ``model`` is no module, or ``optimizer`` has no parameters and state.

    Numerics: sizes of arrays, read without launching anything; what a pool rounds up, activations, scaling states and
        workspaces are not in it (`nf.inspect.peak_memory`).

    Example:
        >>> import nvfp as nf
        >>> layer = nf.nn.Linear(64, 32, bias=False, dtype=nf.bfloat16, device="cpu")
        >>> with nf.autocast(recipe=nf.recipes.MXFP8BlockScaling()), nf.no_grad():
        ...     _ = layer(nf.ones((1, 64), dtype=nf.bfloat16, device="cpu"), is_first_microbatch=True)
        >>> nf.inspect.memory(layer)  # frozen or not: without a gradient only the row copy is made
        name    shape     dtype     high_precision   row  scales  total
        weight  (32, 64)  bfloat16            4096  2048      64   6208
        total                                 4096  2048      64   6208
    """
    if not isinstance(model, Module):
        raise DTypeError(message("memory", "an nf.nn.Module", type(model).__name__, "pass the model"))
    if optimizer is not None and not (hasattr(optimizer, "params") and hasattr(optimizer, "state_dict")):
        raise DTypeError(message("memory", "an optimizer of nf.optim", type(optimizer).__name__, "leave it out"))
    kept = dict(_kept(model))
    states = _states(optimizer)
    found: dict[int, ParameterMemory] = {}
    for name, p in model.parameters().items():
        if id(p) not in found:
            found[id(p)] = _row(name, p, kept.get(id(p), {}), states.get(id(p), {}))
    return MemoryTable(found.values())


def _row(name: str, p: Array, kept: dict[str, int], state: dict[str, int]) -> ParameterMemory:
    sizes = dict.fromkeys(COPIES, 0)
    if isinstance(p, QuantizedArray):
        initial = p.get_high_precision_init_val()
        sizes |= {
            "row": p.raw.codes.nbytes,
            "scales": _scales(p.raw),
            "initial": 0 if initial is None else initial.nbytes,
        }
    else:
        sizes["high_precision"] = p.nbytes
    for key in ("grad", "main_grad"):
        gradient = getattr(p, key)
        sizes[key] = 0 if gradient is None else gradient.nbytes
    for key, value in (*kept.items(), *state.items()):
        sizes[key] += value
    return ParameterMemory(name, p.shape, str(p.dtype), **{k: int(v) for k, v in sizes.items()})


def _kept(model: Module) -> Iterator[tuple[int, dict[str, int]]]:
    """(id of a parameter, bytes of its part of a kept quantized weight)."""
    for _, module in model.named_modules():
        for site in getattr(module, "_sites", ()):
            pair = site.kept
            parts = [module._parameters[name] for name in module.weight_names(site)]
            if pair is None:
                continue
            sizes = {"row": 0, "column": 0, "scales": 0}
            for key, side in (("row", pair.row), ("column", None if pair.col is pair.row else pair.col)):
                if type(side) is Operand:
                    sizes[key], sizes["scales"] = side.codes.nbytes, sizes["scales"] + _scales(side)
                elif side is not None and all(side is not p.raw for p in parts):
                    sizes[key] = side.nbytes
            rows, done = sum(p.shape[0] for p in parts), 0
            for p in parts:
                share = {k: v * (done + p.shape[0]) // rows - v * done // rows for k, v in sizes.items()}
                done += p.shape[0]
                yield id(p), share


def _scales(operand: Operand) -> int:
    return int(operand.nbytes - operand.codes.nbytes)


def _states(optimizer: Any) -> dict[int, dict[str, int]]:
    """Parameter (by its id) -> bytes of its master weights and moments."""
    found: dict[int, dict[str, int]] = {}
    if optimizer is None:
        return found
    names = {name: id(p) for name, p in optimizer.params.items()}
    for key, value in optimizer.state_dict().items():
        kind, _, name = key.partition(".")
        if name in names:
            sizes = found.setdefault(names[name], {"master": 0, "moments": 0})
            sizes["master" if kind == "master" else "moments"] += value.nbytes
    return found


def _cells(row: ParameterMemory, shown: Sequence[str]) -> tuple[str, ...]:
    shape = str(row.shape) if row.dtype else ""
    return (row.name, shape, row.dtype, *(str(getattr(row, c)) for c in shown), str(row.total))
