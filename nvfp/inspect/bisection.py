"""`bisect`: which tensors' quantization hurts the loss and its gradient most."""

from __future__ import annotations

import copy
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from typing import Any, Literal

from nvfp.arrays.array import Array
from nvfp.arrays.functions.conversion import astype
from nvfp.arrays.functions.reductions import sum as total
from nvfp.autograd import value_and_grad
from nvfp.dtypes.dense import float64
from nvfp.errors import ArgumentError, DTypeError, message
from nvfp.inspect.findings import Bisection, Finding, Tensor, check_order
from nvfp.inspect.recording import sites
from nvfp.nn.module import Module, functional_call
from nvfp.optional import has, need
from nvfp.recipes.base import Recipe
from nvfp.recipes.context import autocast, current_recipe, default_recipe, outside
from nvfp.recipes.plan import HIGH_PRECISION, LinearPlan, SiteWatch, turned_alike

ROLES = ("x", "w", "dy")


def bisect(
    model: Module,
    batch: Any,
    *,
    loss: Callable[[Any], Array] | None = None,
    recipe: Recipe | None = None,
    switch: Literal["on", "off"] = "on",
    budget: int | None = None,
    by: Literal["loss", "gradient"] = "loss",
    progress: bool = True,
) -> Bisection:
    """Find the tensors whose quantization hurts the loss and its gradient most.

    The model runs on one batch in high precision (the reference), fully quantized, and then with single tensors
    quantized, or all but single tensors. Within a smaller budget it runs with groups of tensors, neighbours in the
    model, and splits the group that hurts most in halves, again and again.

    Args:
        model: a Module.
        batch: its input: an Array, a tuple of positional or a dict of named arguments.
        loss: takes what the model returns and gives a 0-d Array; without it the model returns the loss itself.
        recipe: the `Recipe` to look into; the one in force unless given (outside `nf.autocast` its default).
        switch: ``"on"``: from high precision, quantize each tensor alone; ``"off"``: from fully quantized, leave each
            one out.
        budget: most forward and backward passes (at least 4); None takes as many as there are tensors, and 2.
        by: what counts as hurting, see `Bisection.sorted`.
        progress: show a progress bar where tqdm is installed.

    Returns:
        A `Bisection`: findings with loss difference and gradient cosine, the worst first.

    Raises:
        DTypeError: ``model`` is no Module.
        ArgumentError: a switch, order or budget that is none, or a model without GEMMs.
        GradientError: the loss is not a 0-d floating Array.

    Numerics:
        Every run starts from the state that the model has now: scaling state, seeds of dropout and stochastic
        rounding. The runs work on a copy that shares the parameters, so state, kept weights, seeds, ``.grad`` and an
        `nf.autocast` around the call stay as they are. A gradient ``dy`` cannot change the loss of its own step: its
        line tells by the gradient. High precision is the dtype of the input of each GEMM.

    Example:
        >>> import nvfp as nf
        >>> rng = nf.random.default_rng(0, device="cpu")
        >>> model = nf.nn.LayerNormMLP(32, 64, device="cpu", rng=rng)
        >>> x = rng.normal(size=(16, 32))
        >>> found = nf.inspect.bisect(model, x, loss=lambda y: (y * y).mean(),
        ...                           recipe=nf.recipes.MXFP8BlockScaling(), progress=False)
        >>> len(found), found.runs, found[0].tensors[0][0] in ("fc1", "fc2")
        (6, 8, True)
    """
    if not isinstance(model, Module):
        raise DTypeError(message("bisect", "a Module", type(model).__name__, "pass the model"))
    check_order(by)
    if switch not in ("on", "off"):
        raise ArgumentError(message("bisect", 'switch "on" or "off"', repr(switch), "pick one"))
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or budget < 4):
        raise ArgumentError(message("bisect", "budget as an int of at least 4", repr(budget), "allow more runs"))
    tensors = tuple((name, role) for name, _ in sites(model) for role in ROLES)
    if not tensors:
        raise ArgumentError(message("bisect", "a model with GEMMs of nf.nn layers", type(model).__name__, "pass one"))
    chosen = recipe or current_recipe() or default_recipe()
    trial = _Trial(model, batch, loss, chosen, switch, tensors)
    limit = len(tensors) + 2 if budget is None else budget
    with _bar(min(limit, 2 * len(tensors) + 1), progress) as tick:
        found = _search(trial, tensors, limit, by, tick)
    kept = Bisection(
        found, reference=trial.reference, quantized=trial.quantized, switch=switch, runs=trial.runs,
        loss_dtype=trial.loss_dtype,
    )  # fmt: skip
    return kept.sorted(by)


