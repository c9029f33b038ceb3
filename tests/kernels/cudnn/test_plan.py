"""Records, rules, layouts, the cache of plans, handles and dropout's words: all without a GPU."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest

from nvfp.errors import ArgumentError, KernelError, ShapeError
from nvfp.kernels.cudnn import binding, plan, words
from nvfp.kernels.cudnn.layout import Port, tensors
from nvfp.kernels.cudnn.record import AttentionRecord, addressable, contiguous, record_of
from nvfp.kernels.cudnn.run import attention, unsupported
from nvfp.kernels.cudnn.support import refusal
from tests.kernels.cudnn.emulator import FakeCudnn
from tests.kernels.cudnn.test_attention import BF16, draw, operands


def record(**changes: Any) -> AttentionRecord:
    strides = contiguous((2, 64, 4, 64))
    plain = AttentionRecord(2, 64, 64, 4, 4, 64, 64, "bfloat16", strides, strides, strides, 0.125)
    return dataclasses.replace(plain, **changes)


@pytest.mark.parametrize(
    ("changes", "words_of_it"),
    [
        ({"dtype": "float32"}, "float32"),
        ({"batch": 0}, "length 0"),
        ({"keys": 0}, "length 0"),
        ({"groups": 3}, "groups"),
        ({"depth": 60}, "multiples of 8"),
        ({"value_depth": 264}, "up to 256"),
        ({"queries": 1, "keys": 1}, "one query and one key"),
        ({"dropout": 1.0}, "below 1"),
        ({"mask_type": "causal_bottom_right", "keys": 60}, "bottom-right"),
        ({"mask_type": "causal_bottom_right", "keys": 80, "dropout": 0.1}, "dropout"),
        ({"mask_type": "padding_causal_bottom_right", "keys": 80, "mask": (2, 1)}, "mask"),
        ({"mask_type": "causal", "keys": 60, "window": (4, 0)}, "sliding window"),
    ],
)
def test_refusals_have_reasons(changes: dict[str, Any], words_of_it: str) -> None:
    assert words_of_it in (refusal(record(**changes), (9, 0)) or "")


def test_what_is_taken() -> None:
    for changes in (
        {},
        {"queries": 1, "keys": 1, "stats": False},
        {"mask_type": "causal_bottom_right", "dropout": 0.1},  # as many keys as queries: the same diagonal
        {"mask_type": "padding_causal_bottom_right", "mask": (1, 1)},
        {"mask_type": "causal_bottom_right", "keys": 80},
        {"mask_type": "arbitrary", "mask": (1, 1), "keys": 60, "dropout": 0.5},
    ):
        assert refusal(record(**changes), (9, 0)) is None
    assert "7.5" in (refusal(record(), (7, 5)) or "")


def test_record_of_arrays(library: FakeCudnn) -> None:
    q, k, v, _ = operands()
    with pytest.raises(ArgumentError, match="mask_type out of"):
        record_of(q, k, v, mask_type="diagonal")
    with pytest.raises(ArgumentError, match="without a mask"):
        record_of(q, k, v, mask_type="padding")
    with pytest.raises(ArgumentError, match="with a mask"):
        record_of(q, k, v, mask_type="causal", mask=np.zeros((77, 77), bool))
    with pytest.raises(ShapeError, match="broadcasts"):
        record_of(q, k, v, mask_type="arbitrary", mask=np.zeros((3, 1, 77, 77), bool))
    found = record_of(q, k, v, mask_type="arbitrary", mask=np.zeros((4, 1, 77), bool), dropout=0.5)
    assert found.mask == (1, 4) and found.scale == 0.125 and hash(found) == hash(dataclasses.replace(found))
    assert str(found).endswith("arbitrary mask (1, 4), scale 0.125, dropout 0.5")


def test_one_long_axes_have_no_stride_of_their_own(library: FakeCudnn) -> None:
    q = draw(np.random.default_rng(1), (1, 9, 4, 8))
    odd = np.lib.stride_tricks.as_strided(q, q.shape, (2, *q.strides[1:]))
    record = record_of(odd, odd, odd)
    assert record == record_of(q, q, q)
    attention(record, odd, odd, odd)
    last = library.pointers[-1]
    assert last[Port.Q] == last[Port.K] == odd.__array_interface__["data"][0]  # not copied


def test_addressable() -> None:
    shape = (2, 9, 4, 64)
    for strides, is_so in (
        (contiguous(shape), True),
        ((4 * 9 * 64, 64, 9 * 64, 1), True),  # head first
        ((256, 512, 64, 1), True),  # sequence first
        ((128, 256, 64, 1), False),  # batches overlap
        ((9 * 260, 260, 65, 1), False),
        ((9 * 256, 256, 0, 1), False),
        ((9 * 256, 256, 64, 2), False),
    ):
        assert addressable(shape, strides, 2, 256) == is_so
    assert not addressable(shape, contiguous(shape), 2, 8)


def test_layouts_are_by_head() -> None:
    strides = (77 * 768, 768, 64, 1)
    found = tensors(record(keys=77, groups=2, value_depth=8, k_strides=strides, mask=(2, 1), dropout=0.5))
    assert found[Port.K].dim == (2, 2, 77, 64) and found[Port.K].stride == (77 * 768, 64, 768, 1)
    assert found[Port.O].dim == (2, 4, 64, 8) and found[Port.O].stride == (64 * 32, 8, 32, 1)
    assert found[Port.STATS].stride == (256, 64, 1, 1) and found[Port.DV].dim == (2, 2, 77, 8)
    assert found[Port.BIAS].dim == (2, 1, 64, 77) and found[Port.BIAS].stride == (64 * 80, 64 * 80, 80, 1)
    assert found[Port.SEED].dtype == "int64"
    assert Port.BIAS not in tensors(record()) and Port.SEED not in tensors(record())


def test_plans_are_built_once(library: FakeCudnn) -> None:
    assert [unsupported(record()) for _ in range(3)] == [None] * 3
    assert [graph.kind for graph in library.built] == ["sdpa", "sdpa_backward"]
    stats = plan.plan_stats()
    assert (stats.hits, stats.misses, stats.size, stats.capacity) == (2, 1, 1, 64)
    assert unsupported(record(stats=False)) is None and len(library.built) == 3
    assert unsupported(record(deterministic=False)) is None and library.deterministic == [True, False]


def test_refusals_are_kept(library: FakeCudnn) -> None:
    library.refuse = ("sdpa_backward",)
    reason = unsupported(record())
    assert reason == "cuDNN 91900 refuses it: no engine"
    assert unsupported(record()) is reason and len(library.built) == 1
    assert unsupported(record(stats=False)) is None
    q, k, v, _ = operands(64, 64)
    with pytest.raises(KernelError, match="no engine"):
        attention(record(), q, k, v)


def test_the_cache_is_bounded(library: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVFP_ATTENTION_CACHE", "2")
    for scale in (1.0, 2.0, 3.0):
        unsupported(record(scale=scale))
    assert plan.plan_stats().size == 2 and plan.plan_stats().evictions == 1
    unsupported(record(scale=1.0))
    with pytest.warns(RuntimeWarning, match="NVFP_ATTENTION_CACHE"):
        unsupported(record(scale=2.0))


def test_a_capture_builds_no_plan(library: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = type(binding.cp.cuda.get_current_stream())
    monkeypatch.setattr(stream, "capturing", True)
    assert "float32" in (unsupported(record(dtype="float32")) or "")
    with pytest.raises(KernelError, match="run the step once"):
        unsupported(record())
    monkeypatch.setattr(stream, "capturing", False)
    unsupported(record())
    monkeypatch.setattr(stream, "capturing", True)
    assert unsupported(record()) is None


def test_threads_have_handles_of_their_own(library: FakeCudnn) -> None:
    q, k, v, _ = operands(64, 64)
    attention(record(), q, k, v)
    assert len(library.handles) == 1

    def work() -> None:
        attention(record(), q, k, v)
        attention(record(), q, k, v)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(library.built) == 2 and library.executed == [("sdpa", 7)] * 3
    assert len(library.handles) == 1  # the thread took its own along


def test_workspace_only_where_one_is_needed(library: FakeCudnn) -> None:
    library.workspace = 0
    q, k, v, _ = operands(64, 64)
    attention(record(), q, k, v)
    assert library.executed == [("sdpa", 7)]


def test_offsets(library: FakeCudnn) -> None:
    found = {words.offset_of(key, ordinal) for key in (0, 1, 2**64 - 1) for ordinal in range(1000)}
    assert len(found) == 3000 and all(0 <= x < 2**62 for x in found)
    word = words.offset_word(0, 7, 3)
    assert word is words.offset_word(0, 7, 3) and int(word[0]) == words.offset_of(7, 3)
    many = [words.offset_word(0, 7, n) for n in range(1100)]
    assert [int(w[0]) for w in many] == [words.offset_of(7, n) for n in range(1100)]


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    binding.problem.cache_clear()
    monkeypatch.setattr(binding, "has", lambda package: False)
    try:
        assert "nvidia-cudnn-frontend is not installed" in (binding.problem() or "")
    finally:
        binding.problem.cache_clear()


def test_a_library_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise RuntimeError("libcudnn.so.9: cannot open shared object file")

    binding.problem.cache_clear()
    monkeypatch.setattr(binding, "has", lambda package: True)
    monkeypatch.setattr(binding, "_cudnn", missing)
    try:
        assert "libcudnn.so.9" in (binding.problem() or "")
    finally:
        binding.problem.cache_clear()


def test_another_package_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    binding.problem.cache_clear()
    monkeypatch.setattr(binding, "has", lambda package: True)
    monkeypatch.setattr(binding, "_cudnn", object)
    try:
        assert "is not nvidia-cudnn-frontend" in (binding.problem() or "")
    finally:
        binding.problem.cache_clear()


def test_the_operands_dtype_is_the_records(library: FakeCudnn) -> None:
    assert record_of(*operands(dtype=BF16)[:3]).dtype == "bfloat16"
