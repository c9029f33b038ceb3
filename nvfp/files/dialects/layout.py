"""How a dialect spells a quantized tensor: rows of names, dtypes and senses; and the two directions through one row.

A row says which tensors of a file are the codes, the block scales and the tensor scale of one array, in which dtypes
they lie there and whether the tensor scale is stored as its inverse. Nothing else in this room knows a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from nvfp.dtypes.formats import QuantDType
from nvfp.errors import FileFormatError, message
from nvfp.files.dialects.geometry import Found, plain_tensor_scale
from nvfp.files.header import TensorEntry
from nvfp.files.quant_config import Rule

FLOATS = ("F32", "BF16", "F16")
_BLOCK = 16  # bytes of a block that has an axis of its own


@dataclass(frozen=True)
class Part:
    """One tensor of a quantized one.

    Attributes:
        pattern: its name: ``{}`` for the name of the whole (``model.layers.0.mlp.up_proj.weight``), and what follows.
        dtypes: what it may be in a file; the first is written.
        inverse: whether the file holds 1 / value.
        single: shape of a single value in the file.
    """

    pattern: str
    dtypes: tuple[str, ...]
    inverse: bool = False
    single: tuple[int, ...] = ()

    def name(self, whole: str) -> str:
        """Return the name of this part.

        Args:
            whole: of the quantized tensor.
        """
        return whole + self.pattern[2:]

    def whole(self, name: str) -> str | None:
        """Return the name of the quantized tensor that ``name`` would be this part of.

        Args:
            name: of a tensor in the file.
        """
        suffix = self.pattern[2:]
        return name.removesuffix(suffix) if name.endswith(suffix) and len(name) > len(suffix) else None


@dataclass(frozen=True)
class Layout:
    """A row: one kind of quantized tensor in one dialect.

    Attributes:
        kind: name of the row, in the dialect's words where it has some.
        codes: packed or plain codes.
        scale: block scales.
        tensor_scale: float32 factor, or None where the kind has none.
        fit: (shape in elements, what the file says of the scales, rule of the configuration) -> (dtype, shape of its
            scales); raises what is wrong.
        holds: whether an array of a dtype is written by this row.
        folded: whether codes have an axis per block, ``[..., blocks, bytes]``.
        bits: of a code, to be compared with the configuration.
    """

    kind: str
    codes: Part
    scale: Part
    tensor_scale: Part | None
    fit: Callable[[Found, Rule], tuple[QuantDType, tuple[int, ...]]]
    holds: Callable[[QuantDType], bool]
    folded: bool = False
    bits: int = 4

    @property
    def parts(self) -> dict[str, Part]:
        """The parts by role: ``codes``, ``scale`` and, where there is one, ``tensor_scale``."""
        found = {"codes": self.codes, "scale": self.scale}
        return found if self.tensor_scale is None else {**found, "tensor_scale": self.tensor_scale}

    def claim(self, entry: TensorEntry, tensors: Mapping[str, TensorEntry]) -> str | None:
        """Return the name of the quantized tensor whose codes ``entry`` is, if all its parts are there.

        Args:
            entry: a tensor of the file.
            tensors: all of them.
        """
        whole = self.codes.whole(entry.name) if entry.dtype in self.codes.dtypes else None
        if whole is None:
            return None
        others = [p for role, p in self.parts.items() if role != "codes"]
        names = [(tensors.get(p.name(whole)), p.dtypes) for p in others]
        return whole if all(t is not None and t.dtype in dtypes for t, dtypes in names) else None

    def shape(self, codes: TensorEntry) -> tuple[int, ...]:
        """Return the shape in elements.

        Args:
            codes: the entry of the codes.
        """
        shape = codes.shape
        if self.folded:
            shape = (*shape[:-2], shape[-2] * shape[-1]) if len(shape) > 1 else ()
        return (*shape[:-1], 2 * shape[-1]) if codes.dtype == "U8" and shape else shape

    def written(self, q_codes: np.ndarray, q_scale: np.ndarray, word: np.ndarray | None) -> dict[str, np.ndarray]:
        """Return the arrays of a file by role, from the parts of a quantized array in logical order.

        Args:
            q_codes: codes; packed ones as bytes.
            q_scale: block scales in the scale dtype.
            word: tensor scale.

        Raises:
            FileFormatError: a ragged block where codes have an axis per block.
        """
        if self.folded:
            if q_codes.shape[-1] != _BLOCK * q_scale.shape[-1]:
                got, do = f"{q_codes.shape} bytes", "pad the last axis, or choose another dialect"
                raise FileFormatError(message("save_model", f"whole blocks of {2 * _BLOCK} values", got, do))
            q_codes = q_codes.reshape(*q_scale.shape, _BLOCK)
        found = {"codes": q_codes, "scale": in_file(self.scale, q_scale)}
        if self.tensor_scale is not None and word is not None:
            found["tensor_scale"] = in_file(self.tensor_scale, plain_tensor_scale(word))
        return found


def in_file(part: Part, value: np.ndarray) -> np.ndarray:
    """Return a scale as a part of a file holds it: its sense, dtype and the shape of a single value.

    Args:
        part: where it goes.
        value: decode factors.
    """
    if part.inverse:
        value = _inverse_of(value)
    if value.shape == () or (part.inverse and value.size == 1):
        value = value.reshape(part.single)
    return value.view(np.uint8) if part.dtypes[0] == "U8" and value.dtype != np.uint8 else value


def inverse(value: np.ndarray) -> np.ndarray:
    """Return fl32(1 / value), without a warning for 0.

    Args:
        value: float32.
    """
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(np.float32(1) / value.astype(np.float32), np.float32)


def _inverse_of(value: np.ndarray) -> np.ndarray:
    """The float32 nearest to 1 / value, or a neighbour whose own inverse is ``value`` again, where there is one."""
    near = inverse(value)
    with np.errstate(over="ignore"):
        tried = [near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf))]
    again = [inverse(g) == value for g in tried]
    return np.asarray(np.select(again, tried, near), np.float32)
