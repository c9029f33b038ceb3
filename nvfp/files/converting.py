"""`convert_model`: a model's folder in another dtype and dialect, a tensor at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.convert import asnumpy
from nvfp.arrays.functions.quantization import quantize
from nvfp.arrays.quantized import QuantizedArray
from nvfp.dtypes.dense import DType, as_dtype, float32
from nvfp.dtypes.formats import QuantDType
from nvfp.dtypes.scales import tensor_scale_from_amax
from nvfp.errors import DTypeError, FileFormatError, message
from nvfp.files.dialects import geometry
from nvfp.files.dialects.dialect import Row
from nvfp.files.dialects.entry import Entry
from nvfp.files.dialects.layout import in_file, inverse
from nvfp.files.dialects.reading import DIALECTS
from nvfp.files.models import Checkpoint, Patterns, chosen, open_checkpoint
from nvfp.files.writing import chosen_dialect, kept, size_of, write_model
from nvfp.kernels.amax import amax
from nvfp.optional import has, need

_OP = "convert_model"
KEEP = ("*embed*", "*lm_head*", "*norm*", "*router*", "*.gate.weight", "*wte*", "*wpe*")
_OWN = ("config.json", "hf_quant_config.json")
_WEIGHTS = (
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".pt",
    ".pth",
    ".gguf",
    ".h5",
    ".msgpack",
)
_FLOATS = tuple(as_dtype(name) for name in ("float32", "bfloat16", "float16", "float64"))


def convert_model(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    dtype: Any,
    *,
    dialect: str | None = None,
    include: Patterns = None,
    exclude: Patterns = None,
    device: Any = None,
    shard_size: int | str = "5GB",
    progress: bool = False,
) -> None:
    """Quantize (or expand) the matrices of a model's folder and write them in the dialect of a stack.

    A tensor is read, converted on ``device`` and written before the next one; the other files of the folder (tokenizer,
    generation settings) are copied; ``quantization_config`` is written anew.

    Args:
        source: folder in any dialect that `open_checkpoint` understands.
        target: a folder that does not exist yet; it appears when everything is written.
        dtype: a quantized dtype for the chosen matrices, or a dense one for every quantized array.
        dialect: as in `save_model`. By default ``"compressed-tensors"`` for the dtypes that it has, else ``"nvfp"``;
            ``"plain"`` for a dense dtype.
        include: patterns of names to convert. By default matrices and stacks of them: ``*.weight``, and the arrays that
            are quantized in ``source``.
        exclude: patterns of names to leave as they are, beside those of ``source``'s ignore list; by default
            embeddings, heads, norms and routers.
        device: where it is computed; the default device unless given.
        shard_size: most bytes of tensors in one file.
        progress: show a bar, if tqdm is installed.

    Raises:
        FileExistsError: the target exists.
        FileNotFoundError: no source.
        FileFormatError: a source that is not understood, or an array that the dialect cannot hold.
        ArgumentError: an unknown dialect, patterns or a size that are none.
        DTypeError: a dtype that nvfp does not have, or no float.

    Numerics:
        Float arrays are quantized as `nf.quantize` does; quantized ones are expanded to float32 first, except those
        that have the dtype already, whose bits are kept. For a dialect that stores the inverse of the tensor scale, the
        scale is rounded first to one that the file holds exactly.

    Example:
        >>> import os, tempfile, nvfp as nf
        >>> folder = tempfile.mkdtemp()
        >>> a, b = os.path.join(folder, "a"), os.path.join(folder, "b")
        >>> nf.files.save_model(a, {"up.weight": nf.ones((4, 32), device="cpu")}, config={"model_type": "llama"})
        >>> convert_model(a, b, nf.nvfp4, dialect="modelopt", device="cpu")
        >>> nf.files.open_checkpoint(b).dialect
        'modelopt'
    """
    wanted = as_dtype(dtype)
    if not isinstance(wanted, QuantDType) and wanted not in _FLOATS:
        do = "pass a quantized dtype, or float32, bfloat16, float16"
        raise DTypeError(message(_OP, "a float dtype to convert to", wanted, do))
    place = Path(source)
    checkpoint = open_checkpoint(place, device=device)
    name = dialect or _default_dialect(wanted)
    names = _to_convert(checkpoint, wanted, include, exclude)
    others = tuple(sorted(filter(_is_other, place.iterdir()))) if place.is_dir() else ()
    options: dict[str, Any] = {"config": checkpoint.config, "shard_size": size_of(shard_size), "others": others}
    with _bar(checkpoint, str(wanted), progress) as advance:
        work = _Conversion(checkpoint, wanted, frozenset(names), name, advance)
        write_model(Path(target), work, chosen_dialect(_OP, name), **options)


@dataclass(frozen=True)
class _Conversion:
    """The arrays of a checkpoint, converted when they are asked for."""

    checkpoint: Checkpoint
    dtype: DType
    chosen: frozenset[str]
    dialect: str
    advance: Callable[[int], Any]

    def names(self) -> Iterator[str]:
        return iter(self.checkpoint)

    def array(self, name: str) -> Array:
        found = self.checkpoint[name]
        if name in self.chosen:
            found = self._converted(found)
        self.advance(self.checkpoint.entries[name].nbytes)
        return found

    def kept(self, name: str, dialect: str) -> tuple[dict[str, np.ndarray], Row | None] | None:
        entry = self.checkpoint.entries[name]
        if name in self.chosen and not _is_already(entry, self.dtype):
            return None
        if entry.kind == "input scale" and f"{name.removesuffix('.input_scale')}.weight" in self.chosen:
            return None  # the row of its weight may be another now
        found = kept(self.checkpoint, name, dialect)
        if found is not None:
            self.advance(self.checkpoint.entries[name].nbytes)
        return found

    def _converted(self, found: Array) -> Array:
        if not isinstance(self.dtype, QuantDType):
            return found.astype(self.dtype)
        if isinstance(found, QuantizedArray):
            if geometry.same(found.dtype, self.dtype) and found.axis == found.ndim - 1:
                return found
            found = found.astype(float32)
        if self.dtype.per_row_tensor_scale or not _inverted(self.dialect, self.dtype):
            return quantize(found, self.dtype)
        largest: Any = asnumpy(wrap(amax(found.raw, finite=True)))
        word = tensor_scale_from_amax(largest, self.dtype.element, self.dtype.scale, self.dtype.scale_bound)
        return quantize(found, self.dtype, tensor_scale=_held(self.dialect, self.dtype, word))


@contextmanager
def _bar(checkpoint: Checkpoint, words: str, wanted: bool) -> Iterator[Callable[[int], Any]]:
    """A progress bar's ``update`` by bytes; nothing where none is wanted or tqdm is not installed."""
    if not (wanted and has("tqdm")):
        yield lambda nbytes: None
        return
    total = sum(entry.nbytes for entry in checkpoint.entries.values())
    with need("tqdm", extra="plot").tqdm(total=total, desc=f"to {words}", unit="B", unit_scale=True) as bar:
        yield bar.update


