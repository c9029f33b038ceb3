"""`tune`: time cuBLASLt's algorithms for the products that this process has run, and write the best into a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nvfp.device import Device
from nvfp.dtypes.formats import fp8_e4m3, nvfp4
from nvfp.errors import ArgumentError, DeviceError, message
from nvfp.kernels.cublaslt import tuned, typemap as tm
from nvfp.kernels.cublaslt.plan import Plan, forget_plans, plan_cache
from nvfp.kernels.cublaslt.problem import GemmProblem, Matrix
from nvfp.kernels.cuda._memory import address
from nvfp.kernels.cuda._xp import cp
from nvfp.kernels.quantize import quantize
from nvfp.kernels.random import random
from nvfp.optional import has, need

ALGORITHMS = 8  # that are timed at most
_GAIN = 0.98  # another algorithm than the first must take at most so much of its time


@dataclass(frozen=True)
class TunedProblem:
    """What was measured for one problem.

    Attributes:
        problem: the record, in words.
        ms: milliseconds of each proposal, cuBLASLt's first choice first.
        chosen: index of the one that was written.
    """

    problem: str
    ms: tuple[float, ...]
    chosen: int

    def __str__(self) -> str:
        gain = self.ms[0] / self.ms[self.chosen]
        return f"{self.ms[self.chosen]:.4f} ms, x {gain:.2f}, number {self.chosen} of {len(self.ms)}: {self.problem}"


class Tune:
    """``nf.tune()``: time cuBLASLt's algorithms for the GEMMs run so far and write the fastest ones into a file.

    Without a tuning file every GEMM takes cuBLASLt's first proposal. ``nf.tune()`` is explicit: run the model once,
    call it, and load the file in later runs with ``nf.tune.load()`` or ``NVFP_GEMM_TUNING``. A tuned product repeats
    its bits as every other one, but they may differ from those of the first proposal (another order of sums).

    Example:
        >>> import nvfp as nf
        >>> nf.tune.path().name
        'gemm-tuning.json'
    """

    def __call__(
        self, path: str | Path | None = None, *, device: Any = None, progress: bool = True
    ) -> list[TunedProblem]:
        """Time up to 8 proposals for each plan in the cache and write the fastest into ``path``.

        It waits for the GPU, allocates operands of the sizes of each problem, and takes a few tenths of a second for
        each. Entries of other problems, GPUs and versions of cuBLASLt that the file holds stay.

        Args:
            path: the file; default `path()`.
            device: a CUDA device; default: the default device.
            progress: show a bar, if tqdm is installed.

        Returns:
            One `TunedProblem` for each.

        Raises:
            DeviceError: the device is no CUDA device.
            ArgumentError: no GEMM has run there yet, or the file cannot be written.
        """
        found = _device(device)
        plans = list(plan_cache(found.index).values())
        if not plans:
            raise ArgumentError(message("tune", "GEMMs that have run", "none", "run a step first, then nf.tune()"))
        target = tuned.default_path() if path is None else Path(path)
        entries = tuned.read(target) if target.exists() else {}
        results = []
        with cp.cuda.Device(found.index):
            for plan in _shown(plans, progress):
                result, times = _best(plan)
                entry = tuned.entry(plan.problem, found.index, result, times)
                entries[tuned.key(entry["gpu"], entry["cublaslt"], entry["problem"])] = entry
                results.append(TunedProblem(str(plan.problem), tuple(times), _choice(times)))
        tuned.write(target, entries)
        return results

    def load(self, path: str | Path | None = None) -> int:
        """Use the algorithms of a file from now on, also for products that have run before; return how many there are.

        Args:
            path: the file; default `path()`.

        Raises:
            ArgumentError: it cannot be read or is no tuning file.
        """
        entries = tuned.read(tuned.default_path() if path is None else Path(path))
        tuned.use(entries)
        forget_plans()
        return len(entries)

    def unload(self) -> None:
        """Go back to cuBLASLt's first proposals."""
        tuned.use({})
        forget_plans()

    def path(self) -> Path:
        """Return the file in the cache folder: ``$NVFP_CACHE_DIR/gemm-tuning.json``."""
        return tuned.default_path()


tune = Tune()


def _device(device: Any) -> Device:
    from nvfp.device import default_device

    found = default_device() if device is None else Device(str(device))
    if found.type != "cuda":
        raise DeviceError(message("tune", "a CUDA device", found, "tune where the GPU is; NumPy's BLAS has no choice"))
    return found


