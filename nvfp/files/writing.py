"""`save_model`: the weights of a model in the dialect of another stack, with its configuration."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.convert import asarray, asnumpy
from nvfp.arrays.quantized import QuantizedArray
from nvfp.dtypes.dense import is_narrow
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, DTypeError, FileFormatError, message
from nvfp.files.dialects.dialect import Dialect, Row, Written
from nvfp.files.dialects.layout import Layout, in_file
from nvfp.files.dialects.reading import DIALECTS
from nvfp.files.host import parts_of
from nvfp.files.models import Checkpoint
from nvfp.files.shards import INDEX
from nvfp.files.tensors import write_tensors

_OP = "save_model"
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_STATIC = ".input_scale"


class Source(Protocol):
    """Arrays to be written, one after another."""

    def names(self) -> Iterator[str]:
        """Names in the order of writing."""

    def array(self, name: str) -> Any:
        """Return one of them."""

    def kept(self, name: str, dialect: str) -> tuple[dict[str, np.ndarray], Row | None] | None:
        """Return the tensors of a file that can be taken over as they are, if these are written in ``dialect``."""


@dataclass(frozen=True)
class _Given:
    """The arrays of `save_model`."""

    arrays: Mapping[str, Any]

    def names(self) -> Iterator[str]:
        return iter(self.arrays)

    def array(self, name: str) -> Any:
        return self.arrays[name]

    def kept(self, name: str, dialect: str) -> tuple[dict[str, np.ndarray], Row | None] | None:
        return kept(self.arrays, name, dialect) if isinstance(self.arrays, Checkpoint) else None


def kept(checkpoint: Checkpoint, name: str, dialect: str) -> tuple[dict[str, np.ndarray], Row | None] | None:
    """Return an array's tensors as its files hold them, and its row, where ``dialect`` is that of the files.

    Args:
        checkpoint: the files.
        name: of the array.
        dialect: to write.
    """
    if dialect != checkpoint.dialect or not DIALECTS[dialect].layouts:
        return None
    entry = checkpoint.entries[name]
    quantized = isinstance(entry.dtype, QuantDType)
    row = Row(_module(name), entry.kind, entry.dtype, entry.shape) if quantized else None  # type: ignore[arg-type]
    return checkpoint.raw(name), row


def save_model(
    path: str | os.PathLike[str],
    arrays: Mapping[str, Any],
    *,
    dialect: str | None = None,
    config: Mapping[str, Any] | None = None,
    shard_size: int | str = "5GB",
) -> None:
    """Write arrays as a folder that the stack of ``dialect`` loads: safetensors files, index, ``config.json``.

    Args:
        path: a folder that does not exist yet; it appears when everything is written.
        arrays: name -> Array, QuantizedArray or ndarray, or a `Checkpoint`. ``<module>.input_scale`` next to a
            quantized ``<module>.weight`` is the static decode factor of the layer's input.
        dialect: ``"deepseek"``, ``"compressed-tensors"``, ``"modelopt"``, ``"gpt-oss"``, ``"torchao"``, ``"nvfp"`` or
            ``"plain"``; by default that of a Checkpoint, else ``"nvfp"`` where an array is quantized and ``"plain"``.
        config: content of ``config.json``; that of a Checkpoint by default. Its ``quantization_config`` is replaced.
        shard_size: most bytes of tensors in one file, as a number or like ``"5GB"``.

    Raises:
        FileExistsError: the folder exists.
        ArgumentError: an unknown dialect, names or a size that are none.
        FileFormatError: an array that the dialect cannot hold.
        DTypeError: values that are no arrays, or narrow ones without a scale.
        OSError: the folder cannot be written.

    Numerics:
        Codes and scales are written as they are; the arrays of a Checkpoint in its own dialect byte for byte. A tensor
        scale t that the dialect holds as its inverse is written as fl32(1/t) or a neighbour that reads as t again; for
        some t there is none, and it is read with another last bit.

    Example:
        >>> import os, tempfile, nvfp as nf
        >>> folder = os.path.join(tempfile.mkdtemp(), "model")
        >>> q = nf.ones((2, 32), device="cpu").astype(nf.nvfp4)
        >>> save_model(folder, {"up.weight": q}, dialect="compressed-tensors", config={"model_type": "llama"})
        >>> sorted(nf.files.open_checkpoint(folder).tensors)
        ['up.weight_global_scale', 'up.weight_packed', 'up.weight_scale']
    """
    if not isinstance(arrays, Mapping):
        raise DTypeError(message(_OP, "a mapping of names to arrays", type(arrays).__name__, "pass a dict"))
    if dialect is None:
        own = "nvfp" if any(isinstance(value, QuantizedArray) for value in _values(arrays)) else "plain"
        dialect = arrays.dialect if isinstance(arrays, Checkpoint) else own
    chosen_dialect(_OP, dialect)
    unchanged = isinstance(arrays, Checkpoint) and arrays.dialect == dialect and bool(DIALECTS[dialect].layouts)
    stated: tuple[Path, ...] = ()
    if isinstance(arrays, Checkpoint):
        config = arrays.config if config is None else config
        beside = None if arrays.path is None else arrays.path / "hf_quant_config.json"
        stated = (beside,) if unchanged and beside is not None and beside.is_file() else ()
    write_model(
        Path(path), _Given(arrays), chosen_dialect(_OP, dialect), config, size_of(shard_size), unchanged, stated
    )


def write_model(
    path: Path,
    source: Source,
    dialect: Dialect,
    config: Mapping[str, Any] | None,
    shard_size: int,
    unchanged: bool = False,
    others: tuple[Path, ...] = (),
) -> None:
    """Write a folder in a temporary place, then rename it. See `save_model`.

    Args:
        path: of the folder.
        source: the arrays.
        dialect: how they are spelled.
        config: content of ``config.json``, or None for no such file.
        shard_size: most bytes of tensors in one file.
        unchanged: keep its ``quantization_config`` too.
        others: files to copy.

    Raises:
        FileExistsError: the folder exists.
    """
    if path.exists():
        raise FileExistsError(message(_OP, "a folder that does not exist", path, "remove it, or choose another name"))
    if not path.parent.is_dir():
        raise FileNotFoundError(message(_OP, "a folder to write in", path.parent, "make it first"))
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as place:
        folder = Path(place) / path.name
        folder.mkdir()  # with the rights of any new folder; the one around it keeps others out
        writer = _Writer(folder, dialect, shard_size)
        names = list(source.names())
        for name in sorted(
            names, key=lambda n: str(n).endswith(_STATIC)
        ):  # input scales ask for the row of their weight
            writer.add(name, source)
        written = writer.finish()
        files: dict[str, Any] = {} if dialect.files is None or not written.rows else dict(dialect.files(written))
        if config is not None or written.rows:
            files["config.json"] = dict(config or {}) if unchanged else _config(config or {}, dialect, written)
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        for other in others:
            shutil.copyfile(other, folder / other.name)
        folder.rename(path)


def chosen_dialect(op: str, name: Any) -> Dialect:
    """Return a dialect by name.

    Args:
        op: for messages.
        name: of `DIALECTS`.

    Raises:
        ArgumentError: another one.
    """
    if name not in DIALECTS:
        raise ArgumentError(message(op, f"a dialect out of {sorted(DIALECTS)}", repr(name), "name one of these"))
    return DIALECTS[name]


def size_of(given: int | str) -> int:
    """Return a number of bytes.

    Args:
        given: a number, or one with KB, MB, GB, TB, KiB, MiB or GiB behind it.

    Raises:
        ArgumentError: something else, or less than 1.

    Example:
        >>> size_of("5GB"), size_of("1.5 KiB"), size_of(7)
        (5000000000, 1536, 7)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?B?)\s*", str(given), re.IGNORECASE)
    unit = found.group(2).upper() if found else None
    if not found or isinstance(given, bool) or unit not in _UNITS or float(found.group(1)) * _UNITS[unit] < 1:
        raise ArgumentError(message(_OP, "shard_size as bytes, or like '5GB'", repr(given), "pass a positive size"))
    return int(float(found.group(1)) * _UNITS[unit])


