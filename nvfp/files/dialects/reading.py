"""Which dialect a set of tensors is written in: the one whose rows leave no tensor unexplained.

A narrow tensor without its scale, a scale without its codes, or a second scale for the same weight is an error that
lists what was found; nothing is read as plain numbers for want of a better idea.
"""

from __future__ import annotations

from collections.abc import Mapping

from nvfp.errors import FileFormatError, message
from nvfp.files.dialects import nvfp_own, torchao
from nvfp.files.dialects.compressed_tensors import COMPRESSED_TENSORS
from nvfp.files.dialects.deepseek import DEEPSEEK
from nvfp.files.dialects.dialect import Dialect
from nvfp.files.dialects.entry import Entry, dense_entry, input_entry, quantized_entry
from nvfp.files.dialects.geometry import Found
from nvfp.files.dialects.gpt_oss import GPT_OSS
from nvfp.files.dialects.modelopt import MODELOPT
from nvfp.files.header import DTYPES, TensorEntry
from nvfp.files.quant_config import Plan
from nvfp.files.shards import Shards

PLAIN = Dialect("plain", (), (), lambda written: {})
DIALECTS: dict[str, Dialect] = {
    d.name: d
    for d in (PLAIN, GPT_OSS, COMPRESSED_TENSORS, MODELOPT, DEEPSEEK, torchao.TORCHAO, nvfp_own.NVFP)
}  # fmt: skip
_BESIDE = ("k_scale", "v_scale", "q_scale", "kv_scale", "prob_scale", "output_scale", "pre_quant_scale", "logit_scale")
_NARROW = ("F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2")
_MARKS = ("scale", "zero_point", "packed", "blocks", "qdata", "absmax", "quant_map", "g_idx", "codes")
_FOREIGN = ("qweight", "qzeros", "g_idx", "weight_packed", "weight_scale", "weight_scale_inv", "weight_zero_point")
_SHOWN = 4  # problems in a message

Tensors = Mapping[str, TensorEntry]


def explain(shards: Shards, plan: Plan) -> tuple[str, dict[str, Entry]]:
    """Return the dialect of a model and its arrays by name.

    Args:
        shards: the tensors of its files.
        plan: what its configuration says.

    Raises:
        FileFormatError: no dialect explains every tensor, or the configuration contradicts the tensors.
    """
    tensors = shards.entries
    for find in (torchao.find, nvfp_own.find):
        own = find(shards)
        if own is not None:
            name, entries = own
            return name, _with_the_rest(tensors, entries)
    if plan.method in ("torchao", "nvfp"):
        _refuse(f"the metadata that {plan.method} writes", "files without it", "fetch the files anew")
    known = [d for d in DIALECTS.values() if d is PLAIN or d.layouts]
    if plan.method is not None:
        known = [d for d in known if plan.method in d.methods]
        known.sort(key=lambda d: d.methods[0] != plan.method)
    for dialect in known:
        entries, problems = _read(dialect, tensors, plan, most=1)
        if not problems:
            return dialect.name, entries
    tried = [(dialect.name, _read(dialect, tensors, plan)[1]) for dialect in known]
    name, problems = min(tried, key=lambda t: len(t[1]))
    count = len(problems)
    more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
    stated = f" of quant_method {plan.method}" if plan.method else ""
    got = f"{'; '.join(problems[:_SHOWN])}{more} (nearest dialect: {name})"
    return _refuse(f"weights with their scales, in one dialect{stated}", got, "check the files and quantization_config")


def _read(
    dialect: Dialect, tensors: Tensors, plan: Plan, most: int | None = None
) -> tuple[dict[str, Entry], list[str]]:
    """The arrays of a dialect, and what it does not explain; after ``most`` problems it gives up."""
    entries: dict[str, Entry] = {}
    problems: list[str] = []
    used: set[str] = set()
    rows = {dtype: [r for r in dialect.layouts if dtype in r.codes.dtypes] for dtype in DTYPES}
    for name, tensor in tensors.items():
        claims = [(row, whole) for row in rows[tensor.dtype] if (whole := row.claim(tensor, tensors)) is not None]
        if not claims:
            continue
        if len(problems) == most:
            return entries, problems
        row, whole = claims[0]
        parts = [part.name(whole) for part in row.parts.values()]
        if len(claims) > 1 or whole in entries or used & set(parts):
            kinds = " and ".join(r.kind for r, _ in claims)
            problems.append(f"{name} fits {kinds}: {_siblings(name, tensors, problems)}")
            continue
        used |= set(parts)
        module = whole.removesuffix(".weight")
        if plan.ignored(module):
            problems.append(f"{name} is quantized, but in the ignore list: {_siblings(name, tensors, problems)}")
            continue
        rule = plan.rule(module)
        if (rule.bits, rule.kind) not in ((None, None), (row.bits, "float"), (row.bits, None)):
            problems.append(f"{name} is {row.kind}, the configuration says {rule.kind}{rule.bits}")
            continue
        tensor_scale = tensors[parts[2]].shape if len(parts) > 2 else None
        found = Found(whole, row.shape(tensor), tensor.dtype, tensors[parts[1]].shape, tensor_scale)
        entries[whole] = quantized_entry(whole, row, tensors, row.fit(found, rule))
    _rest(dialect, tensors, used, entries, problems, most)
    return entries, problems


