"""The tensors of a model that lies in one safetensors file or in many, with or without an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nvfp.errors import FileFormatError, message
from nvfp.files.header import TensorEntry, array_of, map_file, read_header

INDEX = "model.safetensors.index.json"
_OP = "open_checkpoint"


class Shards:
    """Tensors by name, over the mapped bytes of their files.

    Attributes:
        entries: name -> where it lies.
        metadata: string pairs of each file, in the order of the files.
    """

    def __init__(self, contents: Mapping[str, Any], weight_map: Mapping[str, str] | None = None) -> None:
        """Read every header.

        Args:
            contents: file name -> its bytes.
            weight_map: tensor name -> file, from an index; it decides where a name is in two files.

        Raises:
            FileFormatError: a damaged file, a tensor in two files, or one that is not in the file the index names.
        """
        self._contents = dict(contents)
        self.entries: dict[str, TensorEntry] = {}
        self.metadata: list[dict[str, str]] = []
        places = weight_map or {}
        for file, content in self._contents.items():
            found, metadata = read_header(content, file)
            self.metadata.append(metadata)
            for name, entry in found.items():
                if places.get(name, file) != file:
                    continue
                if name in self.entries:
                    got = f"{name} in {self.entries[name].file} and {file}"
                    raise FileFormatError(message(_OP, "each tensor in one file", got, "remove one, or add an index"))
                self.entries[name] = entry
        lost = [f"{name} ({file})" for name, file in places.items() if name not in self.entries]
        if lost:
            raise FileFormatError(message(_OP, "the tensors of the index", f"none of {_few(lost)}", "fetch the files"))

    def array(self, name: str) -> np.ndarray:
        """Return one tensor of the files.

        Args:
            name: of `entries`.

        Raises:
            FileFormatError: a dtype that no array stands for.
        """
        entry = self.entries[name]
        return array_of(self._contents[entry.file], entry)


def open_shards(path: Path) -> Shards:
    """Map the files of a folder (or one file): those of its index, else ``model.safetensors``, else all of them.

    Args:
        path: folder or file.

    Raises:
        FileNotFoundError: no such path, or no safetensors file in it.
        FileFormatError: damaged files or index.
    """
    if path.is_file():
        return Shards({path.name: map_file(path)})
    weight_map = _index(path / INDEX) if (path / INDEX).is_file() else None
    if weight_map is not None:
        files = list(dict.fromkeys(weight_map.values()))
    elif (path / "model.safetensors").is_file():
        files = ["model.safetensors"]
    else:
        files = sorted(file.name for file in path.glob("*.safetensors"))
    if not path.is_dir() or (not files and weight_map is None):
        raise FileNotFoundError(message(_OP, "a folder or file of safetensors", path, "check the path"))
    return Shards({file: map_file(path / file) for file in files}, weight_map)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        path: the file.

    Raises:
        FileFormatError: no JSON, or no object.
    """
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(message(_OP, f"JSON in {path.name}", type(error).__name__, "mend the file")) from error
    if not isinstance(found, dict):
        got = type(found).__name__
        raise FileFormatError(message(_OP, f"a JSON object in {path.name}", got, "mend the file"))
    return found


def _index(path: Path) -> dict[str, str]:
    places = read_json(path).get("weight_map")
    named = isinstance(places, dict) and all(isinstance(file, str) for file in places.values())
    if not isinstance(places, dict) or not named or any(Path(f).name != f or f in ("", "..") for f in places.values()):
        do = "name files of the folder itself"
        raise FileFormatError(message(_OP, f"weight_map: tensor to file in {path.name}", "something else", do))
    return places


def _few(names: list[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
