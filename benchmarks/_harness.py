"""What every benchmark shares: the device, random inputs, rows with their roofs and peers, the command line.

A benchmark is a function of a `Bench`; ``main(bench)`` runs one, ``run.py`` runs all. Data are random, never zeros.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import importlib.metadata
import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from _recorded import H200_ROOFS, RECORDED, Key
from _row import Limit, Row, limits_text, rate_text, roofs_text
from _timing import Call, Timing, copy_rate_cpu, copy_rate_gpu, matmul_rate_cpu, time_cpu, time_gpu, time_host

from nvfp.device import Device, check_usable, default_device
from nvfp.errors import NvfpError
from nvfp.kernels.cpu._pool import threads
from nvfp.kernels.random import Draw, random

BFLOAT16, FLOAT32, INT64 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32), np.dtype(np.int64)
_PACKAGES = (
    "nvfp", "numpy", "numba", "ml-dtypes", "torch", "torchao", "cupy-cuda12x", "cupy-cuda13x", "cuda-bindings",
    "cuda-core", "nvmath-python", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12",
)  # fmt: skip

_HAS_LOAD = hasattr(os, "getloadavg")
Peer = Callable[[Any], Call]  # the torch module -> the call to time
Rivals = dict[str, Callable[[], Call]]  # name -> makes the call to time; ImportError where it is not here
_LEAD = 5.0  # how many times as long a rival must take, on the CPU


@dataclass
class Bench:
    """What a benchmark gets: the device, sizes, random inputs, and `row` and `host`, which measure and print.

    Attributes:
        device: where it runs.
        quick: smaller sizes, fewer repeats.
        peers: whether torch is timed too, if it is here.
        rows: what was measured.
        load: processes that ran or waited to run at the start (average of a minute), where the system tells.
    """

    device: Device
    quick: bool = False
    peers: bool = True
    rows: list[Row] = field(default_factory=list)
    load: float | None = field(default_factory=lambda: round(os.getloadavg()[0], 1) if _HAS_LOAD else None)
    _draws: int = 0

    @property
    def cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    @property
    def matrix(self) -> tuple[int, int]:
        """The shape of ops that move memory."""
        rows, columns = self.size((16384, 8192), (4096, 8192), (2048, 4096), (512, 2048))
        return rows, columns

    def size(self, cuda: Any, cuda_quick: Any, cpu: Any, cpu_quick: Any) -> Any:
        """Return the size for this device and mode."""
        if self.cuda:
            return cuda_quick if self.quick else cuda
        return cpu_quick if self.quick else cpu

    @cached_property
    def xp(self) -> Any:
        """NumPy or CuPy."""
        if not self.cuda:
            return np
        import cupy

        return cupy

    @cached_property
    def torch(self) -> Any | None:
        """The torch module, if it is wanted, installed and sees the device."""
        if not self.peers:
            return None
        try:
            import torch
        except ImportError:
            return None
        if not self.cuda:
            torch.set_num_threads(threads())
        return torch if not self.cuda or torch.cuda.is_available() else None

    @cached_property
    def roofs(self) -> dict[str, float]:
        """Rates that the device reaches: ``copy`` in bytes/s; of products in FLOP/s, by the dtype multiplied in."""
        if not self.cuda:
            return {"copy": copy_rate_cpu(threads()), "float32": matmul_rate_cpu()}
        return H200_ROOFS if "H200" in self.device.name else {"copy": self.copy_now}

    @cached_property
    def copy_now(self) -> float:
        """Bytes per second of a large copy in this run: whether the device is in the state that the roof stands for."""
        return copy_rate_gpu() if self.cuda else self.roofs["copy"]

    # Inputs

    def normal(self, shape: tuple[int, ...], dtype: np.dtype = BFLOAT16, scale: float = 1.0) -> Any:
        """Draw normal values, each time others."""
        return self._draw("normal", shape, dtype, 0.0, scale)

    def integers(self, high: int, shape: tuple[int, ...]) -> Any:
        """Draw int64 values in ``0..high-1``."""
        return self._draw("integers", shape, INT64, 0, high)

    def _draw(self, kind: Draw, shape: tuple[int, ...], dtype: np.dtype, low: Any, high: Any) -> Any:
        self._draws += 1
        place = str(self.device)
        return random(kind, shape, dtype=dtype, key=2024, ordinal=self._draws, low=low, high=high, device=place)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype = BFLOAT16) -> Any:
        """Allocate an output."""
        return self.xp.empty(shape, dtype)

    def word(self, value: float = 0.0, dtype: np.dtype = FLOAT32) -> Any:
        """Make a device word."""
        return self.xp.asarray(np.asarray(value, dtype))

    def tensor(self, x: Any, dtype: str | None = None) -> Any:
        """Return a torch tensor over the memory of ``x``; ``dtype`` names the narrow dtype of uint8 codes."""
        assert self.torch is not None
        if x.dtype == BFLOAT16:  # DLPack of NumPy and CuPy does not know it
            x, dtype = x.view(np.int16), "bfloat16"
        found = self.torch.from_dlpack(x)
        return found if dtype is None else found.view(getattr(self.torch, dtype))

    # Measurements

    def row(
        self,
        name: str,
        call: Call,
        *,
        moved: float = 0,
        flops: float = 0,
        roof: str = "copy",
        setup: Call | None = None,
        peer: Peer | None = None,
        known: Key | None = None,
        least: tuple[str, int, float] | None = None,
        rivals: Rivals | None = None,
        timer: Callable[[Call], Timing] | None = None,
    ) -> None:
        """Time a call and print its row.

        Args:
            name: what runs.
            call: runs it once.
            moved: bytes that must move at least (a tensor that is needed twice and fits no cache counts twice).
            flops: floating-point operations, for products.
            roof: key of `roofs` to hold the rate against.
            setup: runs before each call and is not timed.
            peer: makes the same in torch.
            known: name and shape of a recorded figure of another library, used on an H200.
            least: on the CPU, ``"float32 in"`` or ``"float32 out"``, bytes of those values, and how many of them per
                second there must be.
            rivals: on the CPU, other libraries that must take `_LEAD` times as long.
            timer: on a GPU, how the call and torch's are timed instead.
        """
        chosen = timer if timer is not None and self.cuda else None
        ours = self._time(call, setup) if chosen is None else chosen(call)
        found = RECORDED.get(known) if known and self.roofs is H200_ROOFS else None
        roofs = self.roofs
        top = roofs.get(roof) if self.cuda or roof == "copy" else roofs["float32"]
        theirs = self._peer(name, peer, chosen or self._time)
        limits = () if self.cuda else self._limits(name, ours.median, least, rivals or {})
        self._add(Row(name, ours.median, ours.low, ours.high, moved, flops, top, None, theirs, found, limits))

    def host(self, name: str, call: Call, limit: float | None = None) -> None:
        """Time a small call on the host, which does not wait for the GPU, and print its row.

        Args:
            name: what is called.
            call: on inputs so small that a GPU keeps up.
            limit: microseconds that the host may take for it when a GPU does the work.
        """
        t = time_host(call, self.synchronize)
        allowed = limit / 1e6 if limit is not None and self.cuda else None
        self._add(Row(f"{name} (small)", t.median, t.low, t.high, limit=allowed))

    def _time(self, call: Call, setup: Call | None = None) -> Timing:
        if self.cuda:
            return time_gpu(call, setup=setup, seconds=0.05 if self.quick else 0.2)
        return time_cpu(call, setup=setup, seconds=0.1 if self.quick else 0.5)

    def _peer(self, name: str, peer: Peer | None, timer: Callable[[Call], Timing]) -> float | None:
        if peer is None or self.torch is None:
            return None
        try:  # a peer that cannot do it here must not stop us
            return timer(peer(self.torch)).median
        except Exception as error:
            print(f"  (torch cannot do {name!r}: {' '.join(str(error).split())[:160]})", file=sys.stderr)
            return None

    def _limits(
        self, name: str, ours: float, least: tuple[str, int, float] | None, rivals: Rivals
    ) -> tuple[Limit, ...]:
        """What a call of ``ours`` seconds must reach, with the rivals that are here."""
        found = [] if least is None else [Limit(least[0], least[1] / ours, least[2])]
        for rival, make in rivals.items() if self.peers else ():
            try:
                call = make()
            except ImportError as error:
                print(f"  ({name!r} without {rival}: {' '.join(str(error).split())[:160]})", file=sys.stderr)
                continue
            found.append(Limit(rival, self._time(call).median / ours, _LEAD))
        return tuple(found)

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        print(row, flush=True)

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if self.cuda:
            self.xp.cuda.runtime.deviceSynchronize()

    def release(self) -> None:
        """Give memory of finished benchmarks back."""
        gc.collect()
        if self.cuda:
            self.xp.get_default_memory_pool().free_all_blocks()
            if self.torch is not None:
                self.torch.cuda.empty_cache()

    def report(self) -> dict[str, Any]:
        """Return everything measured and what it depends on, as plain data."""
        return {
            "device": self.device.type,
            "name": self.device.name if self.cuda else f"{threads()} cores, {_processor()}",
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "load": self.load,
            "command": _command(),
            "versions": versions(),
            "roofs": self.roofs,
            "copy now": self.copy_now,
            "rows": [asdict(row) for row in self.rows],
        }


def versions() -> dict[str, str]:
    """Versions that figures depend on."""
    installed = {d.name.lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()}
    return {"python": sys.version.split()[0], **{name: installed[name] for name in _PACKAGES if name in installed}}


def _command() -> str:
    """The command that runs, without the machine's paths."""
    script, *options = sys.argv
    kept = [
        o for at, o in enumerate(options) if not o.startswith("--json") and (at == 0 or options[at - 1] != "--json")
    ]
    return shlex.join(["python", f"benchmarks/{Path(script).name}", *kept])


