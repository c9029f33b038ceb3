"""`nf.inspect.memory`: every byte in its column, sums, JSON, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import nvfp as nf
from nvfp.errors import DTypeError
from nvfp.inspect import memory
from nvfp.recipes import MXFP8BlockScaling


def test_each_copy_stands_in_its_column(device: Any, tmp_path: Path) -> None:
    model = nf.nn.LayerNormLinear(
        64, 32, parameters_split={"query": 16, "key": 8, "value": 8}, bias=False, dtype=nf.bfloat16,
        fuse_wgrad_accumulation=True,
    )  # fmt: skip
    optimizer = nf.optim.AdamW(model.parameters())
    x = nf.ones((2, 64), dtype=nf.bfloat16)
    x.requires_grad = True
    with nf.autocast(recipe=MXFP8BlockScaling()):
        model(x, is_first_microbatch=True).sum().backward()
    table = memory(model, optimizer)
    rows = {row.name: row.as_dict() for row in table}
    assert list(rows) == list(model.parameters())
    n = 16 * 64
    expected = {
        "high_precision": 2 * n, "row": n, "column": n, "scales": n // 16, "main_grad": 4 * n, "grad": 0,
        "master": 4 * n, "moments": 8 * n, "initial": 0,
    }  # fmt: skip
    assert {k: rows["query_weight"][k] for k in expected} == expected
    assert rows["query_weight"]["total"] == sum(expected.values())
    assert rows["layer_norm_weight"]["grad"] == 128
    assert table.total.row == 32 * 64
    assert table.total.total == sum(row.total for row in table)
    assert json.loads(table.to_json(tmp_path / "m.json")) == json.loads((tmp_path / "m.json").read_text())
    lines = repr(table).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert "initial" not in lines[0]  # nothing there


def test_tied_parameters_count_once(device: Any) -> None:
    model = nf.nn.Sequential(nf.nn.Linear(4, 4, bias=False), nf.nn.Linear(4, 4, bias=False))
    model._modules["1"].weight = model._modules["0"].weight
    assert [row.name for row in memory(model)] == ["0.weight"]


def test_errors() -> None:
    with pytest.raises(DTypeError, match="Module"):
        memory(nf.ones((2,)))  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="optimizer"):
        memory(nf.nn.Linear(2, 2), 3)
