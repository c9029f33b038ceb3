"""The examples in docstrings run, on the CPU."""

from __future__ import annotations

import doctest
from importlib import import_module

import numpy as np
import pytest

import nvfp
from tests.devices import need_oracle
from tests.structure.tree import BRIDGES, modules

WITH_EXAMPLES = [
    pytest.param(name, marks=pytest.mark.oracle) if name in BRIDGES else name
    for name, path in modules().items()
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(name: str) -> None:
    if name in BRIDGES:
        need_oracle(BRIDGES[name])
    module = import_module(name)
    result = doctest.testmod(module, extraglobs={"nf": nvfp, "np": np}, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples of {name} fail (see the output)"