def _shown(plans: list[Plan], progress: bool) -> Iterable[Plan]:
    if not (progress and has("tqdm")):
        return plans
    bar: Iterable[Plan] = need("tqdm", extra="plot").tqdm(plans, desc="tune", unit="gemm")
    return bar


def _choice(times: list[float]) -> int:
    """The first proposal, unless another one is clearly faster."""
    best = int(np.argmin(times))
    return best if times[best] <= _GAIN * times[0] else 0


def _best(plan: Plan) -> tuple[np.ndarray, list[float]]:
    """Time every proposal of a plan on memory of its own."""
    found = plan.proposals(ALGORITHMS)
    held = scratch(plan.problem)
    times = measure([_call(plan, found[i : i + 1], held) for i in range(len(found))])
    chosen = _choice(times)
    return found[chosen : chosen + 1], times


def _call(plan: Plan, result: np.ndarray, held: dict[str, Any]) -> Callable[[], None]:
    """A call of the problem with one algorithm, over arrays that `scratch` made."""
    other = plan.with_algorithm(result)
    at = {name: address(array) for name, array in held.items()}
    stream: int = cp.cuda.get_current_stream().ptr
    alpha = at["word"] if plan.problem.device_alpha else 0
    pointers = {
        tm.AUX_POINTER: at.get("aux", 0),
        tm.D_SCALE_POINTER: at["word"],
        tm.AMAX_D_POINTER: at["word"],
    }
    more = tuple((p, pointers[p]) for p in plan.problem.needed_pointers() if p in pointers)

    def call() -> None:
        other.execute(
            at["x"],
            at["w"],
            at["y"],
            stream,
            alpha,
            at.get("bias", 0),
            at.get("x_scale", 0),
            at.get("w_scale", 0),
            more,
        )

    return call


def scratch(problem: GemmProblem) -> dict[str, Any]:
    """Return random operands, scales of 1, and room for what the problem writes."""
    x_rows = problem.k if problem.x.transposed else problem.m
    w_rows = problem.n if problem.w.transposed else problem.k
    found = {"x": _matrix(problem.x, x_rows, problem.batch), "w": _matrix(problem.w, w_rows, problem.batch)}
    size = max(problem.m * problem.y.ld, problem.y.stride * problem.batch) * 8
    found["y"] = cp.zeros(size, np.uint8)
    found["word"] = cp.ones((), np.dtype(problem.compute))
    for name, side, rows in (("x_scale", problem.x, problem.m), ("w_scale", problem.w, problem.n)):
        if side.scale is not None:  # enough for every mode; 0x38 is 1 in E4M3 and small in E8M0 and float32
            found[name] = cp.full((rows + 128) * (problem.k // 16 + 64), 0x38, np.uint8)
    if problem.bias is not None:
        found["bias"] = cp.zeros(max(problem.m, problem.n) * 8, np.uint8)
    if problem.aux_ld:
        found["aux"] = cp.zeros(problem.m * problem.aux_ld * 4, np.uint8)
    return found


def _matrix(side: Matrix, rows: int, batch: int) -> Any:
    count = max(rows, -(-side.stride * batch // side.ld)) if side.stride else rows
    shape, place = (count, side.ld), f"cuda:{cp.cuda.runtime.getDevice()}"
    dtype = tm.NAMED.get(side.dtype, tm.BFLOAT16)
    x = random("normal", shape, dtype=dtype, key=1, ordinal=0, low=0.0, high=1.0, device=place)
    if side.dtype in tm.NAMED:
        return x
    row = quantize(x, nvfp4 if side.dtype.startswith("float4") else fp8_e4m3).row
    assert row is not None
    return row.codes


def measure(calls: list[Callable[[], None]], rounds: int = 7, steps: int = 5) -> list[float]:
    """Return the milliseconds of each call: the median of rounds in which all take turns."""
    for call in calls:
        call()
        call()
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, found in zip(calls, times, strict=True):
            start, stop = cp.cuda.Event(), cp.cuda.Event()
            start.record()
            for _ in range(steps):
                call()
            stop.record()
            stop.synchronize()
            found.append(cp.cuda.get_elapsed_time(start, stop) / steps)
    return [float(np.median(found)) for found in times]
