"""Imports run downhill: the graph is drawn from the syntax trees."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.structure.tree import LEVEL_OF, LEVELS, imports, modules, room

# What a room may import besides the standard library and nvfp; anything else comes through optional.need.
THIRD_PARTY: dict[str, set[str]] = {
    "errors": {"numpy"},  # LinAlgError is also NumPy's
    "config": set(),
    "optional": set(),
    "dtypes": {"numpy", "ml_dtypes"},
    "device": set(),
    "kernels": {"numpy", "ml_dtypes", "numba", "llvmlite"},
    "autograd": set(),
    "arrays": {"numpy", "ml_dtypes", "array_api_compat"},
    "recipes": {"numpy", "ml_dtypes"},
    "nn": {"numpy", "ml_dtypes"},
    "optim": {"numpy", "ml_dtypes"},
    "files": {"numpy", "ml_dtypes", "safetensors"},
    "distributed": {"numpy", "ml_dtypes"},
    "inspect": {"numpy", "ml_dtypes"},
    "interop": {"numpy"},
    "__init__": set(),
    "__main__": set(),
}
STANDARD = set(__import__("sys").stdlib_module_names)


def _inside(target: str) -> bool:
    return target == "nvfp" or target.startswith("nvfp.")


def test_every_module_has_a_level() -> None:
    unknown = sorted({room(module) for module in modules()} - set(LEVEL_OF))
    assert not unknown, f"rooms without a level (tests/structure/tree.py): {unknown}"


def test_imports_run_downhill() -> None:
    wrong = []
    for i in imports():
        if not _inside(i.target) or room(i.target) == room(i.importer):
            continue
        mine, theirs = LEVEL_OF[room(i.importer)], LEVEL_OF[room(i.target)]
        if theirs >= mine:
            how = "upward" if theirs > mine else "sideways"
            wrong.append(f"{i.importer}:{i.line} imports {i.target} ({how}: level {mine} -> {theirs})")
    assert not wrong, "\n".join(wrong)


def test_nobody_imports_the_root() -> None:
    wrong = [f"{i.importer}:{i.line}" for i in imports() if i.target == "nvfp" and room(i.importer) != "__main__"]
    assert not wrong, f"import from the room that owns the name, not from nvfp: {wrong}"


def test_no_cycles() -> None:
    graph: dict[str, set[str]] = {module: set() for module in modules()}
    for i in imports():
        if i.on_load and i.target in graph and i.target != i.importer:
            graph[i.importer].add(i.target)
    knot = sorted(_cyclic(graph))
    assert not knot, f"modules in import cycles: {knot}"


def _cyclic(graph: dict[str, set[str]]) -> Iterable[str]:
    """Modules left after taking away, again and again, those that import nothing or are imported by none."""
    left = {m: set(t) for m, t in graph.items()}
    while True:
        imported = set().union(*left.values()) if left else set()
        free = {m for m, targets in left.items() if not targets or m not in imported}
        if not free:
            return left
        left = {m: targets - free for m, targets in left.items() if m not in free}


@pytest.mark.parametrize("name", [room for level in LEVELS for room in level])
def test_third_party(name: str) -> None:
    wrong = []
    for i in imports():
        package = i.target.partition(".")[0]
        if room(i.importer) == name and not _inside(i.target) and package not in STANDARD | THIRD_PARTY[name]:
            wrong.append(f"{i.importer}:{i.line} imports {i.target}; use nvfp.optional.need")
    assert not wrong, "\n".join(wrong)


def test_numba_stays_in_the_cpu_room() -> None:
    wrong = [
        f"{i.importer}:{i.line}"
        for i in imports()
        if i.target.partition(".")[0] in ("numba", "llvmlite") and not i.importer.startswith("nvfp.kernels.cpu.")
    ]
    assert not wrong, f"Numba is imported outside kernels/cpu: {wrong}"


def test_kernel_rooms_are_reached_by_dispatch_only() -> None:
    """kernels/cpu and kernels/cuda load at the first call: contracts and higher rooms never import them on load.

    (kernels/cublaslt has tables that contracts read; that nothing heavy loads is test_import's matter.)
    """
    rooms = ("nvfp.kernels.cpu", "nvfp.kernels.cuda")
    wrong = [
        f"{i.importer}:{i.line} imports {i.target}"
        for i in imports()
        if i.on_load
        and i.target.startswith(rooms)
        and not i.importer.startswith((*rooms, "nvfp.kernels.cublaslt", "nvfp.kernels.cudnn", "nvfp.kernels.compile"))
    ]
    assert not wrong, "\n".join(wrong)
