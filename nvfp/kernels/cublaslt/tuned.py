"""The tuning table: which of cuBLASLt's algorithms a problem runs with on a chip. Empty unless a file is loaded.

The file is JSON: ``{"format": "nvfp-gemm-tuning-1", "entries": [...]}``; an entry holds the GPU's name, cuBLASLt's
version, the problem record, the algorithm (its 64 bytes in hex), its workspace, and what was measured. Entries of
other GPUs or versions are kept in files and never used.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nvfp import config
from nvfp.device import Device
from nvfp.errors import ArgumentError, message
from nvfp.kernels.cublaslt import binding, typemap as tm
from nvfp.kernels.cublaslt.problem import GemmProblem

FORMAT = "nvfp-gemm-tuning-1"
Entries = dict[str, dict[str, Any]]  # by `key`


@dataclass
class _Loaded:
    """The entries in force; None: the switch has not been looked at yet."""

    entries: Entries | None = None


_loaded = _Loaded()


def default_path() -> Path:
    """Return the file in the cache folder: ``$NVFP_CACHE_DIR/gemm-tuning.json``, else in ``~/.cache/nvfp``."""
    root = config.get("NVFP_CACHE_DIR")
    return (Path(root) if root else Path.home() / ".cache" / "nvfp") / "gemm-tuning.json"


def key(gpu: str, version: int, fields: dict[str, Any]) -> str:
    """Return what an entry is found by."""
    return json.dumps([gpu, version, fields], sort_keys=True)


def place(device: int) -> tuple[str, int]:
    """Return the name of a GPU and cuBLASLt's version."""
    return Device(f"cuda:{device}").name, binding.version()


def entry(problem: GemmProblem, device: int, result: np.ndarray, milliseconds: list[float]) -> dict[str, Any]:
    """Return the entry of a problem: the algorithm chosen, and the times of all, in the order of proposal."""
    gpu, version = place(device)
    return {
        "gpu": gpu,
        "cublaslt": version,
        "problem": problem.fields(),
        "algorithm": result["algo"][0].tobytes().hex(),
        "workspace": int(result["workspace"][0]),
        "ms": milliseconds,
    }


def read(path: Path) -> Entries:
    """Return the entries of a file.

    Raises:
        ArgumentError: the file cannot be read or is no tuning file.
    """
    try:
        text = json.loads(path.read_text())
        if text["format"] != FORMAT:
            raise ValueError(f"format {text['format']!r}")
        for e in text["entries"]:
            if len(bytes.fromhex(e["algorithm"])) != 64 or not 0 <= int(e["workspace"]) <= binding.WORKSPACE_BYTES:
                raise ValueError("an entry without a valid algorithm")
        return {key(e["gpu"], e["cublaslt"], e["problem"]): e for e in text["entries"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        do = "make one with nf.tune()"
        raise ArgumentError(message("tune", f"a file of {FORMAT} at {path}", repr(error), do)) from error


def write(path: Path, entries: Entries) -> None:
    """Replace a file by these entries in one step.

    Raises:
        ArgumentError: it cannot be written.
    """
    text = json.dumps({"format": FORMAT, "entries": [entries[k] for k in sorted(entries)]}, indent=1)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text + "\n")
        temporary.replace(path)
    except OSError as error:
        raise ArgumentError(message("tune", f"a writable file {path}", error, "pass another path")) from error


def use(entries: Entries) -> None:
    """Put entries in force; plans that exist already are not touched."""
    _loaded.entries = entries


def algorithm(problem: GemmProblem, device: int) -> np.ndarray | None:
    """Return the algorithm in force for a problem as a `typemap.HEURISTIC` record of shape (1,), or None.

    Raises:
        ArgumentError: the file that ``NVFP_GEMM_TUNING`` names cannot be read.
    """
    if _loaded.entries is None:
        switch = config.get("NVFP_GEMM_TUNING")
        path = default_path() if switch == "1" else Path(switch)
        _loaded.entries = read(path) if switch not in ("", "0") else {}
    if not _loaded.entries:
        return None
    found = _loaded.entries.get(key(*place(device), problem.fields()))
    if found is None:
        return None
    result = np.zeros(1, tm.HEURISTIC)
    result["algo"][0] = np.frombuffer(bytes.fromhex(found["algorithm"]), np.uint64)
    result["workspace"] = found["workspace"]
    return result
