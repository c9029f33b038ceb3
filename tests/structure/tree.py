"""What the structure tests share: the files of the tree, their syntax trees and their imports."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "nvfp"

# Rooms by level; imports run downhill only, and rooms of one level do not know each other. A room may
# be several files (device.py and capability.py). ``errors`` is the ground that everybody stands on.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("config", "optional"),
    ("dtypes",),
    ("device",),
    ("kernels",),
    ("autograd",),
    ("arrays",),
    ("recipes",),
    ("nn", "optim"),
    ("files", "distributed", "inspect", "interop"),
    ("__init__",),
    ("__main__",),
)
ROOM_OF = {"capability": "device", "_contents": "__init__"}
# Bridges and the framework that importing one imports (it must be there).
BRIDGES = {"nvfp.interop.torch": "torch", "nvfp.interop.jax": "jax"}
LEVEL_OF = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}


@dataclass(frozen=True)
class Import:
    """One import statement: who, what (full dotted module name), where, and whether it runs on import."""

    importer: str
    target: str
    line: int
    on_load: bool


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def room(module: str) -> str:
    """The room of a module: ``nvfp.kernels.cpu.cast`` -> ``kernels``; the root itself is ``__init__``."""
    parts = module.split(".")
    name = parts[1] if len(parts) > 1 else "__init__"
    return ROOM_OF.get(name, name)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _statements(node: ast.AST, on_load: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, on_load
        elif _is_type_checking(child):
            for other in child.orelse:  # type: ignore[attr-defined]
                yield from _statements(other, on_load)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _statements(child, on_load and not inside)


def _targets(node: ast.Import | ast.ImportFrom, module: str, is_package: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    base = node.module or ""
    if node.level:
        parts = module.split(".")
        parts = parts[: len(parts) - node.level + (1 if is_package else 0)]
        base = ".".join([*parts, base] if base else parts)
    for alias in node.names:  # ``from nvfp import config`` imports nvfp.config, not the root
        full = f"{base}.{alias.name}"
        yield full if full in modules() else base


@cache
def imports() -> tuple[Import, ...]:
    """Every import in the package, `TYPE_CHECKING` blocks left out."""
    found = (
        Import(module, target, node.lineno, on_load)
        for module, path in modules().items()
        for node, on_load in _statements(parsed(path), True)
        for target in _targets(node, module, path.name == "__init__.py")
    )
    return tuple(dict.fromkeys(found))


@cache
def tracked() -> tuple[Path, ...]:
    """The files that git tracks, or would track (new ones that are not ignored)."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return tuple(path for name in names if name and (path := ROOT / name).is_file())
