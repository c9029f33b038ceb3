"""One array of a checkpoint: where its parts lie and how they become codes, scales and a tensor scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from nvfp.dtypes.dense import DType, float32
from nvfp.dtypes.elements import float8_e8m0fnu
from nvfp.dtypes.formats import QuantDType
from nvfp.errors import FileFormatError, message
from nvfp.files.dialects.layout import Layout, inverse
from nvfp.files.header import DTYPES, TensorEntry

Fetch = Callable[[str], np.ndarray]


@dataclass(frozen=True)
class Entry:
    """A name of a checkpoint.

    Attributes:
        name: of the array.
        kind: row of the dialect; ``"dense"`` or ``"input scale"``.
        dtype: dense or quantized.
        shape: in elements.
        parts: role -> tensor of the file.
        nbytes: of all parts.
        axis: the block axis.
        arrange: puts fetched parts into the order and senses of nvfp; in place.
    """

    name: str
    kind: str
    dtype: DType | None
    shape: tuple[int, ...]
    parts: Mapping[str, str]
    nbytes: int
    axis: int = -1
    arrange: Callable[[dict[str, np.ndarray]], None] = field(default=lambda parts: None)

    def arrays(self, fetch: Fetch) -> dict[str, np.ndarray]:
        """Return the parts by role, as nvfp has them: decode factors, scales one per block.

        Args:
            fetch: returns a tensor of the file.

        Raises:
            FileFormatError: a tensor scale whose inverse is no factor.
        """
        found = {role: fetch(name) for role, name in self.parts.items()}
        self.arrange(found)
        return found


def dense_entry(entry: TensorEntry) -> Entry:
    """Return the entry of a tensor that is read as it is.

    Args:
        entry: in the file.
    """
    return Entry(entry.name, "dense", DTYPES[entry.dtype], entry.shape, {"value": entry.name}, entry.nbytes)


def input_entry(module: str, entry: TensorEntry, inverted: bool) -> Entry:
    """Return the entry ``<module>.input_scale``: the decode factor of a layer's input.

    Args:
        module: the layer.
        entry: in the file.
        inverted: whether the file holds 1 / factor.
    """

    def arrange(parts: dict[str, np.ndarray]) -> None:
        value = parts["value"].astype(np.float32)
        parts["value"] = _factor(entry.name, inverse(value) if inverted else value)

    shape = () if _single(entry.shape) else entry.shape
    return Entry(
        f"{module}.input_scale", "input scale", float32, shape, {"value": entry.name}, entry.nbytes, arrange=arrange
    )


def quantized_entry(
    whole: str,
    layout: Layout,
    tensors: Mapping[str, TensorEntry],
    fit: tuple[QuantDType, tuple[int, ...]],
) -> Entry:
    """Return the entry of a quantized array that a row spells.

    Args:
        whole: its name.
        layout: the row.
        tensors: of the file.
        fit: its dtype, and the shape of its scales.
    """
    dtype, scales = fit
    names = {role: part.name(whole) for role, part in layout.parts.items()}
    shape = layout.shape(tensors[names["codes"]])

    def arrange(parts: dict[str, np.ndarray]) -> None:
        parts["codes"] = parts["codes"].reshape(*shape[:-1], -1) if layout.folded else parts["codes"]
        parts["scale"] = as_scale(parts["scale"], dtype).reshape(scales)
        if layout.tensor_scale is not None:
            word = parts["tensor_scale"].astype(np.float32)
            word = _factor(names["tensor_scale"], inverse(word) if layout.tensor_scale.inverse else word)
            parts["tensor_scale"] = _per_row(word, shape) if dtype.per_row_tensor_scale else word

    nbytes = sum(tensors[name].nbytes for name in names.values())
    return Entry(whole, layout.kind, dtype, shape, names, nbytes, len(shape) - 1, arrange)


def as_scale(found: np.ndarray, dtype: QuantDType) -> np.ndarray:
    """Return block scales in the scale dtype: E8M0 bytes as they are, 16-bit floats widened to float32 exactly.

    Args:
        found: as in the file.
        dtype: of the array.
    """
    if dtype.scale == float8_e8m0fnu:
        return found.view(np.uint8)
    return found.astype(np.float32, copy=False) if dtype.scale.dtype == float32 else found


def _single(shape: tuple[int, ...]) -> bool:
    return all(n == 1 for n in shape)


def _factor(name: str, value: np.ndarray) -> np.ndarray:
    if not ((value >= 0) & (value < np.inf)).all():
        do = "quantize the weight anew"
        raise FileFormatError(message("open_checkpoint", "finite decode factors", f"{value.flat[0]} of {name}", do))
    return value.reshape(()) if _single(value.shape) else value


def _per_row(word: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(word.reshape(-1, 1), shape[:-1]))
