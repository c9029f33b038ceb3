"""What a folder says about its own quantization: `config.json`, and `hf_quant_config.json` of ModelOpt."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from nvfp.errors import FileFormatError, message
from nvfp.files.shards import read_json

_OP = "open_checkpoint"


@dataclass(frozen=True)
class Rule:
    """What the configuration says of one weight; None where it says nothing.

    Attributes:
        bits: of a code.
        kind: ``"float"`` or ``"int"``.
        strategy: ``"tensor"``, ``"channel"``, ``"group"``, ``"tensor_group"`` or ``"block"``.
        group: length of a group along the last axis.
        block: lengths of a block over the last two axes.
    """

    bits: int | None = None
    kind: str | None = None
    strategy: str | None = None
    group: int | None = None
    block: tuple[int, int] | None = None


@dataclass(frozen=True)
class Plan:
    """The quantization that a folder states.

    Attributes:
        method: ``quant_method``, or None without a statement.
        stated: the statement as it stands in the file.
        ignore: modules that are left in high precision.
        rules: (targets, rule) in the order of the file; ``None`` for every module.
        excludes: says whether a name fits a pattern of ``ignore``.
        inner: whether an entry of ``ignore`` means what lies in that module, too.
    """

    method: str | None = None
    stated: Mapping[str, Any] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    rules: tuple[tuple[tuple[str, ...] | None, Rule], ...] = ()
    excludes: Callable[[str, str], bool] = fnmatch.fnmatchcase
    inner: bool = False

    def ignored(self, module: str) -> bool:
        """Whether a module is to be left in high precision.

        Args:
            module: name without ``.weight``.
        """
        names = module.split(".")
        around = (".".join(names[:n]) for n in range(len(names), 0, -1)) if self.inner else (module,)
        return any(n in self._ignored for n in around) or any(self.excludes(module, p) for p in self._wild)

    @cached_property
    def _wild(self) -> list[str]:
        """The entries of ``ignore`` that are patterns."""
        return [entry for entry in self.ignore if entry.startswith("re:") or set(entry) & set("*?[")]

    def rule(self, module: str) -> Rule:
        """Return what is said of the weight of a module: by its name first, then by class.

        Args:
            module: name without ``.weight``.
        """
        named = self._by_name.get(module)
        fits = (rule for pattern, rule in self._patterns if _names(module, pattern))
        return named or next(fits, None) or self._everywhere

    @cached_property
    def _ignored(self) -> frozenset[str]:
        return frozenset(self.ignore)

    @cached_property
    def _by_name(self) -> dict[str, Rule]:
        """Rules by the names that they target; the first of two holds."""
        return {target: rule for targets, rule in reversed(self.rules) for target in targets or ()}

    @cached_property
    def _patterns(self) -> list[tuple[str, Rule]]:
        return [(t, rule) for targets, rule in self.rules for t in targets or () if t.startswith("re:")]

    @cached_property
    def _everywhere(self) -> Rule:
        return next((rule for targets, rule in self.rules if targets is None or "Linear" in targets), Rule())


def read_plan(folder: Path) -> tuple[dict[str, Any], Plan]:
    """Read the configuration of a model and what it says about quantization.

    Args:
        folder: where the files lie.

    Returns:
        (``config.json`` or {}, plan).

    Raises:
        FileFormatError: no JSON, fields of another type, or a method that nvfp does not read.
    """
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    path = folder / "hf_quant_config.json"
    return config, plan_of(config, read_json(path) if path.is_file() else None)


def plan_of(config: Mapping[str, Any], modelopt: Mapping[str, Any] | None = None) -> Plan:
    """Return what ``config.json`` and ``hf_quant_config.json`` say about quantization.

    Args:
        config: content of the first.
        modelopt: content of the second, where there is one.

    Raises:
        FileFormatError: fields of another type, two files that contradict each other, or an unknown method.
    """
    inner = config.get("text_config")
    stated = config.get("quantization_config") or config.get("compression_config")
    if stated is None and isinstance(inner, dict):
        stated = inner.get("quantization_config")
    if modelopt is not None:
        other = {**_get(modelopt, "quantization", dict, {}), "quant_method": "modelopt"}
        said = stated.get("quant_algo") if isinstance(stated, dict) else None
        if said not in (None, other.get("quant_algo")):
            _refuse(f"quant_algo {said} in config.json and {other.get('quant_algo')} in hf_quant_config.json")
        stated = {**other, **stated} if isinstance(stated, dict) else other
    if stated is None:
        return Plan()
    if not isinstance(stated, dict):
        _refuse("quantization_config that is no object")
    method = _get(stated, "quant_method", str, "modelopt" if "quant_algo" in stated else "compressed-tensors")
    if method not in _READERS:
        do = f"convert it to one of {sorted(_READERS)} first"
        raise FileFormatError(message(_OP, "a quant_method that nvfp reads", repr(method[:40]), do))
    return _READERS[method](stated)


def _fine_grained(stated: Mapping[str, Any]) -> Plan:
    block = _pair(stated, "weight_block_size")
    rule = Rule(8, "float", "block" if block else None, None, block)
    ignore = _texts(stated, "modules_to_not_convert") or _texts(stated, "ignored_layers")
    return Plan("fp8", stated, ignore, ((None, rule),), inner=True)


def _compressed(stated: Mapping[str, Any]) -> Plan:
    groups = [group for group in _get(stated, "config_groups", dict, {}).values() if isinstance(group, dict)]
    rules = tuple((_texts(group, "targets"), _rule(_get(group, "weights", dict, {}))) for group in groups)
    return Plan("compressed-tensors", stated, _texts(stated, "ignore"), rules, _names)


def _rule(weights: Mapping[str, Any]) -> Rule:
    strategy, group = _get(weights, "strategy", str, None), _get(weights, "group_size", int, None)
    block = _pair(weights, "block_structure")
    if strategy is None:
        strategy = "channel" if group == -1 else None
    bits, kind = _get(weights, "num_bits", int, None), _get(weights, "type", str, None)
    return Rule(bits, kind, strategy, group if group and group > 0 else None, block)


def _modelopt(stated: Mapping[str, Any]) -> Plan:
    layers = _get(stated, "quantized_layers", dict, {})
    rules: list[tuple[tuple[str, ...] | None, Rule]] = [
        ((name,), _algorithm(fields)) for name, fields in layers.items() if isinstance(fields, dict)
    ]
    if not layers:
        rules.append((None, _algorithm(stated)))
    ignore = _texts(stated, "exclude_modules") or _texts(stated, "ignore")
    return Plan("modelopt", stated, ignore, tuple(rules), fnmatch.fnmatchcase)


def _algorithm(fields: Mapping[str, Any]) -> Rule:
    name, group = _get(fields, "quant_algo", str, ""), _get(fields, "group_size", int, None)
    bits = 4 if "FP4" in name else 8 if "FP8" in name and name != "W4A8_AWQ" else None
    strategy = {"FP8": "tensor", "FP8_PER_CHANNEL_PER_TOKEN": "channel"}.get(name)
    return Rule(bits, "float" if bits else None, strategy, group if group and group > 0 else None)


def _gpt_oss(stated: Mapping[str, Any]) -> Plan:
    ignore = _texts(stated, "modules_to_not_convert")
    return Plan("mxfp4", stated, ignore, ((None, Rule(4, "float", "group", 32)),), fnmatch.fnmatchcase)


def _named(method: str) -> Callable[[Mapping[str, Any]], Plan]:
    return lambda stated: Plan(method, stated, _texts(stated, "modules_to_not_convert"), inner=True)


_READERS: dict[str, Callable[[Mapping[str, Any]], Plan]] = {
    "fp8": _fine_grained,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "mxfp4": _gpt_oss,
    "torchao": _named("torchao"),
    "nvfp": _named("nvfp"),
}


def _names(module: str, target: str) -> bool:
    """compressed-tensors: a name, or a regular expression behind ``re:``."""
    if not target.startswith("re:"):
        return module == target
    try:
        return re.match(target[3:], module) is not None
    except (re.error, RecursionError, OverflowError):
        _refuse(f"the pattern {target[:60]}")


def _get(fields: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = fields.get(key)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        _refuse(f"{key} = {str(value)[:60]}, which is no {kind.__name__}")
    return value


def _texts(fields: Mapping[str, Any], key: str) -> tuple[str, ...]:
    found = _get(fields, key, list, [])
    if not all(isinstance(text, str) for text in found):
        _refuse(f"{key} with something other than names")
    return tuple(found)


def _pair(fields: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    found = fields.get(key)
    if isinstance(found, str) and re.fullmatch(r"\d{1,6}x\d{1,6}", found):
        found = [int(n) for n in found.split("x")]
    if found is None:
        return None
    good = isinstance(found, list) and len(found) == 2 and all(type(n) is int and 0 < n < 1 << 31 for n in found)
    if not good:
        _refuse(f"{key} = {str(found)[:60]}")
    return found[0], found[1]


def _refuse(got: str) -> NoReturn:
    raise FileFormatError(message(_OP, "a quantization_config that nvfp reads", got, "mend config.json"))
