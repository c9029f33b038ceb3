"""Checkpoints of a training run: model, optimizer, generators and plain counters in one safetensors file.

A run that is resumed from one continues with the same bits as the run that was not interrupted (on
the CPU with the same BLAS and number of its threads; on CUDA likewise, every kernel of nvfp repeating
its bits).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from nvfp.arrays.random import Generator
from nvfp.errors import ArgumentError, DTypeError, FileFormatError, StateError, message
from nvfp.files.tensors import load_with_metadata, save
from nvfp.nn.module import Module
from nvfp.optim.adam import AdamW

_KEY = "nvfp.checkpoint"


def save_checkpoint(
    path: str | os.PathLike[str],
    model: Module,
    optimizer: AdamW | None = None,
    *,
    generators: Mapping[str, Generator] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write everything a run needs to go on.

    Args:
        path: the file (replaced atomically).
        model: its parameters and scaling state.
        optimizer: its moments, master weights, step and hyperparameters.
        generators: random generators by name; their state goes along.
        extra: plain values that JSON can hold (step, recipe name, ...).

    Raises:
        DTypeError: no Module, AdamW or Generators.
        ArgumentError: an ``extra`` that JSON cannot hold.
        OSError: the file cannot be written.

    Example:
        >>> import os, tempfile, nvfp as nf
        >>> path = os.path.join(tempfile.mkdtemp(), "run.safetensors")
        >>> model = nf.nn.Linear(2, 2, device="cpu")
        >>> save_checkpoint(path, model, extra={"step": 7})
        >>> load_checkpoint(path, model)["step"]
        7
    """
    _check_kinds("save_checkpoint", model, optimizer, generators)
    arrays: dict[str, Any] = {f"model.{k}": v for k, v in model.state_dict().items()}
    if optimizer is not None:
        arrays.update({f"optimizer.{k}": v for k, v in optimizer.state_dict().items()})
    content = {
        "version": 1,
        "generators": {name: g.state for name, g in (generators or {}).items()},
        "extra": dict(extra or {}),
    }
    try:
        text = json.dumps(content)
    except (TypeError, ValueError) as error:
        do = "convert arrays and NumPy scalars, e.g. with .item()"
        raise ArgumentError(message("save_checkpoint", "an extra that JSON can hold", error, do)) from error
    save(path, arrays, metadata={_KEY: text})


def load_checkpoint(
    path: str | os.PathLike[str],
    model: Module,
    optimizer: AdamW | None = None,
    *,
    generators: Mapping[str, Generator] | None = None,
) -> dict[str, Any]:
    """Put a saved run back into a model, optimizer and generators made the same way.

    Args:
        path: what `save_checkpoint` wrote.
        model: gets the parameters and scaling state.
        optimizer: gets moments, master weights, step and hyperparameters.
        generators: by the names they were saved under; each gets its state.

    Returns:
        The ``extra`` of `save_checkpoint`.

    Raises:
        FileFormatError: not a checkpoint of nvfp, or a newer version.
        StateError: names that differ; nothing of that object is changed then.
        DTypeError: no Module, AdamW or Generators.

    Example:
        >>> import os, tempfile, nvfp as nf
        >>> path = os.path.join(tempfile.mkdtemp(), "run.safetensors")
        >>> model, other = (nf.nn.Linear(2, 2, device="cpu") for _ in range(2))
        >>> save_checkpoint(path, model, extra={"step": 7})
        >>> load_checkpoint(path, other), bool(nf.all(model.weight == other.weight))
        ({'step': 7}, True)
    """
    _check_kinds("load_checkpoint", model, optimizer, generators)
    arrays, metadata = load_with_metadata(path, device="cpu")
    content = _content(metadata.get(_KEY, "{}"))
    missing = sorted(set(generators or {}) - set(content["generators"]))
    if missing:
        got, do = f"no {missing}", "name them as they were saved"
        raise StateError(message("load_checkpoint", f"generators out of {sorted(content['generators'])}", got, do))
    parts: dict[str, dict[str, Any]] = {"model": {}, "optimizer": {}}
    for key, value in arrays.items():
        head, _, name = key.partition(".")
        if head not in parts:
            raise FileFormatError(message("load_checkpoint", "arrays of model and optimizer", key, "save it anew"))
        parts[head][name] = value
    model.load_state_dict(parts["model"])
    if optimizer is not None:
        optimizer.load_state_dict(parts["optimizer"])
    for name, generator in (generators or {}).items():
        generator.state = content["generators"][name]
    extra: dict[str, Any] = content["extra"]
    return extra


def _content(text: str) -> dict[str, Any]:
    """What a file says of itself, its parts of the right kinds."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        got, do = f"metadata that JSON refuses ({type(error).__name__})", "fetch or save it anew"
        raise FileFormatError(message("load_checkpoint", "a checkpoint of nvfp", got, do)) from error
    found = found if isinstance(found, dict) else {}
    version, parts = found.get("version"), ("generators", "extra")
    if version != 1 or not all(isinstance(found.get(part), dict) for part in parts):
        got = str(version)[:40] if version != 1 else f"one without {' or '.join(parts)}"
        raise FileFormatError(
            message("load_checkpoint", "a checkpoint of version 1", got, "use nf.load for other files")
        )
    return found


def _check_kinds(op: str, model: Any, optimizer: Any, generators: Any) -> None:
    given = (
        ("model", model, Module),
        ("optimizer", optimizer, AdamW | None),
        ("generators", generators, Mapping | None),
    )
    for name, value, kind in given:
        if not isinstance(value, kind):
            expected = f"{name} as {getattr(kind, '__name__', kind)}"
            raise DTypeError(message(op, expected, type(value).__name__, "pass the object itself"))
