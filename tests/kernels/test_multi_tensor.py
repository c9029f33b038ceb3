"""`kernels.multi_tensor` on every device: the trace of TE numerics B2, handed case H13, and the CPU's bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, strategies as st

from nvfp.device import Device
from nvfp.kernels.multi_tensor import (
    ALGORITHMS,
    PIECE,
    amax_history_update,
    l2_norm,
    prepare_amax_history_update,
    scale_tensors,
)
from tests.devices import to_device, to_numpy
from tests.kernels.dense import BF16, COMPUTED, F16, F32, SPECIAL, bits, normal
from tests.oracles import multi_tensor as oracle
from tests.tolerances import check

INF = math.inf
algorithms = pytest.mark.parametrize("algorithm", ALGORITHMS)


def trace(
    device: Device, amaxes: Sequence[float | None], length: int, algorithm: str = "max", margin: int = 0
) -> list[tuple[float, float, list[float]]]:
    """(scale used, scale after, history after) of each step; None: the module did not run."""
    history, scale = to_device(np.zeros((length, 1), F32), device), to_device(np.ones(1, F32), device)
    steps = []
    for amax in amaxes:
        used = float(to_numpy(scale)[0])
        if amax is not None:
            open_slot = to_numpy(history)
            open_slot[0] = amax
            history = to_device(open_slot, device)
        amax_history_update([history], [scale], [(448.0,)], algorithm=algorithm, margin=margin)
        steps.append((used, float(to_numpy(scale)[0]), to_numpy(history)[:, 0].tolist()))
    return steps


def test_trace_of_b2(device: Device) -> None:
    amaxes = [2, 7, None, 0.5, INF, 1, 1, 1, 1]
    histories = [
        [0, 0, 0, 2], [0, 0, 2, 7], [0, 0, 2, 7], [0, 2, 7, 0.5], [0, 7, 0.5, INF],
        [0, 0.5, INF, 1], [0, INF, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1],
    ]  # fmt: skip
    steps = trace(device, amaxes, 4)
    assert [used for used, _, _ in steps] == [1, 224, 64, 64, 64, 64, 64, 64, 64]
    assert [scale for _, scale, _ in steps] == [224, 64, 64, 64, 64, 64, 64, 64, 448]
    assert [history for _, _, history in steps] == histories
    steps = trace(device, amaxes, 4, "most_recent")
    assert [scale for _, scale, _ in steps] == [224, 64, 64, 896, 896, 448, 448, 448, 448]
    assert [history for _, _, history in steps] == histories
    assert trace(device, [7], 4, margin=1)[0][1] == 32


@pytest.mark.parametrize(
    ("length", "algorithm", "margin", "scales"),
    [
        (3, "max", 0, [56, 56, 56, 224, 448]),
        (3, "most_recent", 0, [56, 224, 448, 448, 448]),
        (3, "max", 2, [14, 14, 14, 56, 112]),
        (2, "max", 0, [56, 56, 224, 448, 448]),
    ],
)
def test_handed_h13(device: Device, length: int, algorithm: str, margin: int, scales: list[float]) -> None:
    amaxes: list[float | None] = [8, 2, 1, 1, 1]
    steps = trace(device, amaxes, length, algorithm, margin)
    assert [scale for _, scale, _ in steps] == scales
    assert [used for used, _, _ in steps] == [1, *scales[:-1]]
    skipped = trace(device, [8, 2, None, 1, 1, 1], length, algorithm, margin)
    assert skipped[2][1:] == skipped[1][1:]
    assert [*skipped[:2], *skipped[3:]] == steps
    assert trace(device, [*amaxes, INF], length, algorithm, margin)[-1][1] == scales[-1]


def many(seed: int, modules: int, longest: int) -> tuple[list[np.ndarray], list[np.ndarray], list[tuple[float, ...]]]:
    """Random state with infinities, zeros, tiny and huge values, NaN, and tensors that were not seen."""
    rng = np.random.default_rng(seed)
    histories, scales, tops = [], [], []
    for _ in range(modules):
        length, n = int(rng.integers(1, longest + 1)), int(rng.integers(0, 7))
        h = (rng.random((length, n)) * 2.0 ** rng.integers(-149, 128, (length, n))).astype(F32)
        for value, share in ((0, 0.2), (np.inf, 0.05), (np.nan, 0.03)):
            h[rng.random(h.shape) < share] = value
        h[0, rng.random(n) < 0.3] = 0
        histories.append(h)
        scales.append(rng.random(n).astype(F32) + F32.type(0.5))
        tops.append(tuple(float(t) for t in rng.choice([448.0, 57344.0], n)))
    return histories, scales, tops


@pytest.mark.sanitizer
@algorithms
@pytest.mark.parametrize("margin", [0, 3, -2])
@pytest.mark.parametrize(("modules", "longest"), [(1, 1), (100, 5), (7, 1024)])
def test_many_modules(device: Device, modules: int, longest: int, margin: int, algorithm: str) -> None:
    histories, scales, tops = many(modules, modules, longest)
    moved = [[to_device(x.copy(), device) for x in xs] for xs in (histories, scales)]
    amax_history_update(*moved, tops, algorithm=algorithm, margin=margin)
    for h, s, top, h_raw, s_raw in zip(histories, scales, tops, *moved):
        h_got, s_got = to_numpy(h_raw), to_numpy(s_raw)
        for j, t in enumerate(top):
            wanted = oracle.amax_history_update(h[:, j].tolist(), float(s[j]), t, algorithm=algorithm, margin=margin)
            np.testing.assert_array_equal(h_got[:, j], np.array(wanted[0], F32))
            assert s_got[j] == F32.type(wanted[1])


@given(amaxes=st.lists(st.sampled_from([0.0, 1.0, 3.0, 448.0, 1e-45, 3e38, INF, math.nan]), min_size=1, max_size=9),
       length=st.integers(1, 5), algorithm=st.sampled_from(ALGORITHMS))  # fmt: skip
def test_scales_stay_usable(device: Device, amaxes: list[float], length: int, algorithm: str) -> None:
    for _, scale, history in trace(device, amaxes, length, algorithm):
        assert 0 < scale < INF
        assert history[0] == 0


def test_state_is_changed_in_place(device: Device) -> None:
    history, scale = to_device(np.full((2, 3), 4, F32), device), to_device(np.ones(3, F32), device)
    alias = history[...]
    amax_history_update([history], [scale], [(448.0, 448.0, 57344.0)])
    assert to_numpy(alias).tolist() == [[0] * 3, [4] * 3]
    assert to_numpy(scale).tolist() == [112, 112, 14336]
    amax_history_update([], [], [])


def test_a_prepared_update_repeats(device: Device) -> None:
    """It writes the same arrays at each call, and keeps them alive."""
    history, scale = to_device(np.zeros((3, 1), F32), device), to_device(np.ones(1, F32), device)
    update = prepare_amax_history_update([history], [scale], [(448.0,)])
    seen, wanted = [], trace(device, [8, 2, 1, 1], 3)
    for amax in (8, 2, 1, 1):
        history[0] = amax
        update()
        seen.append((float(to_numpy(scale)[0]), to_numpy(history)[:, 0].tolist()))
    assert seen == [step[1:] for step in wanted]
    prepare_amax_history_update([], [], [])()


def test_what_does_not_fit(device: Device) -> None:
    history, scale, top = to_device(np.ones((4, 3), F32), device), to_device(np.ones(3, F32), device), (448.0,) * 3
    with pytest.raises(ValueError, match="algorithm"):
        amax_history_update([history], [scale], [top], algorithm="mean")
    with pytest.raises(ValueError, match="an integer margin"):
        amax_history_update([history], [scale], [top], margin=0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lists of one length"):
        amax_history_update([history], [scale], [])
    with pytest.raises(ValueError, match=r"history \[L, n\]"):
        amax_history_update([history], [scale[:2]], [top])
    with pytest.raises(ValueError, match="n maxima"):
        amax_history_update([history], [scale], [top[:2]])
    with pytest.raises(ValueError, match="C-contiguous"):
        amax_history_update([history[:, ::-1]], [scale], [top])
    with pytest.raises(TypeError, match="float32 state"):
        amax_history_update([to_device(np.ones((4, 3), F16), device)], [scale], [top])
    if device.type == "cpu":
        fixed = np.ones((4, 3), F32)
        fixed.flags.writeable = False
        with pytest.raises(ValueError, match="writeable state"):
            amax_history_update([fixed], [scale], [top])


SIZES = ((), (1,), (0, 3), (7, 5), (PIECE,), (PIECE + 8,), (3, PIECE - 1), (2 * PIECE + 3,))


def tensors(dtypes: Sequence[np.dtype] = COMPUTED, *, special: bool = False) -> list[np.ndarray]:
    """Tensors of many sizes, one of each also off 16 bytes."""
    found = [normal(shape, dtype, k) for k, shape in enumerate(SIZES) for dtype in dtypes]
    found += [normal((shape[0] + 1,), dtype, 5)[1:] for shape in SIZES[4:6] for dtype in dtypes]
    if special:
        for x in found[-2:]:
            x.reshape(-1)[-1] = np.inf
        found.append(np.array(SPECIAL, F32))
    return found


@pytest.mark.sanitizer
def test_scaled_tensors(device: Device) -> None:
    xs, half = tensors(special=True), np.float32(0.3)
    raw, found = [to_device(x, device) for x in xs], to_device(np.zeros((), F32), device)
    with np.errstate(all="ignore"):
        wanted = [(x.astype(F32) * half).astype(x.dtype) for x in xs]
    factor = to_device(np.asarray(half), device)
    got = scale_tensors(raw, factor, nonfinite=found)
    assert to_numpy(found) == 1
    for one, other in zip(got, wanted):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(bits(to_numpy(one)), bits(other))
    wide = [to_device(np.zeros(x.shape, F32), device) for x in xs]
    assert all(a is b for a, b in zip(scale_tensors(raw, factor, outs=wide), wide))
    for one, other in zip(wide, oracle.scale_tensors(xs, float(half))[0]):
        check(to_numpy(one), other, "elementwise")
    scale_tensors(raw, factor, outs=raw)  # in place
    for one, other in zip(raw, wanted):
        np.testing.assert_array_equal(bits(to_numpy(one)), bits(other))


def test_the_flag_is_only_raised(device: Device) -> None:
    one = to_device(np.ones((), F32), device)
    fine, found = [to_device(x, device) for x in tensors()], to_device(np.zeros((), F32), device)
    scale_tensors(fine, one, nonfinite=found)
    assert to_numpy(found) == 0 and scale_tensors([], one) == []
    scale_tensors([to_device(np.array([np.nan], BF16), device)], one, nonfinite=found)
    scale_tensors(fine, one, nonfinite=found)  # stays
    assert to_numpy(found) == 1


@pytest.mark.sanitizer
def test_norm_of_all_tensors(device: Device) -> None:
    xs = tensors()
    raw = [to_device(x, device) for x in xs]
    norm = l2_norm(raw)
    assert norm.shape == () and norm.dtype == F32
    check(to_numpy(norm), oracle.l2_norm(xs), "l2_norm")
    assert to_numpy(l2_norm(raw)) == to_numpy(norm)  # the same bits again
    assert np.isnan(to_numpy(l2_norm([*raw, to_device(np.array([np.nan], F32), device)])))
    assert np.isinf(to_numpy(l2_norm([to_device(np.array([3e38], F32), device)])))
    assert to_numpy(l2_norm([], like=raw[0])) == 0 == to_numpy(l2_norm(raw[6:9]))  # none, and empty ones
    many = [to_device(np.full((3,), 2, F16), device) for _ in range(300)]
    assert to_numpy(l2_norm(many)) == F32.type(np.sqrt(F32.type(3600)))


def test_tensors_that_do_not_fit(device: Device) -> None:
    x, one = to_device(np.ones((4, 3), F32), device), to_device(np.ones((), F32), device)
    with pytest.raises(TypeError, match="float32, bfloat16 or float16 tensors"):
        l2_norm([to_device(np.ones(3), device)])
    with pytest.raises(ValueError, match="C-contiguous"):
        scale_tensors([x.T], one)
    with pytest.raises(ValueError, match="one out per tensor"):
        scale_tensors([x], one, outs=[])
    with pytest.raises(ValueError, match=r"out as float32 \(4, 3\)"):
        scale_tensors([x], one, outs=[x[:2]])
    with pytest.raises(TypeError, match="factor as a float32"):
        scale_tensors([x], 0.5)
