"""The one file that calls cuDNN, through NVIDIA's own graph API (`cudnn`, from `nvidia-cudnn-frontend`).

A `Graph` is one attention, forward or backward, built for one device. Executing it enqueues kernels on a
stream and does nothing else: no allocation but the workspace's, no synchronisation.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from nvfp.errors import KernelError, MissingDependencyError, message
from nvfp.kernels.cuda._memory import address
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.cudnn.layout import OFFSETS, Port, Tensor, Tensors
from nvfp.optional import has, need

_DATA_TYPES = {"bfloat16": "BFLOAT16", "float16": "HALF", "float32": "FLOAT", "int32": "INT32", "int64": "INT64"}
_UINT8 = "uint8"
_local = threading.local()


class Unsupported(KernelError):
    """cuDNN has no engine for a graph."""


def _cudnn() -> Any:
    return need("cudnn", extra="cuda13")


@cache
def problem() -> str | None:
    """Return why cuDNN cannot be used in this process, or None."""
    if not has("cudnn"):
        return "nvidia-cudnn-frontend is not installed (pip install 'nvfp[cuda13]')"
    try:
        library = _cudnn()
        if not hasattr(library, "pygraph"):
            return "the package `cudnn` is not nvidia-cudnn-frontend"
        library.backend_version()
    except (MissingDependencyError, RuntimeError) as error:  # the frontend is there, libcudnn is not or is too old
        return f"cuDNN does not load: {error}"
    return None


def version() -> int:
    """Return cuDNN's version, e.g. 91900."""
    return int(_cudnn().backend_version())


class _Handle:
    """A cuDNN handle, freed with the thread that made it."""

    def __init__(self) -> None:
        library = _cudnn()
        self.raw: Any = library.create_handle()
        self._destroy = library.destroy_handle

    def __del__(self) -> None:
        if hasattr(self, "_destroy") and not sys.is_finalizing():
            self._destroy(self.raw)


def _handle(device: int, stream: int) -> _Handle:
    """Return this thread's handle on the current device (its ordinal is ``device``), set to a stream."""
    handles: dict[int, _Handle] = _local.__dict__.setdefault("handles", {})
    found = handles.get(device)
    if found is None:
        found = handles[device] = _Handle()
    _cudnn().set_stream(handle=found.raw, stream=stream)
    return found


def _raw(graph: Any, addresses: dict[int, int], handle: Any) -> Callable[[dict[int, int], int, Any], None] | None:
    """Return what `pygraph.execute` comes to for addresses, or None where a frontend has no such way.

    It looks into each address anew, at three times the cost of the call into the library.
    """
    try:
        order, run = graph._variant_pack_uids(), graph._lowered_graph._execute_with_raw_ptrs
        plan = graph._materialize_backend_plan(graph._plan_index) if graph._plans else None
        if graph.selected_engine is not None or sorted(addresses) != list(order) or not handle.backend_handle:
            return None
    except (AttributeError, TypeError):
        return None
    index = -1 if plan is None or plan.cpp_index is None else int(plan.cpp_index)
    table = (ctypes.c_uint64 * len(order))()

    def execute(addresses: dict[int, int], workspace: int, handle: Any) -> None:
        table[:] = [addresses[uid] for uid in order]
        run(ctypes.addressof(table), len(table), workspace, handle.backend_handle, index)

    return execute


