"""`Policy`: other recipes for some layers, or for one tensor of them, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from nvfp.errors import ArgumentError, DTypeError, message
from nvfp.recipes.base import Recipe
from nvfp.recipes.custom import ROLES, one_rule
from nvfp.recipes.plan import DENSE, LinearPlan, turned_alike


@dataclass(frozen=True)
class Policy(Recipe):
    """A recipe by the name of the layer, with another one where no pattern matches.

    Names are dotted, from the outermost module that is called, and end in the GEMM's name where a layer has several:
    ``"layers.0.mlp.fc2"`` (`nvfp.nn.Module.gemm_names` lists them). A pattern (as in `fnmatch`) stands for what it
    matches and all below it. ``"pattern:weight"`` (or ``input``, ``grad_output``) gives one tensor alone another
    recipe. Of two patterns that match, the first decides.

    Args:
        rules: pattern -> recipe, or None for high precision; a mapping or pairs.
        default: where no pattern without a tensor matches; None: high precision.

    Raises:
        ArgumentError: a pattern or tensor that is none; tensors that no GEMM takes together, at the first use of a
            layer, before anything has changed.
        DTypeError: a value that is no recipe.

    Numerics: the Hadamard transform of wgrad needs both of its operands: where a rule changes one of them it is left
        out of the other. Accumulation is that of the layer's recipe.

    Example:
        >>> import nvfp as nf
        >>> policy = Policy(
        ...     {"head": None, "*.fc2": nf.recipes.MXFP8BlockScaling(), "*.fc1:input": None},
        ...     default=nf.recipes.NVFP4BlockScaling(),
        ... )
        >>> policy.linear_plan("layers.3.fc2").x.format, policy.linear_plan("head").dense
        (nvfp.mxfp8_e4m3, True)
        >>> plan = policy.linear_plan("layers.3.fc1")
        >>> plan.w.format.name, plan.x.format, plan.dy.rotation
        ('nvfp4[block=(16,16)]', None, None)
        >>> print(policy)
        Policy(head: high precision, *.fc2: MXFP8BlockScaling, *.fc1:input: high precision, else NVFP4BlockScaling)
    """

    by_name = True

    rules: Mapping[str, Recipe | None] | tuple[tuple[str, Recipe | None], ...]
    default: Recipe | None = field(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        rules = tuple(self.rules.items()) if isinstance(self.rules, Mapping) else self.rules
        rules = tuple(tuple(rule) for rule in rules) if isinstance(rules, Iterable) else ()  # type: ignore[misc]
        if not rules or not all(len(r) == 2 and isinstance(r[0], str) and r[0] for r in rules):
            do = 'pass e.g. {"head": None, "*.fc2": nf.recipes.MXFP8BlockScaling()}'
            raise ArgumentError(message("Policy", "pattern -> recipe", repr(self.rules), do))
        for pattern, _ in rules:
            if ":" in pattern and (pattern.count(":") > 1 or pattern.rpartition(":")[2] not in ROLES):
                expected = f"one of {', '.join(ROLES)} after the colon"
                raise ArgumentError(message("Policy", expected, repr(pattern), "name a tensor, or none"))
        for value in (*(value for _, value in rules), self.default):
            if value is not None and not isinstance(value, Recipe):
                do = "pass e.g. nf.recipes.MXFP8BlockScaling(), or None"
                raise DTypeError(message("Policy", "recipes or None", repr(value), do))
        object.__setattr__(self, "rules", rules)

    @property
    def _pairs(self) -> tuple[tuple[str, Recipe | None], ...]:
        assert isinstance(self.rules, tuple)
        return self.rules

    def _linear_plan(self, name: str) -> LinearPlan:
        """Find the layer's recipe, then put other tensors in."""
        whole = DENSE if (recipe := self.recipe_of(name)) is None else recipe.linear_plan(name)
        sources = dict.fromkeys(ROLES.values(), whole)
        for tensor_type, short in ROLES.items():
            found, other = self._first(name, tensor_type)
            if found:
                sources[short] = DENSE if other is None else other.linear_plan(name)
        plans: dict[str, Any] = {short: getattr(plan, short) for short, plan in sources.items()}
        plans["x"], plans["dy"] = turned_alike(plans["x"], plans["dy"])
        rules = [plan.delayed for short, plan in sources.items() if plan.delayed and plans[short].delayed]
        return replace(whole, **plans, delayed=one_rule("Policy", rules))

    def recipe_of(self, name: str) -> Recipe | None:
        """Return the recipe of the layer of this name, or None for high precision."""
        found, recipe = self._first(name, "")
        return recipe if found else self.default

    def _first(self, name: str, tensor_type: str) -> tuple[bool, Recipe | None]:
        for key, recipe in self._pairs:
            pattern, _, tensor = key.rpartition(":") if ":" in key else (key, "", "")
            if tensor == tensor_type and matches(name, pattern):
                return True, recipe
        return False, None

    def table(self, model: Any) -> dict[str, LinearPlan]:
        """Return the plan of every GEMM of a model by name, after checking that each pattern stands for one.

        Args:
            model: an `nvfp.nn.Module`.

        Raises:
            ArgumentError: a pattern that no GEMM of the model matches: a misspelt name would go unnoticed.
        """
        names = model.gemm_names()
        idle = [k for k, _ in self._pairs if not any(matches(n, k.rpartition(":")[0] or k) for n in names)]
        if idle:
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise ArgumentError(message("Policy", f"patterns of {shown}", idle, "correct or leave out these"))
        return {name: self.linear_plan(name) for name in names}

    def __str__(self) -> str:
        rules = [f"{pattern}: {recipe or 'high precision'}" for pattern, recipe in self._pairs]
        return f"Policy({', '.join(rules)}, else {self.default or 'high precision'})"


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches a dotted name or a module above it.

    Example:
        >>> matches("layers.0.fc1", "layers.0"), matches("layers.0.fc1", "*.fc1"), matches("layers.10", "layers.1")
        (True, True, False)
    """
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[: i + 1]), pattern) for i in range(len(parts)))
