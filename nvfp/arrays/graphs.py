"""`cuda_graph`: capture a step once, replay it with one launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.storage import Storage, watch_writes
from nvfp.autograd.tape import Leaf
from nvfp.device import default_device
from nvfp.errors import ArgumentError, DeviceError, NvfpError, ShapeError, StateError, message
from nvfp.kernels.cast import cast
from nvfp.optional import need

_graphs: WeakSet[cuda_graph] = WeakSet()


def graph_pools() -> list[tuple[Any, bool]]:
    """Return the memory pool of every graph that has run, and whether its step has been captured."""
    return [(graph._pool, graph._graph is not None) for graph in list(_graphs)]


class cuda_graph:
    """Make a callable that runs ``step`` as a CUDA graph.

    The first call runs ``step`` eagerly (kernels compile, plans and state are made), the second one
    captures it and replays the capture, later calls replay: n calls do what n eager steps do. A step is whatever
    launches work: a forward pass, backward, `autocast` with its scaling update, an optimizer. Inputs
    are copied into static buffers; outputs and ``.grad`` arrays live in memory that the graph owns
    and are overwritten by the next replay. What the step wrote through storages (parameters,
    optimizer state) is known to have changed after a replay. With inputs on the CPU (or without inputs where the
    default device is the CPU) every call runs ``step`` eagerly.

    Args:
        step: takes Arrays, returns an Array or a nest of Arrays. It must do the same work on every call: Python
            runs in the first two calls only. What changes comes in as an input, or is a device word already
            (learning rates of `nf.optim`, scales, steps of dropout and of stochastic rounding).

    Raises:
        DeviceError: inputs on different devices.
        ShapeError: inputs whose number, shapes or dtypes differ from the first call's.
        ArgumentError: an input that is no dense Array.
        StateError: while it is captured, the step reads a result on the host (``item``, ``bool``, ``np.asarray``),
            brings values from there, or waits for the GPU. The next call tries to capture again.

    Gradients: an input with ``requires_grad`` is a variable of the step; its ``.grad`` is that of the last call.

    Numerics: a replay gives the bits of the eager step.

    Example:
        >>> import nvfp as nf
        >>> weight = nf.parameter(nf.ones((2,), device="cpu"))
        >>> optimizer = nf.optim.AdamW({"weight": weight}, lr=0.5)
        >>> @nf.cuda_graph
        ... def step(x):
        ...     optimizer.zero_grad()
        ...     loss = (weight * x).sum()
        ...     loss.backward()
        ...     optimizer.step()
        ...     return loss
        >>> [round(step(nf.ones((2,), device="cpu")).item(), 3) for _ in range(2)]
        [2.0, 0.99]
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        if not callable(step):
            raise ArgumentError(message("cuda_graph", "a function of Arrays", repr(step), "pass the step first"))
        self._step = step
        self._inputs: tuple[Array, ...] | None = None
        self._outputs: Any = None
        self._warm = False
        self._graph: Any = None
        self._stream: Any = None
        self._pool: Any = None
        self._written: list[Storage] = []

    def __call__(self, *inputs: Array) -> Any:
        """Run one step; see the class."""
        if not self._on_cuda(inputs):
            return self._run_eagerly(inputs)
        cp = need("cupy", extra="cuda13")
        if self._inputs is None:
            self._inputs = self._begin(cp, inputs)
        self._check(self._inputs, inputs)
        current = cp.cuda.get_current_stream()
        self._stream.wait_event(current.record())
        with self._stream, cp.cuda.using_allocator(self._pool.malloc):
            for static, x in zip(self._inputs, inputs, strict=True):
                cast(x.raw, x.raw.dtype, out=static.raw)
            outputs = self._run(self._inputs)
        current.wait_event(self._stream.record())
        for static, x in zip(self._inputs, inputs, strict=True):
            if type(x._node) is Leaf:
                x.grad = static.grad
        return outputs

    @staticmethod
    def _on_cuda(inputs: tuple[Array, ...]) -> bool:
        for x in inputs:
            if type(x) is not Array or x.dtype is not x.raw.dtype:
                got = str(x.dtype) if isinstance(x, Array) else type(x).__name__
                do = "pass values that change as arrays (nf.asarray), and keep the others in the step"
                raise ArgumentError(message("cuda_graph", "dense Arrays as inputs", got, do))
        devices = {x.device for x in inputs} or {default_device()}
        if len(devices) > 1:
            got = " and ".join(sorted(map(str, devices)))
            raise DeviceError(message("cuda_graph", "inputs on one device", got, 'move them with x.to_device("cuda")'))
        return devices.pop().type == "cuda"

    def _begin(self, cp: Any, inputs: tuple[Array, ...]) -> tuple[Array, ...]:
        self._stream = cp.cuda.Stream(non_blocking=True)
        self._pool = cp.cuda.MemoryPool()
        _graphs.add(self)
        made = tuple(wrap(cast(x.raw, x.raw.dtype)) for x in inputs)
        for static, x in zip(made, inputs, strict=True):
            static.requires_grad = type(x._node) is Leaf
        return made

    def _run(self, inputs: tuple[Array, ...]) -> Any:
        if not self._warm:
            outputs = self._run_eagerly(inputs)
            self._warm = True
            return outputs
        if self._graph is None:
            self._capture(inputs)
        else:
            for storage in self._written:
                storage.touch()
        self._graph.launch(self._stream)
        return self._outputs

    def _run_eagerly(self, inputs: tuple[Array, ...]) -> Any:
        for x in inputs:
            if type(x._node) is Leaf:
                x.grad = None  # a variable of this call alone
        return self._step(*inputs)

    def _capture(self, inputs: tuple[Array, ...]) -> None:
        with watch_writes() as written:
            self._stream.begin_capture()
            try:
                outputs = self._run_eagerly(inputs)
            except NvfpError:
                self._abandon()
                raise
            except Exception as error:
                broken = self._abandon()
                raise (_waits(broken) if broken is not None else error) from error
            except BaseException:
                self._abandon()
                raise
            try:
                graph = self._stream.end_capture()
            except Exception as error:
                raise _waits(error) from error
        self._graph, self._outputs, self._written = graph, outputs, written

    def _abandon(self) -> Exception | None:
        """End a capture that came to nothing; return what CUDA has against it, if it was broken."""
        try:
            self._stream.end_capture()
        except Exception as error:
            return error
        return None

    def _check(self, statics: tuple[Array, ...], inputs: tuple[Array, ...]) -> None:
        want = [(a.shape, a.dtype) for a in statics]
        got = [(a.shape, a.dtype) for a in inputs]
        if want != got:
            raise ShapeError(
                message("cuda_graph", f"inputs like the first call's {want}", got, "make a new graph for other shapes")
            )


def _waits(error: Exception) -> StateError:
    """What a capture that CUDA has broken is raised as."""
    do = "return results from the step and read them after the call"
    return StateError(message("cuda_graph", "a step that never waits for the GPU", error, do))