def _processor() -> str:
    """The processor's name, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), Device("cpu").name)


def parser(about: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark takes."""
    options = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    options.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    options.add_argument("--quick", action="store_true", help="smaller sizes and fewer repeats")
    options.add_argument("--no-peers", action="store_true", help="do not time torch and other libraries")
    options.add_argument("--json", type=Path, metavar="FILE", help="write every figure there as well")
    return options


def start(args: argparse.Namespace) -> Bench:
    """Make the `Bench` that the options ask for, and print what it stands on; exit with 2 if it cannot be."""
    try:
        device = default_device() if args.device == "auto" else Device(args.device)
        check_usable(device)
    except NvfpError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None
    if device.type == "cuda":
        import cupy

        cupy.cuda.Device(device.index).use()
    bench = Bench(device, args.quick, not args.no_peers)
    about = bench.report()
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    print(
        f"{about['name']}; {versions}\nroofs: {roofs_text(bench.roofs)}; a copy now: {rate_text(bench.copy_now, 'B')}",
        flush=True,
    )
    return bench


def finish(bench: Bench, target: Path | None) -> None:
    """Write the figures where they are wanted."""
    if target is not None:
        target.write_text(json.dumps(bench.report(), indent=1) + "\n")


def main(benchmark: Callable[[Bench], None]) -> None:
    """Run one benchmark as a command."""
    args = parser(sys.modules["__main__"].__doc__).parse_args()
    bench = start(args)
    benchmark(bench)
    print(limits_text(bench.rows))
    finish(bench, args.json)
