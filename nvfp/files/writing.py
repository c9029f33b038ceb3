"""`save_model`: the weights of a model in the dialect of another stack, with its configuration."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nvfp.arrays.quantized import QuantizedArray
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, DTypeError, message
from nvfp.files._writer import STATIC, Source, Writer, module_of
from nvfp.files.dialects.dialect import Dialect, Row, Written
from nvfp.files.dialects.reading import DIALECTS
from nvfp.files.models import Checkpoint

_OP = "save_model"
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


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
    row = Row(module_of(name), entry.kind, entry.dtype, entry.shape) if quantized else None  # type: ignore[arg-type]
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
        writer = Writer(folder, dialect, shard_size)
        names = list(source.names())
        for name in sorted(
            names, key=lambda n: str(n).endswith(STATIC)
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


def _config(config: Mapping[str, Any], dialect: Dialect, written: Written) -> dict[str, Any]:
    found = {key: value for key, value in config.items() if key not in ("quantization_config", "compression_config")}
    if written.rows:
        found["quantization_config"] = dict(dialect.config(written))
    return found


def _values(arrays: Mapping[str, Any]) -> Iterator[Any]:
    return iter(()) if isinstance(arrays, Checkpoint) else iter(arrays.values())
