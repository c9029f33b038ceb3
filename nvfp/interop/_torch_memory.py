"""Torch tensors as Arrays and back over the same memory, on torch's current stream."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.arrays.convert import from_dlpack
from nvfp.kernels.operand import Operand, OperandPair
from nvfp.optional import need


def to_array(tensor: Any, requires_grad: bool = False) -> Array:
    """Return an Array over a tensor's memory; its history stays behind.

    Args:
        tensor: dense torch tensor on the CPU or on CUDA.
        requires_grad: whether nvfp records what is done with it.
    """
    x = from_dlpack(tensor.detach())
    x.requires_grad = requires_grad
    return x


def to_tensor(x: Array) -> Any:
    """Return a torch tensor over the memory of an Array; its history stays behind."""
    return need("torch", extra="torch").from_dlpack(x.detach())


@dataclasses.dataclass(frozen=True, slots=True)
class _Stream:
    """A CUDA stream by its handle, as the stream protocol has it; torch's own streams speak it in new releases only."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


@contextlib.contextmanager
def current_stream(device: Any) -> Iterator[None]:
    """Launch what nvfp does inside on torch's current stream of a torch device.

    Args:
        device: ``tensor.device``.
    """
    if device.type != "cuda":
        yield
        return
    cupy = need("cupy", extra="cuda13")
    pointer = need("torch", extra="torch").cuda.current_stream(device).cuda_stream
    stream = cupy.cuda.Stream.from_external(_Stream(pointer)) if pointer else cupy.cuda.Stream.null
    with cupy.cuda.Device(device.index), stream:
        yield


@dataclasses.dataclass(frozen=True, slots=True)
class _Column:
    """The place of an `OperandPair` among saved values: its column copy without memory, and where its tensors were.

    A column in high precision is one tensor and no operand, of the given shape.
    """

    operand: Operand | None
    addresses: tuple[int, ...]
    shape: tuple[int, ...] = ()


def take_apart(saved: Sequence[Any], inputs: Sequence[Any] = ()) -> tuple[list[Any], tuple[Any, ...]]:
    """Split the saved values of `nvfp.nn.functional.linear` into tensors and a template without memory.

    Torch frees, offloads and checks only what it is given as tensors. Backward reads column copies only.

    Args:
        saved: the values.
        inputs: the operation's tensors. A column in high precision may be the memory of one of them: that one is
            saved itself, so that torch notices when it is written before backward.

    Returns:
        Torch tensors over the operands' memory, and what `put_together` makes the values of again.
    """
    tensors: list[Any] = []
    template: list[Any] = []
    for value in saved:
        if isinstance(value, OperandPair):
            col = value.col
            bare = None
            if type(col) is Operand:
                bare = dataclasses.replace(col, codes=None, scale=None, tensor_scale=None)
            arrays = () if col is None else col.arrays() if bare else (col,)
            own = [to_tensor(wrap(a)) for a in arrays]
            tensors += own if bare else [_borrowed(t, inputs) for t in own]
            shape = () if bare else tuple(getattr(col, "shape", ()))
            template.append(_Column(bare, tuple(t.data_ptr() for t in own), shape))
        else:
            template.append(None if isinstance(value, Array) else value)  # inputs whose memory a column is
    return tensors, tuple(template)


def _borrowed(tensor: Any, inputs: Sequence[Any]) -> Any:
    """The input whose memory a tensor is, with its version counter; the tensor itself if there is none."""
    for given in inputs:
        if (given.data_ptr(), given.dtype, given.numel()) == (tensor.data_ptr(), tensor.dtype, tensor.numel()):
            return given
    return tensor


def put_together(template: Sequence[Any], tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Undo `take_apart`."""
    left = iter(tensors)
    return tuple(_pair(v, [next(left) for _ in v.addresses]) if isinstance(v, _Column) else v for v in template)


def _pair(column: _Column, tensors: Sequence[Any]) -> OperandPair:
    if column.operand is None:
        return OperandPair(None, to_array(tensors[0]).raw.reshape(column.shape) if tensors else None)
    codes, scale, *rest = (to_array(t).raw for t in tensors)
    # A copy (offloaded and brought back) has no rows behind those that it shows.
    padded_rows = column.operand.padded_rows if tensors[0].data_ptr() == column.addresses[0] else 0
    parts = {"codes": codes, "scale": scale, "tensor_scale": rest[0] if rest else None, "padded_rows": padded_rows}
    return OperandPair(None, dataclasses.replace(column.operand, **parts))
