"""`Plan`: the built graphs of one `AttentionRecord`; plans and refusals are kept in a bounded cache per device."""

from __future__ import annotations

from dataclasses import dataclass

from nvfp.device import Device
from nvfp.errors import KernelError, message
from nvfp.kernels.cublaslt.cache import LRU, CacheStats
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.cudnn import binding
from nvfp.kernels.cudnn.layout import tensors
from nvfp.kernels.cudnn.record import AttentionRecord
from nvfp.kernels.cudnn.support import refusal

WORKSPACE = 1 << 29  # bytes of a backward's workspace for which its batch is not cut; cutting costs time


@dataclass(frozen=True)
class Refusal:
    """Why there is no plan."""

    reason: str


class Plan:
    """The forward of a record on one device, and its backward if the record asks for ``stats``.

    Args:
        record: the attention.
        device: ordinal of the current device.

    Attributes:
        stats: whether the forward writes the logarithms of the row sums.
        packed: how the gradients lie, see `AttentionRecord.packed`.
        entries: of the batch that one run of the backward takes: all, or as many as keep its workspace small.

    Raises:
        Unsupported: cuDNN has no engine for one of them.
    """

    def __init__(self, record: AttentionRecord, device: int) -> None:
        self.record = record
        self.stats = record.stats or record.mask is not None  # a masked forward finds rows without keys by them
        self.packed, self.entries = record.packed, record.batch
        self.forward = self._graph(record, False, device)
        self.backward = self._backward(record, device) if record.stats else None
        if self.backward is not None:
            self.entries = _entries(record, self.backward.workspace_bytes)
            if self.entries < record.batch:
                self.backward = self._backward(record.of_batch(self.entries), device)

    def _backward(self, record: AttentionRecord, device: int) -> binding.Graph:
        if self.packed:
            try:
                return self._graph(record, True, device)
            except binding.Unsupported:
                self.packed = None
        return self._graph(record, True, device)

    def _graph(self, record: AttentionRecord, backward: bool, device: int) -> binding.Graph:
        return binding.Graph(
            backward,
            tensors(record, packed=backward and self.packed is not None),
            scale=record.scale,
            band=record.band,
            alignment=record.alignment,
            dropout=record.dropout,
            stats=self.stats,
            deterministic=record.deterministic,
            device=device,
        )


def _entries(record: AttentionRecord, workspace: int) -> int:
    """How many entries of the batch a backward takes at a time: a divisor of it, with at most `WORKSPACE` bytes if any.

    A deterministic backward keeps the gradients of all scores in its workspace, which would be most of what a layer
    holds at that moment. Dropout counts its random numbers over the whole batch; offsets of entries count from its
    start.
    """
    batch = record.batch
    if record.dropout or record.lengths or workspace <= WORKSPACE:
        return batch
    fitting = [n for n in range(1, batch) if batch % n == 0 and workspace // batch * n <= WORKSPACE]
    return max(fitting, default=1)


_plans: dict[int, LRU[AttentionRecord, Plan | Refusal]] = {}


def _cache(device: int) -> LRU[AttentionRecord, Plan | Refusal]:
    found = _plans.get(device)
    if found is None:
        name = f"the cuDNN plans of cuda:{device}"
        found = _plans.setdefault(device, LRU(name, op="attention", switch="NVFP_ATTENTION_CACHE"))
    return found


def plan_for(record: AttentionRecord) -> Plan | Refusal:
    """Return the plan of a record on the current device, from its cache or built now (0.1 to 2 s), or why not.

    Args:
        record: the attention.

    Raises:
        KernelError: there is no plan yet and the current stream is being captured.
    """
    device: int = cp.cuda.runtime.getDevice()
    return _cache(device).get_or_make(record, lambda: _make(record, device))


def _make(record: AttentionRecord, device: int) -> Plan | Refusal:
    compute = Device(f"cuda:{device}").compute_capability or (0, 0)
    reason = refusal(record, compute) or binding.problem()
    if reason is not None:
        return Refusal(reason)
    if cp.cuda.get_current_stream().is_capturing():
        do = "run the step once before you capture it"
        raise KernelError(message("attention", "a plan built before the capture", f"none for {record}", do))
    try:
        return Plan(record, device)
    except binding.Unsupported as error:
        return Refusal(str(error))


def plan_stats(device: int = 0) -> CacheStats:
    """Return how the cache of plans of a device has fared.

    Args:
        device: its ordinal.
    """
    return _cache(device).stats()
