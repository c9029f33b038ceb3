"""`Plan`: what cuBLASLt needs to run one `GemmProblem` again and again. Execution decides nothing."""

from __future__ import annotations

import threading

import numpy as np

from nvfp.errors import KernelError
from nvfp.kernels.cublaslt import binding, typemap as tm
from nvfp.kernels.cublaslt.cache import LRU, CacheStats
from nvfp.kernels.cublaslt.problem import GemmProblem

_HOST = {name: np.array([0, 1], name) for name in ("float32", "float64")}  # beta or alpha 0 and 1 in host memory
_HOST_ADDRESS = {name: (words.ctypes.data, words.ctypes.data + words.itemsize) for name, words in _HOST.items()}


class Plan:
    """Layouts and algorithm of a problem on one device; a matmul descriptor per thread.

    The first algorithm that cuBLASLt's heuristics propose is taken, always, so that a problem repeats
    its bits.

    Args:
        problem: the record.
        device: ordinal of the current device.

    Raises:
        Unsupported: cuBLASLt has no algorithm for it.
    """

    def __init__(self, problem: GemmProblem, device: int) -> None:
        self.problem = problem
        self._state = binding.device_state(device)
        self._local = threading.local()
        self._a, self._b, self._d = (binding.Layout(*layout) for layout in problem.layouts())
        alignments = (problem.w.align, problem.x.align, problem.y.align)
        for pointer in problem.block_scales():
            # The heuristics refuse block modes without pointers; any aligned one will do (seen on an H200).
            self._descriptor().point(pointer, self._state.constant("float32", False))
        try:
            self._result = binding.first_algorithm(
                self._state.handle,
                self._descriptor(),
                (self._a, self._b, self._d),
                alignments,
                # A split-K reduction rounds to a 16-bit D before it adds the bias (seen on an H200): two roundings.
                split_k=problem.bias is None,
            )
        except KernelError as error:
            raise type(error)(f"{error}: {problem}") from error
        self._algorithm: int = self._result.ctypes.data  # the record starts with the algorithm
        self.workspace_bytes = int(self._result["workspace"][0])
        constant = self._state.constant if problem.device_alpha else self._host_constant
        self._one = constant(problem.compute, True)
        self._beta = constant(problem.compute, problem.accumulate)

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
        self, x: int, w: int, y: int, stream: int, alpha: int = 0, bias: int = 0, x_scale: int = 0, w_scale: int = 0
    ) -> None:
        """Enqueue Y = alpha X W + beta Y + bias on a stream. Every argument is an address, 0 for none.

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

        Raises:
            KernelError: cuBLASLt refuses or fails.
        """
        descriptor, state = self._descriptor(), self._state
        if w_scale:
            descriptor.point(tm.A_SCALE_POINTER, w_scale)
        if x_scale:
            descriptor.point(tm.B_SCALE_POINTER, x_scale)
        if bias:
            descriptor.point(tm.BIAS_POINTER, bias)
        size = self.workspace_bytes
        d = self._d.handle
        call = (
            state.handle, descriptor.handle, alpha or self._one, w, self._a.handle, x, self._b.handle, self._beta,
            y, d, y, d, self._algorithm,
        )  # fmt: skip
        if size:
            with state.lock:
                binding.matmul(*call, state.workspace(stream), size, stream)
        else:
            binding.matmul(*call, 0, 0, stream)


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
