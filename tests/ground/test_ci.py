"""What .ci/run stands on: README's commands, declared skips, requirements."""

from __future__ import annotations

import importlib.util
import tomllib
from types import ModuleType

import pytest

import nvfp
from tests.structure.tree import ROOT


def script(name: str) -> ModuleType:
    """A file of .ci as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "extra", "what"), [("job", "plot", "examples/train_gpt.py"), ("test", "test", "-m pytest -q -n 2")]
)
def test_readme_commands(name: str, extra: str, what: str) -> None:
    command = script("readme_command").command(name)
    start = f'python3 -m venv .venv && .venv/bin/pip install -q -e ".[{extra}]" && .venv/bin/python '
    assert command == start + what + "\n"


def test_a_missing_marker_is_an_error() -> None:
    with pytest.raises(SystemExit, match="ci:nothing"):
        script("readme_command").command("nothing")


def test_skips_must_be_declared() -> None:
    allowed = (ROOT / ".ci" / "allowed-skips.txt").read_text().splitlines()
    reasons = ["Skipped: no CUDA device: no driver", "oracle torch is not installed", "Skipped: flaky, look later"]
    assert script("check_skips").undeclared(reasons, allowed) == ["Skipped: flaky, look later"]


def test_lower_bounds_and_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == nvfp.__version__
    assert f"## [{nvfp.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert {"numpy==2.1.2", "ml-dtypes==0.5.1"} <= set(
        script("requirements").lower()
    )  # the second has an upper bound, too
