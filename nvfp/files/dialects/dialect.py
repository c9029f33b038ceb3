"""The record of a dialect, and what its configuration is written from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvfp.arrays.quantized import QuantizedArray
from nvfp.dtypes.formats import QuantDType
from nvfp.files.dialects.layout import Layout, Part


@dataclass(frozen=True)
class Row:
    """A quantized tensor that has been written.

    Attributes:
        module: name without ``.weight``.
        layout: kind of the row that wrote it.
        dtype: of the array.
        shape: in elements.
    """

    module: str
    layout: str
    dtype: QuantDType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Written:
    """What has been written, for the configuration.

    Attributes:
        rows: quantized tensors.
        dense: modules with a matrix that is not quantized.
        static: modules with a static input scale.
        producer: name and version of the writer.
    """

    rows: tuple[Row, ...]
    dense: tuple[str, ...]
    static: frozenset[str]
    producer: Mapping[str, str]


@dataclass(frozen=True)
class Dialect:
    """A way to spell quantized tensors in safetensors files.

    Attributes:
        name: as `nf.files.save_model` takes it.
        methods: the ``quant_method`` values under which it is found.
        layouts: its rows; none where metadata spell the tensors.
        config: makes the ``quantization_config``.
        inputs: names of static activation scales, ``{}`` the module.
        files: makes further JSON files, by name.
        spell: (name, array) -> (tensors by name, metadata entry), of dialects without rows.
        collect: (entries by name, names of dense tensors) -> metadata of a file.
    """

    name: str
    methods: tuple[str, ...]
    layouts: tuple[Layout, ...]
    config: Callable[[Written], Mapping[str, Any]]
    inputs: tuple[Part, ...] = ()
    files: Callable[[Written], Mapping[str, Any]] | None = None
    spell: Callable[[str, QuantizedArray], tuple[dict[str, np.ndarray], Any]] | None = None
    collect: Callable[[Mapping[str, Any], list[str]], dict[str, str]] | None = None
