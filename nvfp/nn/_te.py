"""Arguments of Transformer Engine's constructors that nvfp does not build (yet): refused by name, never ignored.

At the value that TE gives them by default they mean nothing and pass; any other value raises. The
arguments named in `_HINTS` change no result in TE either and are taken whatever they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvfp.errors import ArgumentError, NotBuiltError, message

_HINTS = frozenset({"seq_length", "micro_batch_size", "ub_name", "rng_tracker_name", "max_seqlen_q", "max_seqlen_kv"})
_OVERLAP = (
    "ub_overlap_ag",
    "ub_overlap_rs",
    "ub_overlap_rs_dgrad",
    "ub_bulk_dgrad",
    "ub_bulk_wgrad",
    "ub_overlap_ag_fprop",
    "ub_overlap_rs_fprop",
    "ub_overlap_ag_dgrad",
)

# Several devices, and communication overlap.
PARALLEL: Mapping[str, Any] = {
    "tp_group": None,
    "tp_size": 1,
    "sequence_parallel": False,
    "get_rng_state_tracker": None,
}
GEMM: Mapping[str, Any] = {
    **PARALLEL,
    "symmetric_ar_type": None,
}
LINEAR: Mapping[str, Any] = {**GEMM, "parallel_mode": None}
BLOCK: Mapping[str, Any] = {
    **PARALLEL, "set_parallel_mode": False, "ub_tp_comm_overlap": False,
}  # fmt: skip
UNUSED = frozenset({"fast_zero_fill"})  # of attention's forward: changes no result in TE either


def refuse(layer: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Raise unless every argument is one of TE's at its default value.

    Args:
        layer: the public name, for the message.
        given: the keyword arguments that the layer's signature does not name.
        known: TE's arguments with their defaults.

    Raises:
        TypeError: an argument that TE does not have either.
        NotBuiltError: another value than the default.
    """
    for name, value in given.items():
        if name in _HINTS or name in _OVERLAP:
            continue  # overlap needs tp_size > 1 or ub_tp_comm_overlap, which are refused
        if name not in known:
            raise TypeError(f"{layer} got an unexpected keyword argument {name!r}")
        default = known[name]
        if value is not default and not (isinstance(value, str | int | float) and value == default):
            do = f"leave {name} out for now"
            raise NotBuiltError(message(layer, f"{name}={default!r}", repr(value), do))


def one_of(layer: str, name: str, value: Any, choices: tuple[str, ...], unbuilt: tuple[str, ...] = ()) -> str:
    """Return a word out of a list.

    Raises:
        NotBuiltError: a word of TE's that is not built.
        ArgumentError: another word.
    """
    if isinstance(value, str) and value in choices:
        return value
    expected, do = f"{name} out of {', '.join(choices)}", "choose one of these"
    if isinstance(value, str) and value in unbuilt:
        raise NotBuiltError(message(layer, expected, f"{value!r}, not built yet", do))
    raise ArgumentError(message(layer, expected, repr(value), do))


def parameter_dtype(layer: str, dtype: Any, params_dtype: Any) -> Any:
    """Return the dtype of the parameters: nvfp's ``dtype`` or TE's ``params_dtype``.

    Raises:
        ArgumentError: both are given.
    """
    if params_dtype is None:
        return dtype
    if dtype is not None:
        raise ArgumentError(
            message(layer, "dtype or params_dtype", f"dtype={dtype}, params_dtype={params_dtype}", "drop one")
        )
    return params_dtype
