"""`record`: the figures of every quantized GEMM operand of a model, while it trains."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any

from nvfp.arrays.array import Array, wrap
from nvfp.autograd.recompute import recomputing
from nvfp.autograd.region import on_backward_end
from nvfp.device import Device
from nvfp.errors import ArgumentError, DTypeError, StateError, message
from nvfp.inspect._words import Words, measure, measure_given, watch_output
from nvfp.inspect.figures_table import Recording, TensorFigures
from nvfp.kernels._dispatch import kind_of
from nvfp.kernels.operand import Operand, OperandPair
from nvfp.nn._gemm_site import GemmSite
from nvfp.nn._names import sites as named_sites
from nvfp.nn.module import Module
from nvfp.optional import need
from nvfp.recipes.plan import LinearPlan, SiteWatch, TensorPlan


def sites(model: Module) -> Iterator[tuple[str, GemmSite]]:
    """Yield (qualified name, site) of every GEMM of a model, one that is reached by two names once.

    Example:
        >>> import nvfp as nf
        >>> [name for name, _ in sites(nf.nn.LayerNormMLP(8, 16, device="cpu"))]
        ['fc1', 'fc2']
    """
    seen: set[int] = set()
    for name, site in named_sites(model):
        if id(site) not in seen:
            seen.add(id(site))
            yield name or type(model).__name__, site


@dataclass(frozen=True)
class _Sample:
    """What is known on the host of one row of words."""

    module: str
    tensor: str
    copy: str
    dtype: str
    step: int
    elements: int
    words: Words
    row: int
    sourced: bool  # whether there was a tensor to compare with


class record:
    """Record, for every quantized GEMM operand of a model, what quantization does to it.

    Per module and tensor (x, w, dy) and per copy that GEMMs read (row copy: fprop and dgrad's dy; column copy:
    wgrad, and dgrad's w; one line where both hold the same numbers): amax, decode factors, the share of elements that
    became 0 or were clipped, SQNR in dB. The formulas are those of `nf.quant_error`; of a rotated copy the figures are
    against the rotated tensor.

    Args:
        model: a Module, whose GEMMs are named by their place in it.
        every: record one step out of this many, the first one too.
        outputs: also record amax and non-finite elements of every GEMM's output y.

    Attributes:
        result: the `Recording` so far; reading it waits for the GPU.

    Raises:
        DTypeError: ``model`` is no Module.
        ArgumentError: ``every`` is no positive int.
        StateError: entered twice, or a step that a CUDA graph captures (a replay runs no Python).

    Numerics:
        Sums in float64, counts exact; the same bits on CPU and CUDA. The model's numbers do not change. While it
        records, each copy costs some 25 launches of nvfp's kernels and 25 temporary bytes per element, and no
        synchronisation; in the steps between (``every``) and outside the block nothing is launched.

    Notes:
        A step ends with the backward pass that follows a forward pass of the model in the same thread; where there is
        none, call `next_step`. Recomputed forward passes are not recorded again, and neither is a weight that was kept
        quantized by ``is_first_microbatch``. What came quantized (a weight born so, the input and gradient that
        another layer has quantized) has amax and scales; there is nothing to compare it with, so its SQNR, underflow
        and overflow are NaN. A result that leaves quantized is recorded where it is made, as ``y`` or ``dx``.

    Example:
        >>> import nvfp as nf
        >>> model = nf.nn.Linear(32, 16, device="cpu", rng=nf.random.default_rng(0, device="cpu"))
        >>> x = nf.random.default_rng(1, device="cpu").normal(size=(8, 32))
        >>> with nf.inspect.record(model) as seen:
        ...     with nf.autocast(recipe=nf.recipes.MXFP8BlockScaling()):
        ...         loss = model(x).sum()
        ...     loss.backward()
        >>> [f"{f.tensor} {f.copy} {f.dtype}" for f in seen.result]
        ['x row mxfp8_e4m3', 'x col mxfp8_e4m3', 'w row mxfp8_e4m3', 'dy col mxfp8_e4m3']
        >>> 28 < seen.result[0].sqnr_db < 36, seen.result.steps
        (True, 1)
    """

    def __init__(self, model: Module, *, every: int = 1, outputs: bool = False) -> None:
        if not isinstance(model, Module):
            raise DTypeError(message("record", "a Module", type(model).__name__, "pass the model"))
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ArgumentError(message("record", "every as a positive int", repr(every), "pass e.g. 100"))
        self._model, self._every, self._outputs = model, every, bool(outputs)
        self._step, self._lock = 0, threading.Lock()
        self._ran: set[int] = set()  # threads in which the model ran since their last backward pass
        self._words: dict[Device, Words] = {}
        self._samples: list[_Sample] = []
        self._dense: dict[str, int] = {}
        self._watched: list[tuple[GemmSite, _Watch]] | None = None
        self._known: tuple[tuple[int, int], Recording] | None = None

    def __enter__(self) -> record:
        if self._watched is not None:
            raise StateError(message("record", "an object that was not entered", "one that was", "make a new one"))
        self._watched = []
        for name, site in sites(self._model):
            watch = _Watch(self, name, site.watch)
            self._watched.append((site, watch))
            site.watch = watch
        self._remove = on_backward_end(self._backward_ended)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
        for site, watch in self._watched or ():
            _unwatch(site, watch)

    def next_step(self) -> None:
        """End the step: for loops without a backward pass."""
        with self._lock:
            self._step += 1
            self._ran.clear()

    @property
    def result(self) -> Recording:
        """What has been recorded so far."""
        key = (len(self._samples), self._step)
        if self._known is None or self._known[0] != key:
            self._known = key, self._read()
        return self._known[1]

    def _backward_ended(self) -> None:
        """A pass has ended in this thread, of this model or (where it has not run here since the last) of another."""
        thread = threading.get_ident()
        with self._lock:
            if thread in self._ran:
                self._ran.discard(thread)
                self._step += 1

    def _read(self) -> Recording:
        samples = list(self._samples)
        values = {id(words): words.read() for words in self._words.values()}
        found = []
        for s in samples:
            at = {name: column[s.row].item() for name, column in values[id(s.words)].items()}
            n = max(s.elements, 1) if s.sourced else math.nan
            found.append(
                TensorFigures(
                    module=s.module, tensor=s.tensor, copy=s.copy, dtype=s.dtype, step=s.step, samples=1,
                    elements=s.elements, amax=at["amax"], scale_min=at["scale_min"], scale_max=at["scale_max"],
                    underflow=at["flushed"] / n, overflow=at["saturated"] / n, nonfinite=s.elements - at["finite"],
                    signal=at["signal"] if s.sourced else math.nan, noise=at["noise"] if s.sourced else math.nan,
                )
            )  # fmt: skip
        return Recording(found, steps=self._step + bool(self._ran), dense=self._dense)

    def _row(self, raw: Any) -> tuple[Words, int, Any]:
        """The next row of words on the device of ``raw``."""
        if _capturing(raw):
            do = "call the step function itself in the steps that are recorded"
            raise StateError(message("record", "a step that runs eagerly", "one that a CUDA graph captures", do))
        device = wrap(raw).device
        with self._lock:
            words = self._words.setdefault(device, Words(device))
            return words, words.rows, words.row()

    def _keep(
        self, name: str, tensor: str, copy: str, dtype: str, step: int, raw: Any, elements: int, sourced: bool = True
    ) -> Any:
        words, at, row = self._row(raw)
        self._samples.append(_Sample(name, tensor, copy, dtype, step, elements, words, at, sourced))
        return row

    def _pair(self, name: str, tensor: str, step: int, before: Any, raw: Any, pair: OperandPair, role: str) -> None:
        """Measure the copies that are there, both only where their numbers differ; of a given pair the row copy."""
        if before is not None:
            before(raw, pair, role)
        for copy, side in (("row", pair.row), ("col", pair.col)):
            if type(side) is not Operand or (copy == "col" and (raw is None or _same(side, pair.row))):
                continue
            size, sourced = side.shape[0] * side.shape[1], raw is not None
            row = self._keep(name, role or tensor, copy, str(side.format), step, side.codes, size, sourced)
            if sourced:
                measure(raw, side, row)
            else:
                measure_given(side, row)


def _same(col: Operand, row: Any) -> bool:
    """Whether the column copy holds the numbers of the row copy: the same Operand, or square blocks."""
    if type(row) is not Operand or col is row:
        return col is row
    return col.format == row.format and col.format.square and col.rotation == "none"


class _Watch:
    """Looks on at one GEMM for a `record`, and lets a watch that was there before look on too."""

    def __init__(self, owner: record, name: str, before: SiteWatch | None) -> None:
        self.owner, self.name, self.before = owner, name, before

    def plan(self, plan: LinearPlan | None) -> LinearPlan | None:
        """The plan with watchers in it, in the steps that are recorded."""
        if self.before is not None:
            plan = self.before.plan(plan)
        owner, again = self.owner, recomputing()
        if not again:
            owner._ran.add(threading.get_ident())
        if plan is None:
            owner._dense[self.name] = owner._dense.get(self.name, 0) + 1
        if plan is None or owner._step % owner._every:
            return plan
        for role in ("dy",) if again else ("x", "w", "dy"):  # again: x and w were seen, the gradient was not
            tensor: TensorPlan = getattr(plan, role)
            seen = partial(owner._pair, self.name, role, owner._step, tensor.watch)
            plan = replace(plan, **{role: replace(tensor, watch=seen)})  # type: ignore[arg-type]
        return plan

    def output(self, y: Array) -> None:
        """Record the output, where that is asked for."""
        owner = self.owner
        if self.before is not None:
            self.before.output(y)
        if not owner._outputs or owner._step % owner._every or recomputing():
            return
        raw = y.raw
        watch_output(raw, owner._keep(self.name, "y", "dense", str(y.dtype), owner._step, raw, y.size))


def _unwatch(site: GemmSite, watch: _Watch) -> None:
    """Take a watch out of the chain of a site, wherever it stands."""
    if site.watch is watch:
        site.watch = watch.before
        return
    outer: Any = site.watch
    while outer is not None and outer.before is not watch:
        outer = outer.before
    if outer is not None:
        outer.before = watch.before


def _capturing(raw: Any) -> bool:
    """Whether a CUDA graph captures the current stream."""
    if kind_of(raw) == "cpu":
        return False
    return bool(need("cupy", extra="cuda13").cuda.get_current_stream().is_capturing())
