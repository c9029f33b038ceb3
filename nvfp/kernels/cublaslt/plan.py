"""`Plan`: what cuBLASLt needs to run one `GemmProblem` again and again. Execution decides nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np

from nvfp.device import Device
from nvfp.errors import DeviceError, KernelError, message
from nvfp.kernels.cublaslt import binding, tuned, typemap as tm
from nvfp.kernels.cublaslt.cache import LRU, CacheStats
from nvfp.kernels.cublaslt.problem import GemmProblem

Pointers = tuple[tuple[tm.Attribute, int], ...]
_A_SCALE, _B_SCALE, _BIAS = (p.number for p in (tm.A_SCALE_POINTER, tm.B_SCALE_POINTER, tm.BIAS_POINTER))
_HOST = {name: np.array([0, 1], name) for name in ("float32", "float64")}  # beta or alpha 0 and 1 in host memory
_HOST_ADDRESS = {name: (words.ctypes.data, words.ctypes.data + words.itemsize) for name, words in _HOST.items()}


class Plan:
    """Layouts and algorithm of a problem on one device; a matmul descriptor per thread.

    The first algorithm that cuBLASLt's heuristics propose is taken, always, so that a problem repeats
    its bits; another one only where a loaded tuning file names it (`tuned`).

    Args:
        problem: the record.
        device: ordinal of the current device.

    Raises:
        Unsupported: cuBLASLt has no algorithm for it.
    """

    def __init__(self, problem: GemmProblem, device: int) -> None:
        self.problem = problem
        self._state = state = binding.device_state(device)
        self._lt, self._narrow = binding.library(), problem.narrow
        self._local = threading.local()
        self._a, self._b, self._d, self._c = (binding.Layout(*layout) for layout in problem.layouts())
        for pointer in problem.needed_pointers():
            # The heuristics refuse these modes without pointers; any aligned one will do (seen on an H200).
            self._descriptor().point(pointer, state.constant("float32", False))
        self._use(self._found(device))
        constant = state.constant if problem.device_alpha else self._host_constant
        self._one = constant(problem.compute, True)
        beta = constant(problem.compute, problem.accumulate)
        a, b, c, d = (layout.handle for layout in (self._a, self._b, self._c, self._d))
        self._parts = state.handle, a, b, beta, c, d

    def _found(self, device: int) -> np.ndarray:
        named = tuned.algorithm(self.problem, device)
        if named is not None:
            return named
        return self.proposals(1)

    def proposals(self, count: int) -> np.ndarray:
        """Return up to ``count`` algorithms that cuBLASLt proposes, the best one by its heuristics first.

        Args:
            count: at most so many.

        Raises:
            Unsupported: there is none.
        """
        problem = self.problem
        try:
            return binding.proposals(
                self._state.handle,
                self._descriptor(),
                (self._a, self._b, self._d, self._c),
                (problem.w.align, problem.x.align, problem.y.align),
                # A split-K reduction rounds to a 16-bit D before the epilogue (seen on an H200): two roundings.
                split_k=problem.bias is None and problem.epilogue == "default" and not problem.narrow,
                count=count,
            )
        except KernelError as error:
            raise type(error)(f"{error}: {problem}") from error

    def with_algorithm(self, result: np.ndarray) -> Plan:
        """Return a plan of the same problem that runs with another proposal."""
        other = copy(self)
        other._local = threading.local()  # descriptors are of one plan
        other._use(result)
        return other

    def _use(self, result: np.ndarray) -> None:
        """Run with this proposal (a `typemap.HEURISTIC` record of shape (1,)) from now on."""
        self._result = result
        self._algorithm: int = result.ctypes.data  # the record starts with the algorithm
        self.workspace_bytes = int(result["workspace"][0])

    @staticmethod
    def _host_constant(compute: str, one: bool) -> int:
        return _HOST_ADDRESS[compute][one]

    def _descriptor(self) -> binding.Descriptor:
        try:
            found: binding.Descriptor = self._local.descriptor
        except AttributeError:
            problem = self.problem
            found = self._local.descriptor = binding.Descriptor(*problem.compute_types, problem.attributes())
        return found

    def execute(
        self,
        x: int,
        w: int,
        y: int,
        stream: int,
        alpha: int = 0,
        bias: int = 0,
        x_scale: int = 0,
        w_scale: int = 0,
        more: Pointers = (),
    ) -> None:
        """Enqueue Y = f(alpha X W + beta Y + bias) on a stream. Every argument is an address, 0 for none.

        Args:
            x: X.
            w: W.
            y: Y.
            stream: CUDA stream.
            alpha: one number of the compute dtype, in device memory if the problem says ``device_alpha``
                (required then); else 0, for 1.
            bias: the bias [N], where the problem has one.
            x_scale: decode factor(s) of X, where it has a scale mode.
            w_scale: likewise of W.
            more: further pointer attributes and their addresses.

        Raises:
            KernelError: cuBLASLt refuses or fails.
        """
        try:
            descriptor: binding.Descriptor = self._local.descriptor
        except AttributeError:
            descriptor = self._descriptor()
        pointers = descriptor.pointers
        if w_scale and pointers.get(_A_SCALE) != w_scale:
            descriptor.point(tm.A_SCALE_POINTER, w_scale)
        if x_scale and pointers.get(_B_SCALE) != x_scale:
            descriptor.point(tm.B_SCALE_POINTER, x_scale)
        if bias and pointers.get(_BIAS) != bias:
            descriptor.point(tm.BIAS_POINTER, bias)
        for attribute, address in more:
            descriptor.point(attribute, address)
        handle, a, b, beta, c, d = self._parts
        old = 0 if self._narrow else y  # an FP8 D has no C
        size, lt, one = self.workspace_bytes, self._lt, alpha or self._one
        algorithm = self._algorithm
        try:
            if size:
                state = self._state
                with state.lock:
                    space = state.workspace(stream)
                    lt.matmul(
                        handle, descriptor.handle, one, w, a, x, b, beta, old, c, y, d, algorithm, space, size, stream
                    )
            else:
                lt.matmul(handle, descriptor.handle, one, w, a, x, b, beta, old, c, y, d, algorithm, 0, 0, stream)
        except lt.cuBLASLtError as error:
            raise binding.failure(error) from error


_plans: dict[int, LRU[GemmProblem, Plan]] = {}


def _cache(device: int) -> LRU[GemmProblem, Plan]:
    found = _plans.get(device)
    return _plans.setdefault(device, LRU(f"the GEMM plans of cuda:{device}")) if found is None else found


def plan_for(problem: GemmProblem, device: int) -> Plan:
    """Return the plan of a problem on the current device, from its cache or made now.

    Raises:
        Unsupported: cuBLASLt has no algorithm for it.
    """
    return _cache(device).get_or_make(problem, lambda: Plan(problem, device))


def plan_stats(device: int = 0) -> CacheStats:
    """Return how the cache of plans of a device has fared."""
    return _cache(device).stats()


def gemm_stats(device: Any = None) -> CacheStats:
    """Return how the cache of GEMM plans of a CUDA device has fared.

    A plan is cuBLASLt's algorithm, layouts and descriptors for one problem (shapes, strides, formats, epilogue). At
    most ``NVFP_GEMM_CACHE`` are kept for each device, the one used longest ago goes first. Many ``reloads`` say that
    the cache is too small for the model.

    Args:
        device: a CUDA device or its ordinal; default ``"cuda:0"``.

    Returns:
        `CacheStats`: hits (kinds of calls that share a plan), misses, evictions, reloads, size, capacity.

    Raises:
        DeviceError: the CPU, which has no plans.

    Example:
        >>> import nvfp as nf
        >>> nf.gemm_stats().capacity
        256
    """
    found = Device(f"cuda:{device}" if isinstance(device, int) else str(device or "cuda:0"))
    if found.type != "cuda":
        raise DeviceError(message("gemm_stats", "a CUDA device", found, "products on the CPU have no plans"))
    return plan_stats(found.index)


def plan_cache(device: int) -> LRU[GemmProblem, Plan]:
    """Return the cache of the plans of a device."""
    return _cache(device)


holders: list[Callable[[], None]] = []  # what drops the plans that decided calls hold


def forget_plans() -> None:
    """Drop every plan, so that the next call of each problem makes one anew."""
    for forget in holders:
        forget()
    for cache in _plans.values():
        cache.clear()