def _held(dialect: str, dtype: QuantDType, word: np.ndarray) -> float:
    """The tensor scale that a file of a dialect gives back for ``word``."""
    part = next(row.tensor_scale for row in DIALECTS[dialect].layouts if row.holds(dtype))
    assert part is not None
    return float(inverse(in_file(part, word)).reshape(-1)[0]) if word > 0 else float(word)


def _inverted(dialect: str, dtype: QuantDType) -> bool:
    parts = [row.tensor_scale for row in DIALECTS[dialect].layouts if row.holds(dtype)]
    return bool(parts) and parts[0] is not None and parts[0].inverse


def _default_dialect(dtype: DType) -> str:
    if not isinstance(dtype, QuantDType):
        return "plain"
    layouts = DIALECTS["compressed-tensors"].layouts
    return "compressed-tensors" if any(row.holds(dtype) for row in layouts) else "nvfp"


def _to_convert(checkpoint: Checkpoint, dtype: DType, include: Patterns, exclude: Patterns) -> list[str]:
    entries = checkpoint.entries
    dense = not isinstance(dtype, QuantDType)
    names = chosen(_OP, entries, include, exclude if exclude is not None or dense else KEEP)
    if include is not None:
        wrong = [n for n in names if not _is_matrix(entries[n]) and not dense]
        if wrong:
            got, do = f"{wrong[0]} {entries[wrong[0]].dtype} {entries[wrong[0]].shape}", "narrow include, or exclude it"
            raise FileFormatError(message(_OP, "float matrices to quantize", got, do))
        return names
    quantized = [n for n in names if isinstance(entries[n].dtype, QuantDType)]
    if dense:
        return quantized
    plan = checkpoint.plan
    return [
        n for n in names
        if n in quantized
        or (n.endswith(".weight") and _is_matrix(entries[n]) and not plan.ignored(n.removesuffix(".weight")))
    ]  # fmt: skip


def _is_matrix(entry: Entry) -> bool:
    floating = isinstance(entry.dtype, QuantDType) or entry.dtype in _FLOATS
    return floating and entry.kind != "input scale" and len(entry.shape) > 1 and 0 not in entry.shape


def _is_already(entry: Entry, dtype: DType) -> bool:
    both = isinstance(entry.dtype, QuantDType) and isinstance(dtype, QuantDType)
    return both and geometry.same(entry.dtype, dtype)  # type: ignore[arg-type]


def _is_other(path: Path) -> bool:
    return path.is_file() and path.name not in _OWN and not path.name.endswith(_WEIGHTS)
