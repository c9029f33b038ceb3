"""Every ``NVFP_*`` environment switch, in one table. Values are read when they are needed."""

from __future__ import annotations

import os
from dataclasses import dataclass

from nvfp.errors import ArgumentError, message


@dataclass(frozen=True)
class Switch:
    """One environment switch.

    Attributes:
        name: the variable.
        default: the value that stands when it is unset or empty.
        doc: its meaning, in one sentence.
        scope: who reads it: ``"library"`` or ``"tests"``.
    """

    name: str
    default: str
    doc: str
    scope: str = "library"


SWITCHES: dict[str, Switch] = {
    s.name: s
    for s in (
        Switch(
            "NVFP_DEVICE", "", "Default device, e.g. `cpu` or `cuda:0`. Unset: the first usable CUDA device, else CPU."
        ),
        Switch("NVFP_DEBUG", "0", "`1`: check indices on CUDA and raise (costs a synchronisation per check)."),
        Switch("NVFP_NVTX", "0", "`1`: NVTX ranges by module and stem for profilers (`nf.inspect.nvtx`)."),
        Switch("NVFP_CACHE_DIR", "", "Folder of compiled CUDA kernels and tuning files. Unset: `~/.cache/nvfp`."),
        Switch("NVFP_NUM_THREADS", "", "Threads of the CPU kernels. Unset: the CPUs this process may use."),
        Switch("NVFP_GEMM_CACHE", "256", "How many GEMM plans are kept per device."),
        Switch(
            "NVFP_GEMM_TUNING",
            "",
            "File of tuned GEMM algorithms to use (`nf.tune`); `1`: the one in the cache folder.",
        ),
        Switch(
            "NVFP_UNPROVEN_GEMM",
            "0",
            "`1`: use native GEMM modes that have not run on their hardware yet (MXFP8, NVFP4 on 10.0 and newer).",
        ),
        Switch("NVFP_ATTENTION_CACHE", "64", "How many cuDNN attention plans are kept per device."),
        Switch("NVFP_TEST_PLAIN_MALLOC", "0", "`1`: no CuPy memory pool, for compute-sanitizer.", "tests"),
        Switch("NVFP_SKIP_REPORT", "", "File that receives the reasons of skipped tests.", "tests"),
    )
}


def get(name: str) -> str:
    """Return the value of a switch without blanks around it (its default when unset or empty).

    Args:
        name: a name of `SWITCHES`.

    Returns:
        The text.

    Raises:
        KeyError: no such switch; add it to the table.

    Example:
        >>> get("NVFP_GEMM_CACHE")
        '256'
    """
    return os.environ.get(name, "").strip() or SWITCHES[name].default


def flag(name: str) -> bool:
    """Return whether a switch is on (anything but empty, ``0``, ``false``, ``no``).

    Args:
        name: a name of `SWITCHES`.

    Returns:
        True if it is on.

    Example:
        >>> flag("NVFP_DEBUG")
        False
    """
    return get(name).lower() not in ("", "0", "false", "no")


def number(name: str) -> int | None:
    """Return the value of a switch that counts something, None when it is unset and has no default.

    Args:
        name: a name of `SWITCHES`.

    Returns:
        A positive int, or None.

    Raises:
        ArgumentError: the value is not a positive whole number.

    Example:
        >>> number("NVFP_GEMM_CACHE")
        256
    """
    text = get(name)
    if text and not (text.isdecimal() and int(text) > 0):
        raise ArgumentError(message(name, "a positive whole number", repr(text), f"set or unset {name}"))
    return int(text) if text else None
