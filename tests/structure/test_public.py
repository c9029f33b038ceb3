"""Public names: not shadowed by submodules, all resolvable, all documented."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from importlib import import_module
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest

import nvfp
from tests.structure.tree import BRIDGES, PACKAGE, modules, parsed

# What users and contracts call: docstrings with all parts, not only a sentence.
SHOWN = (  # names their __init__ shows
    "nvfp", "nvfp.arrays.fft", "nvfp.arrays.linalg", "nvfp.nn", "nvfp.recipes", "nvfp.optim", "nvfp.files",
    "nvfp.inspect",
)  # fmt: skip
CONTRACTS = ("nvfp.kernels.", "nvfp.nn.functional.")  # functions of files of these folders that bear the file's name
TWINS = ("nvfp.kernels.cpu.", "nvfp.kernels.cuda.", "nvfp.kernels.cublaslt.")  # the contract documents them


def root_names() -> list[str]:
    """What nvfp/__init__.py re-exports (``import x as x``) or loads late."""
    shown = set(dir(nvfp))
    for file in ("__init__.py", "_contents.py"):
        nodes = (node for node in parsed(PACKAGE / file).body if isinstance(node, ast.ImportFrom))
        shown |= {alias.asname for node in nodes for alias in node.names if alias.asname}
    return sorted(shown)


def test_root_names_resolve() -> None:
    broken = [name for name in root_names() if getattr(nvfp, name, None) is None and name not in ("newaxis",)]
    assert not broken, f"nvfp/__init__.py promises {broken}"


def test_no_function_has_the_name_of_a_submodule() -> None:
    submodules = {info.name for info in pkgutil.iter_modules([str(PACKAGE)])}
    clash = [n for n in root_names() if n in submodules and not isinstance(getattr(nvfp, n), ModuleType)]
    assert not clash, f"names of the root that hide a submodule: {clash}"


def test_names_do_not_depend_on_what_was_imported() -> None:
    """Importing every submodule changes no public name (a submodule would overwrite one of its name)."""
    before = {name: id(getattr(nvfp, name)) for name in root_names()}
    for module in modules():
        if not module.endswith("__main__") and module not in BRIDGES:
            __import__(module)
    changed = [name for name, identity in before.items() if id(getattr(nvfp, name)) != identity]
    assert not changed


def _is_public(module: str) -> bool:
    return not any(part.startswith("_") for part in module.split(".")) and not module.startswith(TWINS)


def _definitions(module: str) -> list[tuple[str, ast.FunctionDef | ast.ClassDef, bool]]:
    """Public functions and classes of a module and the public members of its classes; True for members."""
    found: list[tuple[str, ast.FunctionDef | ast.ClassDef, bool]] = []
    for node in parsed(modules()[module]).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            found.append((node.name, node, False))
            members = node.body if isinstance(node, ast.ClassDef) else []
            found += [
                (f"{node.name}.{m.name}", m, True)
                for m in members
                if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")
            ]
    return found


def _is_repeat(node: ast.AST) -> bool:
    """Whether the docstring stands at another definition of the name (overloads, setters)."""
    texts = [ast.unparse(d) for d in getattr(node, "decorator_list", [])]
    return any("overload" in text or text.endswith(".setter") for text in texts)


@pytest.mark.parametrize("module", [m for m in modules() if _is_public(m)])
def test_docstrings_exist(module: str) -> None:
    assert ast.get_docstring(parsed(modules()[module])), f"{module} has no docstring"
    bare = [name for name, node, _ in _definitions(module) if not ast.get_docstring(node) and not _is_repeat(node)]
    assert not bare, f"{module}: no docstring on {bare}"


def _missing_parts(value: Any) -> list[str]:
    """The parts that a public function's docstring lacks (a summary may say what comes back)."""
    text = inspect.getdoc(value) or ""
    signature = inspect.signature(value)
    try:
        raises = any(isinstance(n, ast.Raise) and n.exc for n in ast.walk(ast.parse(dedent(inspect.getsource(value)))))
    except (OSError, TypeError, SyntaxError):
        raises = False  # a generated function
    wanted = {
        r"^Args:": bool([p for p in signature.parameters if p not in ("self", "cls")]),
        r"^(Returns|Yields):|^(Return|Whether|Yield)\b": str(signature.return_annotation) not in ("None", "NoReturn"),
        r"^Raises:": raises,
    }
    return [part for part, needed in wanted.items() if needed and not re.search(part, text, re.MULTILINE)]


def _functions(module: str) -> dict[str, Any]:
    """The public functions that a module shows, by qualified name."""
    names = vars(import_module(module)) if module != "nvfp" else dict.fromkeys(root_names())
    found = {name: getattr(import_module(module), name) for name in names if not name.startswith("_")}
    own = {n: v for n, v in found.items() if inspect.isfunction(v) and v.__module__.startswith("nvfp")}
    stem = module.rpartition(".")[2]
    return {n: v for n, v in own.items() if module in SHOWN or (v.__module__ == module and n.startswith(stem))}


@pytest.mark.parametrize("module", [m for m in modules() if m in SHOWN or (m.startswith(CONTRACTS) and _is_public(m))])
def test_functions_document_their_parts(module: str) -> None:
    lacking = {name: parts for name, value in _functions(module).items() if (parts := _missing_parts(value))}
    assert not lacking, f"{module}: docstrings lack {lacking}"


def test_root_names_have_an_example() -> None:
    found = {name: getattr(nvfp, name) for name in root_names() if not name.startswith("_")}
    own = {
        n: v
        for n, v in found.items()
        if inspect.isfunction(v) or (inspect.isclass(v) and v.__module__.startswith("nvfp"))
    }
    bare = [name for name, value in own.items() if ">>>" not in (inspect.getdoc(value) or "")]
    assert not bare, f"no runnable example in the docstring of {bare}"
