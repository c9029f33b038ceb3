"""`cuda_graph`: capture a step once, replay it with one launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.storage import Storage, watch_writes
from nvfp.errors import DeviceError, ShapeError, message
from nvfp.kernels.cast import cast
from nvfp.optional import need

_graphs: WeakSet[cuda_graph] = WeakSet()


def graph_pools() -> list[tuple[Any, bool]]:
    """Return the memory pool of every graph that has run, and whether its step has been captured."""
    return [(graph._pool, graph._graph is not None) for graph in list(_graphs)]


class cuda_graph:
    """Make a callable that runs ``step`` as a CUDA graph.

    The first call runs ``step`` eagerly (kernels compile, plans and state are made), the second one
    captures it and replays the capture, later calls replay: n calls do what n eager steps do. Inputs
    are copied into static buffers; outputs and ``.grad`` arrays live in memory that the graph owns
    and are overwritten by the next replay. What the step wrote through storages (parameters,
    optimizer state) is known to have changed after a replay.

    Args:
        step: takes CUDA Arrays, returns an Array or a tuple of Arrays. It must do the same work on
            every call; values that change (learning rate, step count, scales) must be device words.

    Raises:
        DeviceError: an input on the CPU.
        ShapeError: inputs whose shapes or dtypes differ from the first call's.

    Numerics: a replay gives the bits of the eager step.

    Example:
        >>> import nvfp as nf
        >>> double = nf.cuda_graph(lambda x: x + x)
        >>> try:
        ...     double(nf.ones((2,), device="cpu"))
        ... except nf.errors.DeviceError as error:
        ...     print(error)
        [cuda_graph] expected inputs on a CUDA device, got cpu; move them with x.to_device("cuda")
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        self._inputs: tuple[Array, ...] = ()
        self._outputs: Any = None
        self._graph: Any = None
        self._stream: Any = None
        self._pool: Any = None
        self._written: list[Storage] = []

    def __call__(self, *inputs: Array) -> Any:
        """Run one step; see the class."""
        for x in inputs:
            if x.device.type != "cuda":
                raise DeviceError(
                    message("cuda_graph", "inputs on a CUDA device", x.device, 'move them with x.to_device("cuda")')
                )
        cp = need("cupy", extra="cuda13")
        if self._stream is None:
            self._stream = cp.cuda.Stream(non_blocking=True)
            self._pool = cp.cuda.MemoryPool()
            _graphs.add(self)
            self._inputs = tuple(wrap(cast(x.raw, x.raw.dtype)) for x in inputs)
        self._check(inputs)
        current = cp.cuda.get_current_stream()
        self._stream.wait_event(current.record())
        with self._stream, cp.cuda.using_allocator(self._pool.malloc):
            for static, x in zip(self._inputs, inputs, strict=True):
                cast(x.raw, x.raw.dtype, out=static.raw)
            outputs = self._run()
        current.wait_event(self._stream.record())
        return outputs

    def _run(self) -> Any:
        if self._outputs is None:
            self._outputs = ()
            return self._step(*self._inputs)
        if self._graph is None:
            with watch_writes() as written:
                self._stream.begin_capture()
                try:
                    self._outputs = self._step(*self._inputs)
                finally:
                    graph = self._stream.end_capture()
            self._graph, self._written = graph, written
        else:
            for storage in self._written:
                storage.touch()
        self._graph.launch(self._stream)
        return self._outputs

    def _check(self, inputs: tuple[Array, ...]) -> None:
        want = [(a.shape, a.dtype) for a in self._inputs]
        got = [(a.shape, a.dtype) for a in inputs]
        if want != got:
            raise ShapeError(
                message("cuda_graph", f"inputs like the first call's {want}", got, "make a new graph for other shapes")
            )
