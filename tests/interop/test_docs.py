"""The examples of docs/interop.md run as they stand there, and those of examples/."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import nvfp as nf
from tests.devices import need_oracle

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "interop.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.oracle
@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.split()[1])
def test_blocks_of_the_page(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_oracle("jax" if "import jax" in block else "torch")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs/interop.md", "exec"), {})


@pytest.mark.oracle
@pytest.mark.parametrize(("example", "package"), [("torch_bridge", "torch"), ("jax_bridge", "jax")])
def test_examples(example: str, package: str) -> None:
    need_oracle(package)
    found: Any = runpy.run_path(str(ROOT / "examples" / f"{example}.py"))["main"](steps=15)
    for losses in found.values() if isinstance(found, dict) else [found]:
        assert losses[-1] < 0.5 * losses[0]


def test_a_missing_framework_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for a bridge whose framework is not there says how to install it."""
    import importlib
    import sys

    from nvfp import optional

    for name in ("torch", "jax"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, f"nvfp.interop.{name}", raising=False)
        monkeypatch.delitem(vars(nf.interop), name, raising=False)
        optional.need.cache_clear()
        with pytest.raises(nf.errors.MissingDependencyError, match=f"pip install 'nvfp\\[{name}\\]'"):
            importlib.import_module(f"nvfp.interop.{name}")
    optional.need.cache_clear()
    with pytest.raises(AttributeError, match="no attribute 'tensorflow'"):
        _ = nf.interop.tensorflow
