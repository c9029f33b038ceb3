"""RotaryPositionEmbedding: the angles, their layouts, interpolation, and where they live."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError, ShapeError
from nvfp.nn.functional.rope import rope
from tests.tolerances import check


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("dim", "percent", "base", "offset"), [(8, 1.0, 1e4, 0), (12, 0.5, 5e5, 3), (10, 0.85, 1e4, 7)]
)
def test_angles(device: Any, dim: int, percent: float, base: float, offset: int, interleaved: bool) -> None:
    module = nf.nn.RotaryPositionEmbedding(dim, percent, rotary_base=base, interleaved=interleaved)
    freqs = module(5, offset)
    rotated = int(dim * percent)
    assert freqs.shape == (5, 1, 1, rotated) and freqs.dtype == nf.float32 and not freqs.requires_grad
    angles = (np.arange(5) + offset)[:, None] * base ** (-np.arange(0, rotated, 2) / rotated)
    want = np.repeat(angles, 2, axis=1) if interleaved else np.concatenate((angles, angles), axis=1)
    check(np.asarray(freqs)[:, 0, 0], want, "rotary")


@pytest.mark.parametrize(("length", "factor"), [(6, 1 / 2), (8, 1 / 2), (16, 4 / 16)])
def test_positions_are_interpolated(device: Any, length: int, factor: float) -> None:
    """Learned 4 positions, factor 2: up to 8 the positions are halved, beyond they are squeezed into 4."""
    plain = nf.nn.RotaryPositionEmbedding(4)(length)
    module = nf.nn.RotaryPositionEmbedding(4, seq_len_interpolation_factor=2, pretrained_max_position_embeddings=4)
    check(np.asarray(module(length)), np.asarray(plain, np.float64) * factor, "rotary")
    alone = nf.nn.RotaryPositionEmbedding(4, seq_len_interpolation_factor=2)
    assert np.array_equal(np.asarray(alone(length)), np.asarray(plain))


def test_tables_are_kept_and_follow_the_device(device: Any) -> None:
    module = nf.nn.RotaryPositionEmbedding(4)
    first, second = module(6), module(6)
    assert first.raw is second.raw and first.device == device and not module.state_dict()
    for length in range(1, 40):
        module(length)
    assert len(module._tables) <= 8
    model = nf.nn.Sequential(nf.nn.Linear(2, 2), module)
    model.to("cpu", nf.bfloat16)
    assert module(6).device == "cpu" and module(6).dtype == nf.float32
    assert nf.nn.RotaryPositionEmbedding(4, device="cpu")(3).device == "cpu"


@pytest.mark.parametrize(
    "arguments",
    [
        {"dim": 5},
        {"dim": 0},
        {"dim": 10, "rotary_percent": 0.5},
        {"dim": 4, "rotary_percent": 0.1},
        {"dim": 4, "rotary_percent": 1.5},
        {"dim": 4, "rotary_base": 0.0},
        {"dim": 4, "rotary_base": float("nan")},
        {"dim": 4, "seq_len_interpolation_factor": -1},
        {"dim": 4, "pretrained_max_position_embeddings": 0},
        {"dim": 4.0},
    ],
    ids=str,
)
def test_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises((ArgumentError, DTypeError)):
        nf.nn.RotaryPositionEmbedding(**arguments)


@pytest.mark.parametrize("layout", ["bshd", "sbhd", "slice"])
@pytest.mark.parametrize("length", [1, 5])
def test_start_positions(device: Any, length: int, layout: str) -> None:
    """Each entry of the batch from its own position: as each by itself from there; gradients likewise."""
    draw = np.random.default_rng(length)
    shape = {"bshd": (3, length, 2, 8), "sbhd": (length, 3, 2, 8), "slice": (3, length, 3, 2, 8)}[layout]
    given = nf.asarray(draw.standard_normal(shape).astype(np.float32), requires_grad=True)
    freqs, starts = nf.nn.RotaryPositionEmbedding(6)(12), [7, 0, 3]
    x = nf.swapaxes(given, 0, 1) if layout == "sbhd" else given[:, :, 1] if layout == "slice" else given
    y = rope(x, freqs, start_positions=nf.asarray(starts))
    dy = nf.asarray(draw.standard_normal(y.shape).astype(np.float32))
    y.backward(dy)
    alone = nf.asarray(np.asarray(x.detach()), requires_grad=True)
    parts = [rope(alone[i : i + 1], freqs[first:]) for i, first in enumerate(starts)]
    whole = nf.concat(parts)
    whole.backward(dy)
    assert nf.array_equal(y, whole)
    got = np.asarray(given.grad)
    got = got.swapaxes(0, 1) if layout == "sbhd" else got[:, :, 1] if layout == "slice" else got
    assert np.array_equal(got, np.asarray(alone.grad))


def test_refused_start_positions(device: Any) -> None:
    x, freqs = nf.ones((2, 3, 1, 4)), nf.nn.RotaryPositionEmbedding(4)(4)
    for starts, error in (([0, 0, 0], ShapeError), ([0.0, 1.0], DTypeError)):
        with pytest.raises(error, match="start_positions"):
            rope(x, freqs, start_positions=nf.asarray(starts))
    late = nf.asarray([0, 2])
    if device == "cpu":
        with pytest.raises(IndexError):
            rope(x, freqs, start_positions=late)
    else:
        assert np.isnan(np.asarray(rope(x, freqs, start_positions=late))[1, 2]).all()


def test_refused_lengths() -> None:
    module = nf.nn.RotaryPositionEmbedding(4)
    for call in (lambda: module(0), lambda: module(2.5), lambda: module(3, "a")):
        with pytest.raises((ArgumentError, DTypeError)):
            call()
