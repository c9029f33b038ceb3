"""cuDNN's attention against float64: masks, shapes, layouts, dropout; emulated without a GPU, the library with one."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nvfp.device import Device
from nvfp.errors import ArgumentError, KernelError
from nvfp.kernels.cudnn import binding, plan
from nvfp.kernels.cudnn.layout import tensors
from nvfp.kernels.cudnn.record import AttentionRecord, contiguous, record_of
from nvfp.kernels.cudnn.run import attention, attention_vjp, unsupported
from tests.devices import to_device, to_numpy
from tests.kernels.cudnn.problems import Expected, expected, visible
from tests.tolerances import check

BF16, F16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
NAME = "attention_cudnn"


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype = BF16) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32).astype(dtype)


def operands(
    queries: int = 77,
    keys: int = 77,
    heads: int = 4,
    groups: int = 4,
    depth: int = 64,
    value_depth: int | None = None,
    dtype: np.dtype = BF16,
    batch: int = 2,
) -> tuple[np.ndarray, ...]:
    """Q, K, V and dO."""
    rng = np.random.default_rng(50)
    value_depth = value_depth or depth
    shapes = (
        (batch, queries, heads, depth),
        (batch, keys, groups, depth),
        (batch, keys, groups, value_depth),
        (batch, queries, heads, value_depth),
    )
    return tuple(draw(rng, shape, dtype) for shape in shapes)


def run(device: Device, arrays: tuple[np.ndarray, ...], mask: Any = None, **options: Any) -> tuple[Any, ...]:
    """O, dQ, dK, dV as NumPy arrays, and the record."""
    q, k, v, dout = (to_device(x, device) for x in arrays)
    mask = None if mask is None else to_device(mask, device)
    record = record_of(q, k, v, mask=mask, **options)
    assert unsupported(record) is None
    out, saved = attention(record, q, k, v, mask=mask)
    grads = attention_vjp(record, dout, q, k, v, out, saved)[:3]
    return *(to_numpy(x) for x in (out, *grads)), record


FLOOR = 2.0**-10  # in scales: an absolute limit of 1e-6, some float16 subnormals (sums of rounded tiny weights)


def compare(found: tuple[Any, ...], wanted: Expected) -> None:
    check(found[0], wanted.out, NAME, scale=wanted.out_scale + FLOOR)
    for actual, grad, scale in zip(found[1:4], wanted.grads, wanted.grad_scales, strict=True):
        check(actual, grad, NAME, scale=scale + FLOOR)


def masks(kind: str, batch: int, heads: int, queries: int, keys: int) -> np.ndarray:
    rng = np.random.default_rng(51)
    found = np.zeros((batch, 1, 1, keys), bool)
    if kind == "right":
        found[0, ..., keys - 20 :] = True
    elif kind == "left":  # under a causal mask the first rows then see nothing
        found[0, ..., :20] = True
        found[1, ..., 3] = True
    elif kind == "all":
        found[1] = True
    else:
        found = rng.random((batch, heads if kind == "heads" else 1, queries, keys)) < 0.6
        found[0, :, 5] = True  # a query without keys
        found[1, :, :, 7] = True  # a key without queries
    return found


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("mask_type", ["no_mask", "causal", "causal_bottom_right"])
@pytest.mark.parametrize("lengths", [(128, 128), (77, 77), (60, 93), (1, 64)], ids=str)
def test_diagonals(device: Device, lengths: tuple[int, int], mask_type: str, dtype: np.dtype) -> None:
    arrays = operands(*lengths, dtype=dtype)
    compare(run(device, arrays, mask_type=mask_type), expected(*arrays, visible(*lengths, mask_type)))


@pytest.mark.parametrize("mask_type", ["no_mask", "causal"])
def test_more_queries_than_keys(device: Device, mask_type: str) -> None:
    arrays = operands(93, 60)
    compare(run(device, arrays, mask_type=mask_type), expected(*arrays, visible(93, 60, mask_type)))


@pytest.mark.parametrize("kind", ["right", "left", "all", "every", "heads"])
@pytest.mark.parametrize("mask_type", ["padding", "padding_causal", "arbitrary"])
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_masks(device: Device, dtype: np.dtype, mask_type: str, kind: str) -> None:
    """Rows that see no key give 0, and nothing but finite gradients."""
    arrays, mask = operands(dtype=dtype), masks(kind, 2, 4, 77, 77)
    found = run(device, arrays, mask, mask_type=mask_type)
    seen = np.broadcast_to(visible(77, 77, mask_type, mask=mask), (2, 4, 77, 77))
    compare(found, expected(*arrays, seen))
    blind = ~seen.any(-1).transpose(0, 2, 1)
    assert kind == "right" or mask_type != "padding_causal" or blind.any()
    assert not found[0][blind].any() and not found[1][blind].any()


def test_masks_of_unequal_lengths(device: Device) -> None:
    arrays, mask = operands(60, 93), masks("left", 2, 4, 60, 93)
    for mask_type in ("padding", "padding_causal", "arbitrary"):
        found = run(device, arrays, mask, mask_type=mask_type)
        compare(found, expected(*arrays, visible(60, 93, mask_type, mask=mask)))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("mask_type", ["causal", "padding"])
def test_groups(device: Device, mask_type: str, groups: int) -> None:
    arrays = operands(groups=groups)
    mask = masks("right", 2, 4, 77, 77) if mask_type == "padding" else None
    compare(run(device, arrays, mask, mask_type=mask_type), expected(*arrays, visible(77, 77, mask_type, mask=mask)))


@pytest.mark.parametrize("depths", [(8, 8), (64, 64), (72, 72), (128, 128), (256, 256), (192, 128)], ids=str)
def test_depths(device: Device, depths: tuple[int, int]) -> None:
    arrays = operands(depth=depths[0], value_depth=depths[1], groups=2)
    compare(run(device, arrays, mask_type="causal"), expected(*arrays, visible(77, 77, "causal")))


@pytest.mark.parametrize("mask_type", ["causal", "no_mask", "causal_bottom_right"])
@pytest.mark.parametrize("window", [(16, 0), (0, 0), (16, 8), (-1, 8), (500, -1)], ids=str)
@pytest.mark.parametrize("lengths", [(77, 77), (60, 93)], ids=str)
def test_windows(device: Device, lengths: tuple[int, int], window: tuple[int, int], mask_type: str) -> None:
    arrays = operands(*lengths)
    found = run(device, arrays, mask_type=mask_type, window=window)
    compare(found, expected(*arrays, visible(*lengths, mask_type, window)))


def test_scale(device: Device) -> None:
    arrays = operands()
    compare(run(device, arrays, scale=0.5), expected(*arrays, visible(77, 77, "no_mask"), 0.5))


def fused(kind: str) -> tuple[np.ndarray, ...]:
    """Q, K, V as views of one buffer, and dO."""
    rng = np.random.default_rng(52)
    dout = draw(rng, (2, 77, 4, 64))
    if kind == "qkv":  # [B, L, 3, H, D]
        buffer = draw(rng, (2, 77, 3, 4, 64))
        return *(buffer[:, :, i] for i in range(3)), dout
    if kind == "per head":  # [B, L, H, 3 D]
        buffer = draw(rng, (2, 77, 4, 192))
        return *(buffer[..., 64 * i : 64 * i + 64] for i in range(3)), dout
    if kind == "groups":  # [B, L, (H + 2 G) D]
        buffer = draw(rng, (2, 77, 8, 64))
        return buffer[:, :, :4], buffer[:, :, 4:6], buffer[:, :, 6:], dout
    if kind == "sequence first":  # [L, B, H, D]
        return *(draw(rng, (77, 2, 4, 64)).swapaxes(0, 1) for _ in range(3)), dout
    assert kind == "head first"  # [B, H, L, D]
    return *(draw(rng, (2, 4, 77, 64)).swapaxes(1, 2) for _ in range(3)), dout


@pytest.mark.parametrize("kind", ["qkv", "per head", "groups", "sequence first", "head first"])
def test_layouts_are_taken_as_they_are(device: Device, kind: str) -> None:
    arrays = fused(kind)
    found = run(device, arrays, mask_type="causal")
    compare(found, expected(*arrays, visible(77, 77, "causal")))
    assert found[4].q_strides != contiguous(arrays[0].shape)


@pytest.mark.parametrize("kind", ["qkv", "per head", "groups", "sequence first"])
@pytest.mark.parametrize("refused", [False, True])
def test_gradients_lie_as_the_operands_do(
    device: Device, kind: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices of one buffer have gradients that are slices of one; where cuDNN has no engine for that, their own."""
    if refused:

        def unsupported_there(record: Any, *, packed: bool = False) -> Any:
            if packed:
                raise binding.Unsupported("not these strides")
            return tensors(record)

        monkeypatch.setattr(plan, "tensors", unsupported_there)
        monkeypatch.setattr(plan, "_plans", {})
    arrays = fused(kind)
    q, k, v, dout = (to_device(x, device) for x in arrays)
    record = record_of(q, k, v)
    out, saved = attention(record, q, k, v)
    grads = attention_vjp(record, dout, q, k, v, out, saved)[:3]
    if refused or kind == "sequence first":
        assert all(g.flags.c_contiguous for g in grads)
        return
    buffers = [g.base for g in grads]
    assert buffers[0] is buffers[1] is buffers[2]
    assert [g.strides for g in grads] == [x.strides for x in (q, k, v)]