def _rest(
    dialect: Dialect,
    tensors: Tensors,
    used: set[str],
    entries: dict[str, Entry],
    problems: list[str],
    most: int | None = None,
) -> None:
    """Static input scales and dense tensors; everything that looks like a part of something is a problem."""
    for name, tensor in tensors.items():
        if len(problems) == most:
            return
        if name in used:
            continue
        found = _static(dialect, tensor) or (None if is_part(name, tensors) else dense_entry(tensor))
        if found is None or found.name in entries:
            problems.append(f"{tensor}: {_siblings(name, tensors, problems)}")
        else:
            entries[found.name] = found


def _static(dialect: Dialect, tensor: TensorEntry) -> Entry | None:
    for part in dialect.inputs:
        module = part.whole(tensor.name)
        if module is not None and tensor.dtype in part.dtypes:
            return input_entry(module, tensor, part.inverse)
    return None


def _with_the_rest(tensors: Tensors, entries: dict[str, Entry]) -> dict[str, Entry]:
    """The arrays that metadata spell, and all other tensors as dense ones."""
    used = {part for entry in entries.values() for part in entry.parts.values()}
    problems: list[str] = []
    _rest(PLAIN, tensors, used, entries, problems)
    if problems:
        _refuse("weights with their scales", "; ".join(problems[:_SHOWN]), "check the metadata of the files")
    return entries


def is_part(name: str, tensors: Tensors) -> bool:
    """Whether a tensor cannot stand alone: narrow codes, packed bytes, or a name that belongs to another tensor.

    Args:
        name: of the tensor.
        tensors: all of the files.

    Example:
        >>> weight = TensorEntry("l.weight", "BF16", (4,), 0, 8, "x")
        >>> bare = TensorEntry("l.weight_scale", "F32", (), 8, 4, "x")
        >>> is_part("l.weight_scale", {"l.weight": weight, "l.weight_scale": bare}), is_part("l.weight", {})
        (True, False)
    """
    module, _, last = name.rpartition(".")
    dtype = tensors[name].dtype if name in tensors else ""
    if dtype in _NARROW or DTYPES.get(dtype, 0) is None or (dtype in ("U8", "I8", "I32") and last == "weight"):
        return True
    if last in _FOREIGN or f"{module}.qweight" in tensors:
        return True
    if last in _BESIDE or not any(mark in last for mark in _MARKS):
        return False
    prefix = f"{module}." if module else ""
    owners = (last[:cut] for cut, sign in enumerate(last) if sign == "_")
    return module in tensors or (last in ("blocks", "scales", "qdata") and _sisters(prefix, last, tensors)) or any(
        owner == "weight" or f"{prefix}{owner}" in tensors or f"{prefix}{owner}_blocks" in tensors for owner in owners
    )  # fmt: skip


def _sisters(prefix: str, last: str, tensors: Tensors) -> bool:
    return any(f"{prefix}{other}" in tensors for other in ("blocks", "scales", "qdata") if other != last)


def _siblings(name: str, tensors: Tensors, problems: list[str]) -> str:
    """What the files hold in the module of a tensor; of the first few problems, which are those that are shown."""
    if len(problems) >= _SHOWN:
        return ""
    module = name.rpartition(".")[0]
    found = [str(t).removeprefix(f"{module}.") for n, t in tensors.items() if n.rpartition(".")[0] == module]
    return f"{module or 'the root'} has {', '.join(found[:8])}{' ...' if len(found) > 8 else ''}"


def _refuse(expected: str, got: str, do: str) -> tuple[str, dict[str, Entry]]:
    raise FileFormatError(message("open_checkpoint", expected, got, do))