class _Trial:
    """Runs the model with some tensors switched, always from the same state, and compares with the reference."""

    def __init__(
        self, model: Module, batch: Any, loss: Any, recipe: Recipe, switch: str, tensors: tuple[Tensor, ...]
    ) -> None:
        self.model, self.batch, self.loss, self.recipe, self.switch = model, batch, loss, recipe, switch
        self.tensors, self.runs = frozenset(tensors), 0
        self.gradients: dict[str, Array] = {}
        self.loss_dtype = ""
        plain, full = self._run(frozenset()), self._run(self.tensors)
        base = plain if switch == "on" else full
        self.loss_of_reference, self.gradients = base
        self.reference = self._compare(tensors, *plain)
        self.quantized = self._compare(tensors, *full)

    def __call__(self, switched: tuple[Tensor, ...]) -> Finding:
        """Run with these tensors quantized alone, or left out."""
        on = frozenset(switched) if self.switch == "on" else self.tensors - frozenset(switched)
        return self._compare(switched, *self._run(on))

    def _run(self, on: frozenset[Tensor]) -> tuple[float, dict[str, Array]]:
        """Loss and gradients with the given tensors quantized."""
        self.runs += 1
        parameters = self.model.parameters()
        twin = copy.deepcopy(self.model, {id(p): p for p in parameters.values()})
        for name, site in sites(twin):
            site.watch = _Switch(frozenset(role for module, role in on if module == name))

        variables = {name: p.detach() for name, p in parameters.items() if p._differentiable}

        def value(params: Mapping[str, Array]) -> Array:
            given = self.batch
            if isinstance(given, Mapping):
                out = functional_call(twin, params, **given)
            else:
                out = functional_call(twin, params, *(given if isinstance(given, tuple) else (given,)))
            found: Array = out if self.loss is None else self.loss(out)
            return found

        def go() -> tuple[Array, dict[str, Array]]:
            outside()
            with autocast(recipe=self.recipe):
                found: tuple[Array, dict[str, Array]] = value_and_grad(value)(variables)
                return found

        loss, gradients = copy_context().run(go)
        self.loss_dtype = str(loss.dtype)
        return float(loss), gradients

    def _compare(self, tensors: tuple[Tensor, ...], loss: float, gradients: dict[str, Array]) -> Finding:
        """Put a run beside the reference; products are summed over all parameters in float64."""
        own = there = both = apart = 0.0
        for name, expected in self.gradients.items():
            g, r = (astype(a, float64) for a in (gradients[name], expected))
            own, there = own + float(total(g * g)), there + float(total(r * r))
            both, apart = both + float(total(g * r)), apart + float(total((g - r) * (g - r)))
        norms = math.sqrt(own) * math.sqrt(there)
        cosine = min(both / norms, 1.0) if norms else math.nan
        error = math.sqrt(apart / there) if there else math.nan if apart else 0.0
        return Finding(tensors, loss, loss - self.loss_of_reference, cosine, error)


class _Switch:
    """Leaves some tensors of one GEMM quantized and puts the others into high precision."""

    before: SiteWatch | None = None

    def __init__(self, on: frozenset[str]) -> None:
        self.on = on

    def plan(self, plan: LinearPlan | None) -> LinearPlan | None:
        """The plan with the switched tensors only; None where there is none."""
        return None if plan is None or not self.on else only(plan, self.on)

    def output(self, y: Array) -> None:
        """Nothing to do."""


def only(plan: LinearPlan, on: Iterable[str]) -> LinearPlan:
    """Return a plan with some tensors quantized and the others in high precision.

    Args:
        plan: the plan.
        on: roles that stay as they are. A rotation of one operand of wgrad goes when the other is not rotated.

    Example:
        >>> import nvfp as nf
        >>> alone = only(nf.recipes.NVFP4BlockScaling().linear_plan(), ["dy"])
        >>> alone.x.format, alone.dy.format, alone.dy.rotation
        (None, nvfp.nvfp4, None)
    """
    kept = {role: getattr(plan, role) if role in on else HIGH_PRECISION for role in ROLES}
    kept["x"], kept["dy"] = turned_alike(kept["x"], kept["dy"])
    delayed = plan.delayed if any(t.delayed for t in kept.values()) else None
    return replace(plan, x=kept["x"], w=kept["w"], dy=kept["dy"], delayed=delayed)


def _search(
    trial: _Trial, tensors: tuple[Tensor, ...], limit: int, by: str, tick: Callable[[int], None]
) -> list[Finding]:
    """One tensor at a time where the runs suffice, else halves of the worst group until they are spent."""
    tick(trial.runs)
    if trial.runs + len(tensors) <= limit:
        return [_told(trial, (tensor,), tick) for tensor in tensors]
    start = trial.quantized if trial.switch == "on" else replace(trial.reference, tensors=tensors)
    heap: list[tuple[tuple[float, ...], int, Finding]] = [(_worst(start, by), 0, start)]
    done: list[Finding] = []
    while heap:
        _, _, group = heapq.heappop(heap)
        if len(group.tensors) == 1 or trial.runs + 2 > limit:
            done.append(group)
            continue
        middle = len(group.tensors) // 2
        for half in (group.tensors[:middle], group.tensors[middle:]):
            found = _told(trial, half, tick)
            heapq.heappush(heap, (_worst(found, by), trial.runs, found))
    return done


def _worst(f: Finding, by: str) -> tuple[float, ...]:
    return tuple(-v for v in f.hurt(by))


def _told(trial: _Trial, tensors: tuple[Tensor, ...], tick: Callable[[int], None]) -> Finding:
    found = trial(tensors)
    tick(1)
    return found


@contextmanager
def _bar(total_runs: int, wanted: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar's ``update``; nothing where none is wanted or tqdm is not installed."""
    if not (wanted and has("tqdm")):
        yield lambda n: None
        return
    with need("tqdm", extra="plot").tqdm(total=total_runs, desc="bisect", unit="run", leave=False) as bar:
        yield bar.update
