"""`open_checkpoint` and `load_model`: the weights of a model as nvfp arrays, from whatever stack wrote them."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nvfp.arrays.array import Array
from nvfp.arrays.convert import asarray
from nvfp.arrays.creation import on_device
from nvfp.arrays.functions.conversion import to_device
from nvfp.arrays.quantized import QuantizedArray
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import ArgumentError, DTypeError, FileFormatError, NvfpError, message
from nvfp.files.dialects.entry import Entry
from nvfp.files.dialects.reading import explain
from nvfp.files.header import TensorEntry
from nvfp.files.quant_config import Plan, plan_of, read_plan
from nvfp.files.shards import Shards, open_shards

_OP = "open_checkpoint"
Patterns = str | Sequence[str] | None


class Checkpoint(Mapping[str, Array]):
    """The arrays of a model on disk by name; each is read from its mapped file when it is asked for.

    A quantized weight is a `QuantizedArray` under the name of the weight; its codes and scales have no names of their
    own. A static activation scale is ``<module>.input_scale``, always the decode factor. All else is a dense array.

    Attributes:
        path: folder or file.
        dialect: name of the dialect that the files are written in, ``"plain"`` without quantized weights.
        config: content of ``config.json``.
        plan: what that says about quantization; ``plan.ignore`` lists the modules left in high precision.
        entries: name -> kind, dtype, shape, parts and bytes, without reading data.

    Example:
        >>> import os, tempfile, nvfp as nf
        >>> folder = os.path.join(tempfile.mkdtemp(), "model")
        >>> q = nf.ones((2, 32), device="cpu").astype(nf.nvfp4)
        >>> nf.files.save_model(folder, {"up.weight": q}, dialect="modelopt")
        >>> checkpoint = nf.files.open_checkpoint(folder, device="cpu")
        >>> checkpoint.dialect, list(checkpoint), checkpoint["up.weight"].dtype
        ('modelopt', ['up.weight'], nvfp.nvfp4)
    """

    def __init__(
        self, shards: Shards, config: Mapping[str, Any], plan: Plan, *, path: Path | None = None, device: Any = None
    ) -> None:
        """Find out what the tensors are. See `open_checkpoint`.

        Args:
            shards: tensors of the files.
            config: content of ``config.json``.
            plan: what that says about quantization.
            path: where they lie.
            device: where arrays go.
        """
        self.path, self.config, self.plan, self._shards, self._device = path, dict(config), plan, shards, device
        self.dialect, self.entries = explain(shards, plan)

    @property
    def tensors(self) -> Mapping[str, TensorEntry]:
        """The tensors of the files as they are, by their own names."""
        return self._shards.entries

    def raw(self, name: str) -> dict[str, np.ndarray]:
        """Return the tensors of the files that an array is made of, as they are.

        Args:
            name: of the array.

        Raises:
            KeyError: no such array.
            FileFormatError: a dtype that no NumPy array stands for.
        """
        return {part: self._shards.array(part) for part in self._entry(name).parts.values()}

    def __getitem__(self, name: str) -> Array:
        entry = self._entry(name)
        try:
            parts = entry.arrays(self._shards.array)
            if not isinstance(entry.dtype, QuantDType):
                return asarray(parts["value"], device=self._device)
            return to_device(_quantized(entry, parts), on_device(self._device))
        except (NvfpError, ValueError) as error:
            if isinstance(error, FileFormatError):
                raise
            got = f"{name} ({' '.join(str(error).split())[:300]})"
            raise FileFormatError(message(_OP, "codes and scales of one array", got, "write the file anew")) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __repr__(self) -> str:
        nbytes = sum(entry.nbytes for entry in self.entries.values())
        return f"<Checkpoint {self.path or ''}: {self.dialect}, {len(self)} arrays, {nbytes} bytes>"

    def _entry(self, name: str) -> Entry:
        if name not in self.entries:
            near = [n for n in self.entries if n.rpartition(".")[0] == name.rpartition(".")[0]][:6]
            raise KeyError(message(_OP, "the name of an array", repr(name), f"pick one, e.g. of {near}"))
        return self.entries[name]


def open_checkpoint(path: str | os.PathLike[str], *, device: Any = None) -> Checkpoint:
    """Open the safetensors files of a model, quantized or not, without reading its data.

    Understood are plain files, DeepSeek's FP8, compressed-tensors (FP8, NVFP4, MXFP4, MXFP8), NVIDIA ModelOpt (FP8,
    NVFP4, MXFP8, MXFP4), gpt-oss (MXFP4), torchao (FP8, MXFP8, MXFP4, NVFP4) and what `nf.save` writes:
    docs/checkpoints.md.

    Args:
        path: a folder (with ``model.safetensors.index.json``, ``config.json``, ``hf_quant_config.json`` where there are
            some), or one file.
        device: where arrays go; the default device unless given.

    Returns:
        A mapping of names to arrays.

    Raises:
        FileNotFoundError: no such path, or no safetensors file in it.
        FileFormatError: damaged files; narrow codes without their scale; a scale that belongs to nothing, or two for
            one weight; shapes that do not belong together; a configuration that contradicts the tensors or that nvfp
            does not read. The message lists what was found.
        DTypeError: a path that is none.

    Numerics:
        No code and no scale is changed. A tensor scale that the files hold as its inverse g is fl32(1/g); 16-bit scales
        are widened.

    Example:
        >>> import os, tempfile, nvfp as nf
        >>> folder = os.path.join(tempfile.mkdtemp(), "model")
        >>> nf.files.save_model(folder, {"norm.weight": nf.ones((4,), device="cpu")})
        >>> nf.files.open_checkpoint(folder, device="cpu")["norm.weight"]
        nf.array([1., 1., 1., 1.])
    """
    if not isinstance(path, str | os.PathLike):
        raise DTypeError(message(_OP, "a path as str or os.PathLike", type(path).__name__, "pass the folder"))
    place = Path(path)
    shards = open_shards(place)
    config, plan = read_plan(place) if place.is_dir() else ({}, plan_of({}))
    return Checkpoint(shards, config, plan, path=place, device=device)


def load_model(
    path: str | os.PathLike[str], *, device: Any = None, include: Patterns = None, exclude: Patterns = None
) -> dict[str, Array]:
    """Read the arrays of a model into memory. See `open_checkpoint` for what is understood.

    Args:
        path: folder or file.
        device: where the arrays go; the default device unless given.
        include: patterns of names (``"model.layers.0.*"``), or one; all by default.
        exclude: patterns of names to leave out.

    Returns:
        Name -> Array or QuantizedArray.

    Raises:
        FileNotFoundError: no such path.
        FileFormatError: see `open_checkpoint`.
        ArgumentError: patterns that are no strings.

    Example:
        >>> import os, tempfile, nvfp as nf
        >>> folder = os.path.join(tempfile.mkdtemp(), "model")
        >>> nf.files.save_model(folder, {"a.weight": nf.ones((2, 2), device="cpu"), "b": nf.ones((1,), device="cpu")})
        >>> list(load_model(folder, include="*.weight"))
        ['a.weight']
    """
    checkpoint = open_checkpoint(path, device=device)
    return {name: checkpoint[name] for name in chosen("load_model", checkpoint, include, exclude)}


def chosen(op: str, names: Iterator[str] | Mapping[str, Any], include: Patterns, exclude: Patterns) -> list[str]:
    """Return the names that a pattern of ``include`` fits and none of ``exclude``.

    Args:
        op: for messages.
        names: to choose from.
        include: patterns, one, or None for all.
        exclude: patterns, one, or None for none.

    Raises:
        ArgumentError: patterns that are no strings.

    Example:
        >>> chosen("load_model", {"a.weight": 0, "a.bias": 0, "b.weight": 0}, "*.weight", ["b.*"])
        ['a.weight']
    """
    wanted, unwanted = patterns(op, "include", include), patterns(op, "exclude", exclude)
    return [
        name
        for name in names
        if (wanted is None or _fits(name, wanted)) and not (unwanted is not None and _fits(name, unwanted))
    ]


def patterns(op: str, argument: str, given: Patterns) -> tuple[str, ...] | None:
    """Return patterns as a tuple.

    Args:
        op: for messages.
        argument: its name.
        given: patterns, one, or None.

    Raises:
        ArgumentError: something else.
    """
    if given is None:
        return None
    found = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(pattern, str) for pattern in found):
        raise ArgumentError(message(op, f"{argument} as patterns of names", repr(given), "pass e.g. '*.mlp.*'"))
    return found


def _fits(name: str, wanted: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)


def _quantized(entry: Entry, parts: Mapping[str, np.ndarray]) -> QuantizedArray:
    codes, scale = (asarray(parts[role], device="cpu") for role in ("codes", "scale"))
    word = parts.get("tensor_scale")
    return QuantizedArray.from_parts(
        codes, scale, entry.dtype, axis=entry.axis, shape=entry.shape,
        tensor_scale=None if word is None else asarray(word, device="cpu"),
    )  # fmt: skip
