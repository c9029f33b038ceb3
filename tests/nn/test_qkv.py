"""Query, key and value as views of one buffer; gradients that lie in one already are not copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.nn.functional import _qkv
from nvfp.nn.functional._qkv import split_qkv


def parts(buffer: np.ndarray, heads: int, groups: int, interleaved: bool) -> list[np.ndarray]:
    lead = buffer.shape[:2]
    if interleaved:
        each = buffer.reshape(*lead, heads, 3, -1)
        return [each[:, :, :, i] for i in range(3)]
    flat = buffer.reshape(*lead, heads + 2 * groups, -1)
    return [flat[:, :, :heads], flat[:, :, heads : heads + groups], flat[:, :, heads + groups :]]


def vjp(mixed: nf.Array, layout: tuple[int, int, int, bool], raws: list[np.ndarray | None]) -> Any:
    heads, groups, channels, interleaved = layout
    q, *_ = split_qkv(mixed, heads, groups, channels, interleaved=interleaved)
    dys = tuple(None if raw is None else nf.Array._wrap(raw) for raw in raws)
    (gradient,) = q._node.vjp(q._node.saved, dys, (True,))
    return gradient.raw


@pytest.mark.parametrize(("heads", "groups", "interleaved"), [(4, 4, True), (4, 4, False), (4, 2, False)])
@pytest.mark.parametrize("batch", [1, 2])
def test_gradients_side_by_side_are_taken_as_they_are(
    heads: int, groups: int, interleaved: bool, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    width = (heads + 2 * groups) * 8
    mixed = nf.zeros((batch, 3, width), device="cpu", dtype=nf.float32)
    mixed.requires_grad = True
    layout = (heads, groups, 8, interleaved)
    buffer = np.random.default_rng(0).standard_normal((batch, 3, width)).astype(np.float32)
    monkeypatch.setattr(_qkv, "copy_into", None)
    found = vjp(mixed, layout, parts(buffer, heads, groups, interleaved))
    assert np.shares_memory(found, buffer) and found.shape == buffer.shape and (found == buffer).all()


def test_others_are_copied() -> None:
    mixed = nf.zeros((2, 3, 12 * 8), device="cpu", dtype=nf.float32)
    mixed.requires_grad = True
    buffer = np.random.default_rng(0).standard_normal((2, 3, 12 * 8)).astype(np.float32)
    for interleaved in (True, False):
        q, k, v = parts(buffer, 4, 4, interleaved)
        layout = (4, 4, 8, interleaved)
        want = np.concatenate([x.reshape(2, 3, 4, 1, 8) for x in (k, q, v)], axis=3 if interleaved else 2)
        cases = {
            "another order": ([k, q, v], want.reshape(buffer.shape)),
            "a copy": ([q.copy(), k, v], buffer),
            "another buffer": ([q, k, parts(buffer.copy(), 4, 4, interleaved)[2]], buffer),
            "the other layout": (parts(buffer, 4, 4, not interleaved), None),
        }
        for name, (raws, expected) in cases.items():
            found = vjp(mixed, layout, raws)
            assert not np.shares_memory(found, buffer), name
            assert expected is None or (found == expected).all(), name
        found = vjp(mixed, layout, [q, None, v])
        assert (parts(found, 4, 4, interleaved)[1] == 0).all()


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_part_of_qkv_that_is_not_used_has_gradient_zero(device: Any, interleaved: bool) -> None:
    mixed = nf.asarray(np.random.default_rng(1).standard_normal((2, 3, 8 * 4)).astype(np.float32), requires_grad=True)
    del [np.full((2, 3, 8 * 4), np.nan, np.float32) for _ in range(9)][:]  # what fresh memory may hold
    split_qkv(mixed, 4, 2, 4, interleaved=interleaved)[1].sum().backward()
    rows = np.arange(8) % 4 == 2 if interleaved else (np.arange(8) >= 4) & (np.arange(8) < 6)
    assert np.array_equal(np.asarray(mixed.grad), np.broadcast_to(np.repeat(rows, 4), (2, 3, 32)))