class _Writer:
    """Fills files up to their size; keeps what the configuration and the index are written from."""

    def __init__(self, folder: Path, dialect: Dialect, shard_size: int) -> None:
        self.folder, self.dialect, self.shard_size = folder, dialect, shard_size
        self.tensors: dict[str, np.ndarray] = {}
        self.spelled: dict[str, Any] = {}
        self.plain: list[str] = []
        self.files: list[list[str]] = []
        self.total = 0
        self.rows: dict[str, tuple[Row, Layout | None]] = {}
        self.dense: list[str] = []
        self.static: set[str] = set()

    def add(self, name: Any, source: Source) -> None:
        if not isinstance(name, str) or name in ("", "__metadata__"):
            raise ArgumentError(message(_OP, "names as str", repr(name), "rename this array"))
        whole = source.kept(name, self.dialect.name)
        if whole is not None:
            tensors, row = whole
            self._keep(name, row, next(iter(tensors.values())))
        else:
            tensors = self._spell(name, source.array(name))
        size = sum(t.nbytes for t in tensors.values())
        if self.tensors and size + sum(t.nbytes for t in self.tensors.values()) > self.shard_size:
            self.flush()
        taken = [t for t in tensors if t in self.tensors or any(t in file for file in self.files)]
        if taken:
            do = "rename one of the arrays"
            raise ArgumentError(message(_OP, "names that are free", f"{taken} twice, once for {name}", do))
        self.tensors.update(tensors)

    def _keep(self, name: str, row: Row | None, value: np.ndarray) -> None:
        if row is not None:
            layout = next((known for known in self.dialect.layouts if known.kind == row.layout), None)
            self.rows[row.module] = (row, layout)
        elif name.endswith(_STATIC):
            self.static.add(name.removesuffix(_STATIC))
        elif name.endswith(".weight") and value.ndim > 1:
            self.dense.append(_module(name))

    def _spell(self, name: str, value: Any) -> dict[str, np.ndarray]:
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
        module = name.removesuffix(_STATIC)
        if name.endswith(_STATIC) and module in self.rows and self.dialect.inputs:
            _, layout = self.rows[module]
            part = self.dialect.inputs[-1 if layout is not None and layout.bits == 4 else 0]
            self.static.add(module)
            return {part.name(module): in_file(part, host.astype(np.float32))}
        self._keep(name, None, host)
        self.plain.append(name)
        return {name: host}

    def _quantized(self, name: str, q: QuantizedArray) -> dict[str, np.ndarray]:
        if self.dialect.spell is not None:
            tensors, entry = self.dialect.spell(name, q)
            self.spelled[name] = entry
            kind = entry.get("_type", self.dialect.name)
            self.rows[_module(name)] = (Row(_module(name), kind, q.dtype, q.shape), None)
            return tensors
        layout = next((row for row in self.dialect.layouts if row.holds(q.dtype)), None)
        if layout is None:
            kinds = [row.kind for row in self.dialect.layouts]
            do = "quantize it to another dtype, or choose dialect nvfp"
            got = f"{name} as {q.dtype}"
            raise FileFormatError(message(_OP, f"dtypes of dialect {self.dialect.name} ({kinds})", got, do))
        parts = layout.written(*parts_of(name, q))
        self.rows[_module(name)] = (Row(_module(name), layout.kind, q.dtype, q.shape), layout)
        return {layout.parts[role].name(name): np.ascontiguousarray(value) for role, value in parts.items()}

    def flush(self) -> None:
        """Write one file under a number; `finish` gives it its name."""
        metadata = {"format": "pt"}  # transformers wants to see it
        if self.dialect.collect is not None:
            metadata.update(self.dialect.collect(self.spelled, self.plain))
        write_tensors(self.folder / f"{len(self.files)}.part", self.tensors, metadata)
        self.total += sum(t.nbytes for t in self.tensors.values())
        self.files.append(list(self.tensors))
        self.tensors, self.spelled, self.plain = {}, {}, []

    def finish(self) -> Written:
        if self.tensors or not self.files:
            self.flush()
        count = len(self.files)
        names = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
        names = names if count > 1 else ["model.safetensors"]
        for i, name in enumerate(names):
            (self.folder / f"{i}.part").rename(self.folder / name)
        if count > 1:
            places = {tensor: name for name, file in zip(names, self.files, strict=True) for tensor in file}
            index = {"metadata": {"total_size": self.total}, "weight_map": dict(sorted(places.items()))}
            (self.folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        rows = tuple(row for row, _ in self.rows.values())
        return Written(rows, tuple(self.dense), frozenset(self.static & set(self.rows)), _producer())


def _config(config: Mapping[str, Any], dialect: Dialect, written: Written) -> dict[str, Any]:
    found = {key: value for key, value in config.items() if key not in ("quantization_config", "compression_config")}
    if written.rows:
        found["quantization_config"] = dict(dialect.config(written))
    return found


def _producer() -> dict[str, str]:
    try:
        return {"name": "nvfp", "version": version("nvfp")}
    except PackageNotFoundError:
        return {"name": "nvfp", "version": "0"}


def _module(name: str) -> str:
    return name.removesuffix(".weight")


def _values(arrays: Mapping[str, Any]) -> Iterator[Any]:
    return iter(()) if isinstance(arrays, Checkpoint) else iter(arrays.values())
