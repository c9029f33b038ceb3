"""Files are short, hold no path of a machine, and generated pages are up to date."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from nvfp.config import SWITCHES
from tests.structure.tree import PACKAGE, ROOT, parsed, tracked

LIMIT = 400
DATA_TABLES: set[str] = set()  # files of rows may be longer
READERS = ("config.get", "config.flag", "config.number")
TEXT = {".py", ".cu", ".cuh", ".md", ".toml", ".txt", ".cfg", ".sh", ".ipynb", ""}


def _texts(suffixes: set[str]) -> list[Path]:
    return [path for path in tracked() if path.suffix in suffixes and path.name != "LICENSE"]


def test_files_fit_on_two_screens() -> None:
    long = {}
    for path in _texts({".py", ".cu", ".cuh"}):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > LIMIT and path.relative_to(ROOT).as_posix() not in DATA_TABLES:
            long[path.relative_to(ROOT).as_posix()] = lines
    assert not long, f"files above {LIMIT} lines: {long}"


def test_median_length() -> None:
    lengths = sorted(len(p.read_text(encoding="utf-8").splitlines()) for p in PACKAGE.rglob("*.py"))
    assert lengths[len(lengths) // 2] <= 150


def test_no_path_of_a_machine() -> None:
    homes = {str(Path.home()), str(ROOT), str(ROOT.parent)} - {"/"}
    pattern = re.compile("|".join([*(re.escape(h) + "(?=[/\"'`\\s])" for h in sorted(homes)), "/ho" + r"me/\w"]))
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in _texts(TEXT)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, f"paths of this machine in {found}"


def test_environment_page_is_current() -> None:
    from docs.make_environment import PAGE, render

    assert PAGE.read_text(encoding="utf-8") == render(), "run: python -m docs.make_environment"


def test_counterparts_of_te_variables_exist() -> None:
    import nvfp as nf
    from docs.make_environment import COUNTERPARTS

    named = [variable for variables, _ in COUNTERPARTS for variable in variables.split()]
    assert len(named) == len(set(named)) and all(variable.startswith("NVTE_") for variable in named)
    for text in (ours for _, ours in COUNTERPARTS):
        for recipe, arguments in re.findall(r"`(\w+)\(([^)]*)\)`", text):
            fields = {field.name for field in dataclasses.fields(getattr(nf.recipes, recipe))}
            assert {a.partition("=")[0].strip() for a in arguments.split(",")} <= fields, text
        assert set(re.findall(r"NVFP_[A-Z_]+", text)) <= set(SWITCHES), text


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_environment_is_read_in_config_only(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    unknown = set(re.findall(r"[\"'](NVFP_[A-Z_]+)[\"']", _calls(path))) - set(SWITCHES)
    assert not unknown, f"{path.name}: switches missing from nvfp/config.py: {unknown}"
    if path.name != "config.py":
        reads = [n for n in ast.walk(parsed(path)) if isinstance(n, ast.Attribute) and n.attr in ("environ", "getenv")]
        own = [n for n in reads if "NVFP_" in text.splitlines()[n.lineno - 1]]
        assert not own, f"{path.name} reads NVFP_* by itself; use nvfp.config"


def _calls(path: Path) -> str:
    """The source of every call of config.get, config.flag and config.number in a file."""
    calls = [n for n in ast.walk(parsed(path)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    return "\n".join(ast.unparse(n) for n in calls if ast.unparse(n.func) in READERS)
