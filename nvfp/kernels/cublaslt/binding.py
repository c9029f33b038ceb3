"""The one file that calls cuBLASLt, through NVIDIA's own Python bindings (`nvmath.bindings.cublasLt`).

Thin functions over ints and raw addresses, plus what lives once per device: the handle, the constants
that device-side alpha needs beside it, and the workspace of each stream.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from nvfp.errors import KernelError, message
from nvfp.kernels.cublaslt import typemap as tm
from nvfp.kernels.cuda._memory import address
from nvfp.kernels.cuda._xp import cp
from nvfp.optional import need

WORKSPACE_BYTES = 32 << 20  # NVIDIA's advice for Hopper and newer; on an H200 no first choice needed any
_COMPUTE_TYPE = 2  # the reduction scheme that sums split-K partials in the compute type; 0 admits no split
_REFUSALS = (7, 15)  # CUBLAS_STATUS_INVALID_VALUE, CUBLAS_STATUS_NOT_SUPPORTED: heuristics say no in both ways
_lock = threading.Lock()


class Unsupported(KernelError):
    """cuBLASLt has no algorithm for a problem."""


@cache
def _lt() -> Any:
    return need("nvmath.bindings.cublasLt", extra="cuda13")


def version() -> int:
    """Return cuBLASLt's version, e.g. 130100."""
    return int(_lt().get_version())


def _set(function: Any, target: int, attribute: tm.Attribute, value: int) -> None:
    buffer = np.array([value], attribute.type)
    function(target, attribute.number, buffer.ctypes.data, buffer.nbytes)


class Descriptor:
    """A matmul descriptor of one thread: constant attributes, and pointers that are set when they change."""

    __slots__ = ("_buffer", "_buffer_address", "_destroy", "_set", "handle", "pointers")

    def __init__(self, compute: int, scale_type: int, attributes: tuple[tuple[tm.Attribute, int], ...]) -> None:
        lt = _lt()
        self.handle: int = lt.matmul_desc_create(compute, scale_type)
        self._destroy, self._set = lt.matmul_desc_destroy, lt.matmul_desc_set_attribute
        self.pointers: dict[int, int] = {}
        self._buffer = np.zeros(1, np.int64)
        self._buffer_address: int = self._buffer.ctypes.data
        for attribute, value in attributes:
            _set(self._set, self.handle, attribute, value)

    def point(self, attribute: tm.Attribute, address: int) -> None:
        """Set a pointer attribute, unless it already holds this address."""
        number = attribute.number
        if self.pointers.get(number) != address:
            self._buffer[0] = address
            self._set(self.handle, number, self._buffer_address, 8)
            self.pointers[number] = address

    def __del__(self) -> None:
        if hasattr(self, "_destroy"):
            self._destroy(self.handle)


class Layout:
    """A matrix layout: column-major ``rows x columns`` with a leading dimension, repeated ``batch`` times."""

    __slots__ = ("_destroy", "handle")

    def __init__(self, data_type: int, rows: int, columns: int, ld: int, batch: int, stride: int) -> None:
        lt = _lt()
        self.handle: int = lt.matrix_layout_create(data_type, rows, columns, ld)
        self._destroy = lt.matrix_layout_destroy
        if batch > 1:
            _set(lt.matrix_layout_set_attribute, self.handle, tm.BATCH_COUNT, batch)
            _set(lt.matrix_layout_set_attribute, self.handle, tm.BATCH_STRIDE, stride)

    def __del__(self) -> None:
        if hasattr(self, "_destroy"):
            self._destroy(self.handle)


