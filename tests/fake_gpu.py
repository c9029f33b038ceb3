"""An H200 that computes nothing: what a step asks of it is counted, with the bytes of the arrays that are named.

Launchers, GEMM plans and attention plans run as they are, over a stand-in of CuPy whose arrays lie in host memory that
nobody writes; cuBLASLt and cuDNN are the emulators of their tests, asked and not run. For a process of its own:
`fake_gpu` takes CUDA's place for good.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from tests.kernels.cublaslt.emulator import DTYPES, FakeLt
from tests.kernels.cudnn.emulator import DTYPES as CUDNN_DTYPES, FakeCudnn, FakeGraph

ATTRIBUTES = {16: 132, 75: 9, 76: 0}  # multiprocessors, compute capability
ALIGNMENT = 512  # of allocations


@dataclass(frozen=True)
class Event:
    """One piece of work.

    Attributes:
        kind: ``"kernel"``, ``"gemm"``, ``"attention"``, ``"memset"``, or ``"copy"`` (from the host).
        name: of the kernel, or dtypes of the product.
        moved: bytes of the arrays that it reads and writes, each once.
        flops: of products.
        macros: that the kernel is compiled with.
    """

    kind: str
    name: str
    moved: int
    flops: float = 0.0
    macros: tuple[tuple[str, Any], ...] = ()


EVENTS: list[Event] = []
KERNELS: dict[Any, None] = {}  # the kernels that were launched (`nvfp.kernels.cuda._loader.Instance`)


class Pointer:
    """`cupy.cuda.MemoryPointer`."""

    def __init__(self, memory: np.ndarray, ptr: int) -> None:
        self.memory, self.ptr, self.device_id = memory, ptr, 0

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self.memory, self.ptr + offset)

    def memset_async(self, value: int, nbytes: int, stream: Any = None) -> None:
        EVENTS.append(Event("memset", "memset", nbytes))

    def copy_from_device_async(self, source: Pointer, nbytes: int, stream: Any = None) -> None:
        EVENTS.append(Event("memset", "copy of a word", 2 * nbytes))


class Memory:
    """What is allocated, in units of `ALIGNMENT`, and the most that was at one time since `peak` was set back."""

    def __init__(self) -> None:
        self.live = self.peak = 0

    def change(self, nbytes: int) -> None:
        self.live += nbytes
        self.peak = max(self.peak, self.live)


MEMORY = Memory()


def allocate(nbytes: int) -> Pointer:
    """Memory that the system hands out when it is touched, which it is not."""
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    size = -(-nbytes // ALIGNMENT) * ALIGNMENT
    MEMORY.change(size)
    weakref.finalize(memory, MEMORY.change, -size)
    at = memory.ctypes.data
    return Pointer(memory, at + -at % ALIGNMENT)


class ndarray:
    """`cupy.ndarray`: shape, dtype, strides and a place; views share the memory. Reading it on the host is refused."""

    __module__ = "cupy"

    def __init__(
        self, shape: Any = (), dtype: Any = float, memptr: Any = None, strides: Any = None, _no_init: bool = False
    ) -> None:
        if not _no_init:
            self._init(shape, dtype, memptr, strides)

    def __new__(cls, *_: Any, **__: Any) -> ndarray:
        return object.__new__(cls)

    def _init(self, shape: Any, dtype: Any, memptr: Pointer | None = None, strides: Any = None) -> None:
        shape, dtype = (shape,) if isinstance(shape, int) else tuple(shape), np.dtype(dtype)
        self.data = allocate(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize) if memptr is None else memptr
        offset = self.data.ptr - self.data.memory.ctypes.data
        self._hold(np.ndarray(shape, dtype, self.data.memory, offset, strides), None)

    def _hold(self, host: np.ndarray, base: ndarray | None) -> None:
        self._host, self.base = host, base
        self.shape, self.dtype, self.strides, self.flags = host.shape, host.dtype, host.strides, host.flags
        self.ndim, self.size, self.nbytes, self.itemsize = host.ndim, host.size, host.nbytes, host.itemsize
        self.device = SimpleNamespace(id=0)

    def _seen(self, host: np.ndarray) -> ndarray:
        found = object.__new__(ndarray)
        found.data = Pointer(self.data.memory, host.ctypes.data)
        found._hold(host, self if self.base is None else self.base)
        return found

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> ndarray:
        return self._seen(self._host[index if isinstance(index, tuple) else (index, ...)])

    def reshape(self, *shape: Any) -> ndarray:
        host = self._host.view()
        host.shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape  # raises for a copy
        return self._seen(host)

    def transpose(self, *axes: Any) -> ndarray:
        return self._seen(self._host.transpose(*axes))

    def swapaxes(self, a: int, b: int) -> ndarray:
        return self._seen(self._host.swapaxes(a, b))

    def view(self, dtype: Any) -> ndarray:
        return self._seen(self._host.view(dtype))

    def fill(self, value: Any) -> None:
        self.data.memset_async(0, self.nbytes)

    @property
    def T(self) -> ndarray:
        return self.transpose()

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise AssertionError("the host reads device memory")

    get = item = __bool__ = __float__ = __int__ = __array__


def _asarray(host: np.ndarray) -> ndarray:
    EVENTS.append(Event("copy", "from the host", host.nbytes))
    return ndarray(host.shape, host.dtype)


def _zeros(shape: Any, dtype: Any = np.float32) -> ndarray:
    found = ndarray(shape, dtype)
    found.data.memset_async(0, found.nbytes)
    return found


class _Current:
    """A device or stream that is the current one already."""

    id, ptr = 0, 7

    def __init__(self, *_: Any, **__: Any) -> None:
        return None

    def __enter__(self) -> _Current:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def is_capturing(self) -> bool:
        return False


def _cupy() -> ModuleType:
    found = ModuleType("cupy")
    runtime = SimpleNamespace(getDevice=lambda: 0, deviceGetAttribute=lambda which, _: ATTRIBUTES[which])
    found.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        runtime=runtime, alloc=allocate, get_current_stream=_Current, Device=_Current, Stream=_Current
    )
    for name, value in {"ndarray": ndarray, "empty": ndarray, "zeros": _zeros, "asarray": _asarray}.items():
        setattr(found, name, value)
    return found


class _Lt(FakeLt):
    """cuBLASLt that notes what it is asked for."""

    def matmul(self, handle: int, desc: int, *rest: int) -> None:
        a, b, c, d = (self.objects[rest[place]] for place in (2, 4, 7, 9))
        self._check(self.objects[desc], a, b, c, d)
        moved = sum(x["rows"] * x["columns"] * DTYPES[x["type"]].itemsize for x in (a, b, d))
        k = a["rows"] if self.objects[desc].get(3) else a["columns"]
        names = " by ".join(DTYPES[x["type"]].name for x in (b, a))
        EVENTS.append(Event("gemm", names, moved, 2.0 * d["rows"] * d["columns"] * k))


class _Graph(FakeGraph):
    """An attention that notes that it runs."""

    def get_workspace_size(self) -> int:
        """What `nvfp.kernels.cudnn.binding.Graph` says of compute capability 9."""
        q, k = (self.inputs[name].fields["dim"] for name in "qk")  # type: ignore[union-attr]
        return 64 if self.kind == "sdpa" else 2 * q[0] * q[1] * -(-q[2] // 128) * 128 * -(-k[2] // 128) * 128

    def execute(self, addresses: dict[int, int], workspace: int, handle: Any) -> None:
        tensors = [t.fields for t in (*self.inputs.values(), *self.outputs) if t is not None]
        moved = sum(int(np.prod(f["dim"])) * CUDNN_DTYPES[f["data_type"]].itemsize for f in tensors)
        q, k = (self.inputs[name].fields["dim"] for name in "qk")  # type: ignore[union-attr]
        products, half = 2 if self.kind == "sdpa" else 5, self.options.get("diagonal_band_right_bound") == 0
        flops = 2.0 * products * q[0] * q[1] * q[2] * k[2] * q[3] / (2 if half else 1)
        EVENTS.append(Event("attention", self.kind, moved, flops))


class _Cudnn(FakeCudnn):
    def pygraph(self, **types: Any) -> FakeGraph:
        return _Graph(self, **types)


def _launcher(kernel: Any) -> Any:
    def launch(grid: Any, block: Any, args: tuple[Any, ...], shared: int) -> None:
        named = {(x.data.ptr, x.nbytes): x.nbytes for x in args if isinstance(x, ndarray)}
        KERNELS[kernel.instance] = None
        EVENTS.append(Event("kernel", kernel.instance.name, sum(named.values()), macros=tuple(kernel.instance.defines)))

    return launch


def fake_gpu() -> list[Event]:
    """Take CUDA's place in this process and return the list in which its work is noted."""
    if getattr(sys.modules.get("cupy"), "ndarray", None) is ndarray:
        return EVENTS
    sys.modules["cupy"] = _cupy()
    from nvfp import device
    from nvfp.kernels import _prepared
    from nvfp.kernels.cublaslt import binding as cublaslt
    from nvfp.kernels.cuda._loader import Kernel
    from nvfp.kernels.cudnn import binding as cudnn, plan

    _prepared.watched = lambda: True  # every call names its arrays
    Kernel.function = _launcher  # type: ignore[method-assign, assignment]
    state = SimpleNamespace(
        handle=1, lock=contextlib.nullcontext(), constant=lambda compute, one: 512, workspace=lambda _: 256
    )
    library, attention = _Lt(), _Cudnn()
    library.objects[1] = {}
    cublaslt._lt = lambda: library  # type: ignore[assignment]
    cublaslt._states[0] = state  # type: ignore[assignment]
    cudnn._cudnn = lambda: attention
    cudnn.problem = lambda: None  # type: ignore[assignment]
    plan.Device = lambda _: SimpleNamespace(compute_capability=(9, 0))  # type: ignore[assignment, misc]
    place = device.Device("cuda")
    device._compute_capability = lambda _: (9, 0)
    device._cuda = lambda: ((place,), None)  # type: ignore[assignment]
    device.set_default_device(place)
    return EVENTS
