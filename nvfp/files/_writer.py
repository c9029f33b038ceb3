"""What fills the safetensors files of a model, and remembers what its configuration and index are written from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.convert import asarray, asnumpy
from nvfp.arrays.quantized import QuantizedArray
from nvfp.dtypes.dense import is_narrow
from nvfp.errors import ArgumentError, DTypeError, FileFormatError, message
from nvfp.files.dialects.dialect import Dialect, Row, Written
from nvfp.files.dialects.layout import Layout, in_file
from nvfp.files.host import parts_of
from nvfp.files.shards import INDEX
from nvfp.files.tensors import write_tensors

_OP = "save_model"
STATIC = ".input_scale"  # behind the name of a layer: the decode factor of its input


class Source(Protocol):
    """Arrays to be written, one after another."""

    def names(self) -> Iterator[str]:
        """Names in the order of writing."""

    def array(self, name: str) -> Any:
        """Return one of them."""

    def kept(self, name: str, dialect: str) -> tuple[dict[str, np.ndarray], Row | None] | None:
        """Return the tensors of a file that can be taken over as they are, if these are written in ``dialect``."""


class Writer:
    """Fills files up to their size; keeps what the configuration and the index are written from."""

    def __init__(self, folder: Path, dialect: Dialect, shard_size: int) -> None:
        self.folder, self.dialect, self.shard_size = folder, dialect, shard_size
        self.tensors: dict[str, np.ndarray] = {}
        self.spelled: dict[str, Any] = {}  # of the arrays in `tensors`: their entries in the metadata, or
        self.plain: list[str] = []  # their names
        self.files = 0
        self.places: dict[str, int] = {}  # tensor -> file
        self.size = 0
        self.total = 0
        self.rows: dict[str, tuple[Row, Layout | None]] = {}
        self.dense: list[str] = []
        self.static: set[str] = set()

    def add(self, name: Any, source: Source) -> None:
        if not isinstance(name, str) or name in ("", "__metadata__"):
            raise ArgumentError(message(_OP, "names as str", repr(name), "rename this array"))
        whole = source.kept(name, self.dialect.name)
        entry = None
        if whole is not None:
            tensors, row = whole
            self._keep(name, row, next(iter(tensors.values())))
        else:
            tensors, entry = self._spell(name, source.array(name))
        size = sum(t.nbytes for t in tensors.values())
        if self.tensors and size + self.size > self.shard_size:
            self.flush()
        taken = [tensor for tensor in tensors if tensor in self.places]
        if taken:
            do = "rename one of the arrays"
            raise ArgumentError(message(_OP, "names that are free", f"{taken} twice, once for {name}", do))
        self.tensors.update(tensors)
        self.places.update(dict.fromkeys(tensors, self.files))
        self.size += size
        if entry is None:
            self.plain += list(tensors)
        else:
            self.spelled[name] = entry

    def _keep(self, name: str, row: Row | None, value: np.ndarray) -> None:
        if row is not None:
            layout = next((known for known in self.dialect.layouts if known.kind == row.layout), None)
            self.rows[row.module] = (row, layout)
        elif name.endswith(STATIC):
            self.static.add(name.removesuffix(STATIC))
        elif name.endswith(".weight") and value.ndim > 1:
            self.dense.append(module_of(name))

    def _spell(self, name: str, value: Any) -> tuple[dict[str, np.ndarray], Any]:
        """The tensors of an array, and its entry in the metadata of dialects that have one."""
        if isinstance(value, QuantizedArray):
            return self._quantized(name, value)
        if isinstance(value, Mapping) or value is None or isinstance(value, str):
            do = "join the names: {'a.b': array}"
            raise DTypeError(message(_OP, "arrays by name", f"a {type(value).__name__} under {name!r}", do))
        found = asarray(value, device=None if isinstance(value, Array) else "cpu")
        if is_narrow(found.dtype):
            do = "save the QuantizedArray, or its codes as uint8"
            raise DTypeError(message(_OP, "narrow codes with their scale", f"{name} as {found.dtype}", do))
        host = np.asarray(asnumpy(found), order="C")
        module = name.removesuffix(STATIC)
        if name.endswith(STATIC) and module in self.rows and self.dialect.inputs:
            _, layout = self.rows[module]
            part = self.dialect.inputs[-1 if layout is not None and layout.bits == 4 else 0]
            self.static.add(module)
            return {part.name(module): in_file(part, host.astype(np.float32))}, None
        self._keep(name, None, host)
        return {name: host}, None

    def _quantized(self, name: str, q: QuantizedArray) -> tuple[dict[str, np.ndarray], Any]:
        if self.dialect.spell is not None:
            tensors, entry = self.dialect.spell(name, q)
            kind = entry.get("_type", self.dialect.name)
            self.rows[module_of(name)] = (Row(module_of(name), kind, q.dtype, q.shape), None)
            return tensors, entry
        layout = next((row for row in self.dialect.layouts if row.holds(q.dtype)), None)
        if layout is None:
            kinds = [row.kind for row in self.dialect.layouts]
            do = "quantize it to another dtype, or choose dialect nvfp"
            got = f"{name} as {q.dtype}"
            raise FileFormatError(message(_OP, f"dtypes of dialect {self.dialect.name} ({kinds})", got, do))
        parts = layout.written(*parts_of(name, q))
        self.rows[module_of(name)] = (Row(module_of(name), layout.kind, q.dtype, q.shape), layout)
        return {layout.parts[role].name(name): np.asarray(value, order="C") for role, value in parts.items()}, None

    def flush(self) -> None:
        """Write one file under a number; `finish` gives it its name."""
        metadata = {"format": "pt"}  # transformers wants to see it
        if self.dialect.collect is not None:
            metadata.update(self.dialect.collect(self.spelled, self.plain))
        write_tensors(self.folder / f"{self.files}.part", self.tensors, metadata)
        self.files += 1
        self.total, self.size = self.total + self.size, 0
        self.tensors, self.spelled, self.plain = {}, {}, []

    def finish(self) -> Written:
        if self.tensors or not self.files:
            self.flush()
        count = self.files
        names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
        names = names if count > 1 else ["model.safetensors"]
        for i, name in enumerate(names):
            (self.folder / f"{i}.part").rename(self.folder / name)
        if count > 1:
            places = {tensor: names[self.places[tensor]] for tensor in sorted(self.places)}
            index = {"metadata": {"total_size": self.total}, "weight_map": places}
            (self.folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        rows = tuple(row for row, _ in self.rows.values())
        return Written(rows, tuple(self.dense), frozenset(self.static & set(self.rows)), _producer())


def module_of(name: str) -> str:
    """Return the name of the layer that a weight belongs to."""
    return name.removesuffix(".weight")


def _producer() -> dict[str, str]:
    try:
        return {"name": "nvfp", "version": version("nvfp")}
    except PackageNotFoundError:
        return {"name": "nvfp", "version": "0"}