def proposals(
    handle: int,
    descriptor: Descriptor,
    layouts: tuple[Layout, Layout, Layout, Layout],
    alignments: tuple[int, int, int],
    *,
    split_k: bool = True,
    count: int = 1,
) -> np.ndarray:
    """Return cuBLASLt's proposals, the best one first, as `typemap.HEURISTIC` records of shape (1..count,).

    Args:
        handle: of the current device.
        descriptor: with every attribute that bears on the choice set.
        layouts: of A, B, D and C.
        alignments: bytes to which the addresses of A, B and D are aligned.
        split_k: whether K may be split over blocks and summed by a second kernel.
        count: how many are wanted at most.

    Raises:
        Unsupported: there is no proposal.
    """
    lt, results, found = _lt(), np.zeros(count, tm.HEURISTIC), np.zeros(1, np.int32)
    a, b, d, c = layouts
    preference = lt.matmul_preference_create()
    try:
        for attribute, value in _preferences(alignments, split_k):
            _set(lt.matmul_preference_set_attribute, preference, attribute, value)
        lt.matmul_algo_get_heuristic(
            handle, descriptor.handle, a.handle, b.handle, c.handle, d.handle, preference, count,
            results.ctypes.data, found.ctypes.data,
        )  # fmt: skip
    except lt.cuBLASLtError as error:
        kind = Unsupported if getattr(error, "status", None) in _REFUSALS else KernelError
        raise kind(message("gemm", "cuBLASLt to propose an algorithm", error, "report the problem record")) from error
    finally:
        lt.matmul_preference_destroy(preference)
    if found[0] < 1 or results["state"][0] != 0:
        state = f"{int(found[0])} proposals, state {int(results['state'][0])}"
        raise Unsupported(message("gemm", "cuBLASLt to propose an algorithm", state, "report the problem record"))
    return results[: int(found[0])]


def _preferences(alignments: tuple[int, int, int], split_k: bool) -> Iterator[tuple[tm.Attribute, int]]:
    yield tm.MAX_WORKSPACE, WORKSPACE_BYTES
    yield tm.REDUCTION_SCHEMES, _COMPUTE_TYPE if split_k else 0
    yield tm.MIN_ALIGNMENT_A, alignments[0]
    yield tm.MIN_ALIGNMENT_B, alignments[1]
    yield tm.MIN_ALIGNMENT_C, alignments[2]
    yield tm.MIN_ALIGNMENT_D, alignments[2]


def library() -> Any:
    """Return the module whose ``matmul`` (``cublasLtMatmul``, all arguments ints) enqueues a product."""
    return _lt()


def failure(error: Exception) -> KernelError:
    """Return what a failed ``matmul`` is raised as."""
    kind = Unsupported if getattr(error, "status", None) in _REFUSALS else KernelError
    return kind(message("gemm", "cublasLtMatmul to succeed", error, "report the problem record"))


def _create() -> int:
    """A handle; the first call loads the library."""
    try:
        return int(_lt().create())
    except Exception as error:
        got = f"{type(error).__name__}: {' '.join(str(error).split())}"
        do = "pip install 'nvfp[cuda13]' (CUDA 12: 'nvfp[cuda12]'); python -m nvfp shows what is found"
        raise KernelError(message("gemm", "a cuBLASLt that loads", got, do)) from error


class DeviceState:
    """What one device needs: a cuBLASLt handle, 0 and 1 in device memory, and a workspace per stream.

    A product that uses the workspace may be several kernels; ``lock`` keeps those of two threads on one
    stream from interleaving, or one would read the other's partial sums.
    """

    def __init__(self) -> None:
        self.handle: int = _create()
        self.lock = threading.Lock()
        self._workspaces: dict[int, Any] = {}
        # A stream of its own, so that the copy runs now even while another stream is being captured.
        stream = cp.cuda.Stream(non_blocking=True)
        with stream:
            self._constants = {t: cp.empty(2, np.dtype(t)) for t in ("float32", "float64")}
            for name, words in self._constants.items():
                words.set(np.array([0, 1], name), stream=stream)
        stream.synchronize()
        self._addresses = {name: (address(w), address(w) + w.dtype.itemsize) for name, w in self._constants.items()}

    def constant(self, compute: str, one: bool) -> int:
        """Return the address of 0 or 1 on the device, as float32 or float64."""
        return self._addresses[compute][one]

    def workspace(self, stream: int) -> int:
        """Return the address of ``WORKSPACE_BYTES`` that belong to a stream."""
        found = self._workspaces.get(stream)
        if found is None:
            found = self._workspaces.setdefault(stream, cp.empty(WORKSPACE_BYTES, np.uint8))
        return address(found)


_states: dict[int, DeviceState] = {}


def device_state(device: int) -> DeviceState:
    """Return the state of the current device (its ordinal is ``device``), made at first use."""
    state = _states.get(device)
    if state is None:
        with _lock:
            state = _states.get(device)
            if state is None:
                state = _states[device] = DeviceState()
    return state