class Graph:
    """A built graph: ``O, stats = sdpa(Q, K, V)``, or its backward.

    Args:
        backward: which of the two.
        tensors: of the record, by port.
        scale: factor of the scores.
        band: (left, right) neighbours of the diagonal that a query sees, None for all.
        alignment: corner of the diagonal, ``"top_left"`` or ``"bottom_right"``.
        dropout: probability; above 0 the tensors hold seed and offset.
        stats: whether the forward writes them.
        deterministic: whether the backward repeats its bits.
        device: ordinal of the current device.

    Raises:
        Unsupported: cuDNN refuses the graph or finds no engine.

    Note:
        On compute capability 9 the deterministic backward keeps the gradients of the scores in its workspace:
        2 B H Lq Lk bytes (lengths rounded up).
    """

    def __init__(
        self,
        backward: bool,
        tensors: Tensors,
        *,
        scale: float,
        band: tuple[int | None, int | None],
        alignment: str,
        dropout: float,
        stats: bool,
        deterministic: bool,
        device: int,
    ) -> None:
        library = _cudnn()
        self._raw: Callable[[dict[int, int], int, Any], None] | None = None  # known from the first call on
        self._lock = threading.Lock()  # a graph keeps the pointers of a call while it executes
        self._device, self._tensors = device, tensors
        self._types = {name: getattr(library.data_type, kind) for name, kind in _DATA_TYPES.items()}
        try:
            self._handle = _handle(device, cp.cuda.get_current_stream().ptr)  # must live as long as the graph
            self._graph = library.pygraph(
                io_data_type=self._types[tensors[Port.Q].dtype],
                intermediate_data_type=self._types["float32"],
                compute_data_type=self._types["float32"],
                handle=self._handle.raw,
            )
            options = self._masks(library, band, alignment, dropout) | {"attn_scale": scale, "name": "attention"}
            self._backward(options, deterministic) if backward else self._forward(options, stats)
            self.workspace_bytes = self._build(library)
        except (library.cudnnGraphNotSupportedError, RuntimeError, ValueError) as error:
            raise Unsupported(f"cuDNN {version()} refuses it: {error}") from error

    def _input(self, port: Port) -> Any:
        return self._laid(port, self._new(port.name, int(port), self._tensors[port]))

    def _new(self, name: str, uid: int, t: Tensor) -> Any:
        return self._graph.tensor(
            name=name, uid=uid, dim=list(t.dim), stride=list(t.stride), data_type=self._types[t.dtype]
        )

    def _laid(self, port: Port, tensor: Any) -> Any:
        """The tensor, with offsets where its entries have places of their own."""
        t = self._tensors[port]
        if t.ragged:
            offsets = Tensor((t.dim[0] + 1, 1, 1, 1), (1, 1, 1, 1), "int64")
            tensor.set_ragged_offset(self._new(f"{port.name}_OFFSETS", port + OFFSETS, offsets))
        return tensor

    def _output(self, port: Port, result: Any) -> None:
        t = self._tensors[port]
        result.set_uid(int(port)).set_output(True).set_dim(list(t.dim)).set_stride(list(t.stride))
        result.set_data_type(self._types[t.dtype])
        self._laid(port, result)

    def _masks(
        self, library: Any, band: tuple[int | None, int | None], alignment: str, dropout: float
    ) -> dict[str, Any]:
        options: dict[str, Any] = {}
        left, right = band
        if band != (None, None):
            options["diagonal_alignment"] = getattr(library.diagonal_alignment, alignment.upper())
        if left is not None:
            options["diagonal_band_left_bound"] = left + 1  # cuDNN counts the token on the diagonal too
        if right is not None:
            options["diagonal_band_right_bound"] = right
        if Port.BIAS in self._tensors:
            options["bias"] = self._input(Port.BIAS)
        if Port.Q_LENGTHS in self._tensors:
            options["use_padding_mask"] = True
            options |= {"seq_len_q": self._input(Port.Q_LENGTHS), "seq_len_kv": self._input(Port.K_LENGTHS)}
        if dropout:
            options["dropout"] = (dropout, self._input(Port.SEED), self._input(Port.OFFSET))
        return options

    def _forward(self, options: dict[str, Any], stats: bool) -> None:
        q, k, v = (self._input(port) for port in (Port.Q, Port.K, Port.V))
        if Port.SINK in self._tensors:  # the backward finds it in the logarithms
            options["sink_token"] = self._input(Port.SINK)
        o, logarithms = self._graph.sdpa(q=q, k=k, v=v, generate_stats=stats, **options)
        self._output(Port.O, o)
        if stats:
            self._output(Port.STATS, logarithms)

    def _backward(self, options: dict[str, Any], deterministic: bool) -> None:
        ports = (Port.Q, Port.K, Port.V, Port.O, Port.DO, Port.STATS)
        q, k, v, o, do, logarithms = (self._input(port) for port in ports)
        if Port.DBIAS in self._tensors:
            options["dBias"] = self._new(Port.DBIAS.name, int(Port.DBIAS), self._tensors[Port.DBIAS])
        gradients = self._graph.sdpa_backward(
            q=q, k=k, v=v, o=o, dO=do, stats=logarithms, use_deterministic_algorithm=deterministic, **options
        )
        for port, gradient in zip((Port.DQ, Port.DK, Port.DV), gradients, strict=True):
            self._output(port, gradient)

    def _build(self, library: Any) -> int:
        graph = self._graph
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([library.heur_mode.A, library.heur_mode.FALLBACK])
        graph.check_support()
        graph.build_plans()
        return int(graph.get_workspace_size())

    def execute(self, addresses: dict[int, int], stream: int) -> None:
        """Enqueue the graph on the current stream.

        Args:
            addresses: of every tensor of the graph, by port.
            stream: the current CUDA stream; the workspace comes from CuPy's pool and goes back to it in its order.

        Raises:
            KernelError: cuDNN reports a failure.
        """
        size = self.workspace_bytes
        workspace = cp.empty(size, _UINT8) if size else None
        space, handle = 0 if workspace is None else address(workspace), _handle(self._device, stream).raw
        try:
            with self._lock:
                if self._raw is not None:
                    self._raw(addresses, space, handle)
                    return
                self._graph.execute(addresses, space, handle=handle)
                self._raw = _raw(self._graph, addresses, handle)
        except RuntimeError as error:
            do = "report the record that explain_attention prints"
            raise KernelError(message("attention", "cuDNN to run its graph", error, do)) from error
