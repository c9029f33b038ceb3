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


@dataclass(frozen=True)
class Refusal:
    """Why there is no plan."""

    reason: str


class Plan:
    """The forward of a record on one device, and its backward if the record asks for ``stats``.

    Args:
        record: the attention.
        device: ordinal of the current device.

    Raises:
        Unsupported: cuDNN has no engine for one of them.
    """

    def __init__(self, record: AttentionRecord, device: int) -> None:
        self.record = record
        self.stats = record.stats or record.mask is not None  # a masked forward finds rows without keys by them
        self.packed = record.packed  # how the gradients lie
        self.forward = self._graph(False, device)
        self.backward = self._backward(device) if record.stats else None

    def _backward(self, device: int) -> binding.Graph:
        if self.packed:
            try:
                return self._graph(True, device)
            except binding.Unsupported:
                self.packed = None
        return self._graph(True, device)

    def _graph(self, backward: bool, device: int) -> binding.Graph:
        r = self.record
        return binding.Graph(
            backward,
            tensors(r, packed=backward and self.packed is not None),
            scale=r.scale,
            band=r.band,
            alignment=r.alignment,
            dropout=r.dropout,
            stats=self.stats,
            deterministic=r.deterministic,
            device=device,
        )


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