@pytest.mark.parametrize("kind", ["qkv", "per head", "groups", "sequence first", "every", "heads"])
def test_a_large_workspace_is_shared_by_parts_of_the_batch(
    device: Device, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backward runs over parts of the batch; masks go with their part."""
    masked = kind in ("every", "heads")
    arrays = operands(batch=4) if masked else tuple(np.concatenate([x, x[::-1] * 2]) for x in fused(kind))
    if kind in ("qkv", "per head", "groups"):  # side by side again
        buffer = np.concatenate([x.reshape(4, 77, -1) for x in arrays[:3]], axis=2)
        heads = [x.shape[2] for x in arrays[:3]]
        ends = np.cumsum([64 * n for n in heads])
        q, k, v = (x.reshape(4, 77, n, 64) for x, n in zip(np.split(buffer, ends[:2], axis=2), heads, strict=True))
        arrays = (q, k, v, arrays[3])
    options = {"mask": masks(kind, 4, 4, 77, 77), "mask_type": "arbitrary"} if masked else {"mask_type": "causal"}
    whole = run(device, arrays, **options)
    monkeypatch.setattr(plan, "_plans", {})
    monkeypatch.setattr(plan, "WORKSPACE", 1)
    parts = run(device, arrays, **options)
    seen = visible(77, 77, options["mask_type"], mask=options.get("mask"))
    compare(parts, expected(*arrays, seen))
    if device.type == "cpu":  # emulated
        assert plan.plan_for(parts[4]).entries == 1
        assert all(a.tobytes() == b.tobytes() for a, b in zip(whole[:4], parts[:4], strict=True))


def test_how_much_of_a_batch_runs_at_a_time() -> None:
    def entries(batch: int, workspace: int, dropout: float = 0.0) -> int:
        strides = contiguous((batch, 64, 2, 8))
        record = AttentionRecord(batch, 64, 64, 2, 2, 8, 8, "bfloat16", strides, strides, strides, 1.0, dropout=dropout)
        return plan._entries(record, workspace)

    most = plan.WORKSPACE
    assert entries(4, most) == 4 and entries(4, 2 * most) == 2 and entries(4, 4 * most) == 1
    assert entries(6, 2 * most) == 3 and entries(5, 2 * most) == 1 and entries(4, 9 * most) == 1
    assert entries(4, 4 * most, dropout=0.1) == 4


@pytest.mark.parametrize("kind", ["odd", "reversed", "broadcast", "last axis", "gradient"])
def test_other_layouts_are_copied(device: Device, kind: str) -> None:
    rng = np.random.default_rng(53)
    q, k, v, dout = operands()
    if kind == "odd":  # addresses and rows at odd multiples of 2 bytes
        buffer = draw(rng, (2, 77, 4, 65))
        q = k = v = buffer[..., 1:]
    elif kind == "reversed":
        q, k, v, dout = (x[:, ::-1] for x in (q, k, v, dout))
    elif kind == "broadcast":
        k, v = (np.broadcast_to(x[:1, :, :1], x.shape) for x in (k, v))
        dout = np.broadcast_to(dout[:, :1], dout.shape)
    elif kind == "gradient":  # that of O always lies in O's own layout
        dout = np.ascontiguousarray(dout.swapaxes(0, 1)).swapaxes(0, 1)
    else:
        q, k, v = (np.ascontiguousarray(x.swapaxes(1, 3)).swapaxes(1, 3) for x in (q, k, v))
    found = run(device, (q, k, v, dout), mask_type="causal")
    compare(found, expected(q, k, v, dout, visible(77, 77, "causal")))
    assert found[4].k_strides == contiguous(k.shape)


@pytest.mark.parametrize("masked", [False, True])
def test_forward_alone(device: Device, masked: bool) -> None:
    arrays, mask = operands(), masks("every", 2, 4, 77, 77) if masked else None
    q, k, v = (to_device(x, device) for x in arrays[:3])
    raw = None if mask is None else to_device(mask, device)
    record = record_of(q, k, v, mask_type="arbitrary" if masked else "causal", mask=raw, stats=False)
    out, saved = attention(record, q, k, v, mask=raw)
    wanted = expected(*arrays, visible(77, 77, record.mask_type, mask=mask))
    check(to_numpy(out), wanted.out, NAME, scale=wanted.out_scale)
    with pytest.raises(ArgumentError, match="with stats"):
        attention_vjp(record, out, q, k, v, out, saved)


def test_bits_repeat(device: Device) -> None:
    for options in ({"mask_type": "causal"}, {"mask_type": "padding", "mask": masks("right", 2, 4, 300, 300)}):
        arrays = operands(300, 300, groups=2)
        first = run(device, arrays, **options)
        for _ in range(4):
            again = run(device, arrays, **options)
            assert all(a.tobytes() == b.tobytes() for a, b in zip(first[:4], again[:4]))


def step_word(device: Device, value: int) -> Any:
    return to_device(np.array(value, np.int64), device)


P = 0.25


@pytest.mark.parametrize("mask_type", ["no_mask", "causal", "padding_causal"])
def test_dropout(device: Device, mask_type: str) -> None:
    """With V = 1 the output is the dropped weights; the backward must have dropped the same ones."""
    q, k, _, dout = operands(64, 64, groups=2)
    q = (q.astype(np.float32) * 0.25).astype(BF16)  # small scores: no weight is rounded to 0
    v = np.ascontiguousarray(np.broadcast_to(np.eye(64)[:, None], (2, 64, 2, 64))).astype(BF16)
    mask = masks("right", 2, 4, 64, 64) if mask_type == "padding_causal" else None
    seen = np.broadcast_to(visible(64, 64, mask_type, mask=mask), (2, 4, 64, 64))
    qd, kd, vd, dd = (to_device(x, device) for x in (q, k, v, dout))
    md = None if mask is None else to_device(mask, device)
    record = record_of(qd, kd, vd, mask_type=mask_type, mask=md, dropout=P)
    assert unsupported(record) is None
    drawn = {}
    for step, ordinal, key in ((0, 0, 5), (0, 1, 5), (1, 0, 5), (0, 0, 6)):
        word = step_word(device, step)
        out, saved = attention(record, qd, kd, vd, mask=md, key=key, ordinal=ordinal, step=word)
        word[...] = 99  # the step advances before the backward runs
        grads = attention_vjp(record, dd, qd, kd, vd, out, saved)[:3]
        kept = to_numpy(out).transpose(0, 2, 1, 3) != 0
        drawn[step, ordinal, key] = kept
        assert not (kept & ~seen).any()
        share = kept[seen].mean()
        assert abs(share - (1 - P)) < 5 * np.sqrt(P * (1 - P) / seen.sum())
        found = (to_numpy(out), *(to_numpy(g) for g in grads))
        compare(found, expected(q, k, v, dout, seen, keep=kept / (1 - P)))
    first = drawn.pop((0, 0, 5))
    for other in drawn.values():
        agree = (first == other)[seen].mean()  # of independent draws: (1 - p)^2 + p^2
        assert abs(agree - ((1 - P) ** 2 + P**2)) < 0.03
    again, _ = attention(record, qd, kd, vd, mask=md, key=5, ordinal=0, step=step_word(device, 0))
    assert ((to_numpy(again).transpose(0, 2, 1, 3) != 0) == first).all()


def test_it_names_what_does_not_fit(device: Device) -> None:
    q, k, v = (to_device(x, device) for x in operands()[:3])
    record = record_of(q, k, v, mask_type="causal", dropout=0.1)
    with pytest.raises(ArgumentError, match="what the record has"):
        attention(record, q, k, v)
    record = record_of(q, k, v, mask_type="causal")
    with pytest.raises(ArgumentError, match="strides"):
        attention(record, q.swapaxes(0, 1), k, v)
    f32 = to_device(np.zeros((2, 77, 4, 64), np.float32), device)
    record = record_of(f32, f32, f32)
    assert unsupported(record) == "cuDNN attends in bfloat16 and float16, not in float32"
    with pytest.raises(KernelError, match="not in float32"):
        attention(record, f32, f32, f32)
