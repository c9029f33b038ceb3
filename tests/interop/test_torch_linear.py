"""Linear in torch: the bits of nf.nn.Linear, torch's names and manners."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import DeviceError, DTypeError, ShapeError
from tests.devices import need_oracle
from tests.interop.common import DELAYED, MX, RECIPES, SR, place, same, values

torch = need_oracle("torch")
pytestmark = pytest.mark.oracle
bridge = nf.interop.torch


def layer(*sizes: int, **options: Any) -> Any:
    torch.manual_seed(0)
    return bridge.Linear(*(sizes or (64, 32)), **options)


def twin(linear: Any) -> Any:
    """nf.nn.Linear with the parameters (and rounding key) of a bridge's."""
    from nvfp.nn._gemm_site import RoundingState

    made = nf.nn.Linear(linear.in_features, linear.out_features, bias=linear.bias is not None)
    made.to(dtype=str(linear.weight.dtype).removeprefix("torch."))
    made.load_state_dict({name: nf.from_dlpack(p.detach()) for name, p in linear.named_parameters()})
    if hasattr(linear, "scaling_rounding"):
        made._site.rounding = RoundingState(nf.random.default_rng(0))
        key = int(np.int64(linear.scaling_rounding[0].item()).view(np.uint64))
        made._site.rounding.hold(key, nf.zeros((), dtype=nf.int64).raw)
    return made


MIXES = {
    "high_precision": nf.recipes.MXFP8BlockScaling(backward_override="high_precision"),
    "dequantized": nf.recipes.Float8BlockScaling(backward_override="dequantized"),
    "mixed": nf.recipes.CustomRecipe(nf.recipes.factories.mxfp8_fwd_nvfp4_bwd_factory),
    "delayed_dense": nf.recipes.Policy({"*:grad_output": None}, default=DELAYED),
}


@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")])
@pytest.mark.parametrize("recipe", [*RECIPES, *MIXES])
def test_bits_of_nvfps_own_layer(recipe: str, dtypes: tuple[str, str], device: Any) -> None:
    where = place(torch, device)
    ours = layer(48, 32, dtype=getattr(torch, dtypes[1]), device=where, recipe=(RECIPES | MIXES)[recipe])
    theirs = twin(ours)
    for step in range(3):
        x = (torch.randn(3, 16, 48, device=where) * 2**step).to(getattr(torch, dtypes[0])).requires_grad_()
        y = ours(x)
        dy = torch.randn(y.shape, device=where).to(y.dtype)
        y.backward(dy)
        a = nf.asarray(nf.from_dlpack(x.detach()), requires_grad=True)
        with nf.autocast(enabled=True, recipe=(RECIPES | MIXES)[recipe]):
            b = theirs(a)
        b.backward(nf.from_dlpack(dy))
        assert same(y, b) and same(x.grad, a.grad)
        assert same(ours.weight.grad, theirs.weight.grad) and same(ours.bias.grad, theirs.bias.grad)
        ours.zero_grad()
        theirs.zero_grad()
    state = {k.replace("scaling_", "scaling.").replace("ward_", "ward."): v for k, v in ours.state_dict().items()}
    for name, value in theirs.state_dict().items():
        if "rounding" not in name and not name.endswith(("fp8_max", "version")):
            assert same(state[name], value), name


def test_names_and_initial_values_are_torchs() -> None:
    torch.manual_seed(3)
    plain = torch.nn.Linear(5, 7)
    torch.manual_seed(3)
    ours = bridge.Linear(5, 7, recipe=MX)
    assert isinstance(ours, torch.nn.Linear) and list(ours.state_dict()) == ["weight", "bias"]
    assert torch.equal(plain.weight, ours.weight) and torch.equal(plain.bias, ours.bias)
    assert "in_features=5, out_features=7, bias=True, recipe=MXFP8BlockScaling" in repr(ours)
    assert str(bridge.Linear(4, 4).recipe) == str(nf.recipes.DelayedScaling())  # what autocast takes on the CPU
    assert bridge.Linear(4, 4, False, dtype=torch.bfloat16, recipe=MX).weight.dtype is torch.bfloat16


@pytest.mark.parametrize("shape", [(32,), (1, 32), (0, 32), (2, 3, 5, 32), (7, 33)])
def test_shapes(shape: tuple[int, ...], device: Any) -> None:
    where = place(torch, device)
    ours = layer(shape[-1], 19, device=where, recipe=MX)
    x = torch.randn(shape, device=where).requires_grad_()
    y = ours(x)
    y.sum().backward()  # the gradient is one value, expanded
    assert y.shape == (*shape[:-1], 19) and x.grad.shape == shape and ours.weight.grad.shape == (19, shape[-1])
    assert torch.allclose(ours.bias.grad, torch.full((19,), float(np.prod(shape[:-1])), device=where))


def test_strided_inputs_and_gradients(device: Any) -> None:
    where = place(torch, device)
    ours = layer(32, 32, device=where, recipe=MX)
    base = torch.randn(32, 16, device=where)
    for x in (base.T, torch.randn(16, 64, device=where)[:, ::2], base.T.unsqueeze(0).expand(2, -1, -1)):
        a, b = x.detach().requires_grad_(), x.detach().contiguous().requires_grad_()
        dy = torch.randn(*x.shape[:-1], 32, device=where)
        ours(a).backward(dy.transpose(0, -1).contiguous().transpose(0, -1))
        ours(b).backward(dy)
        assert same(a.grad, b.grad)


@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True), (False,) * 3])
@pytest.mark.parametrize("recipe", ["delayed", "block", "nvfp4"])
def test_only_wanted_gradients(needs: tuple[bool, ...], recipe: str) -> None:
    ours, whole = (layer(recipe=RECIPES[recipe]) for _ in range(2))
    x = torch.randn(16, 64)
    x1, x2 = x.clone().requires_grad_(needs[0]), x.clone().requires_grad_()
    ours.weight.requires_grad_(needs[1])
    ours.bias.requires_grad_(needs[2])
    y, expected = ours(x1), whole(x2)
    assert same(y, expected) and y.requires_grad == any(needs)
    expected.sum().backward()
    if any(needs):
        y.sum().backward()
    for a, b, needed in zip((x1, ours.weight, ours.bias), (x2, whole.weight, whole.bias), needs, strict=True):
        assert same(a.grad, b.grad) if needed else a.grad is None


def test_without_bias_and_float16() -> None:
    ours = layer(32, 8, False, dtype=torch.float16, recipe=MX)
    y = ours(torch.randn(4, 32, dtype=torch.float16))
    y.float().sum().backward()
    assert ours.bias is None and y.dtype is torch.float16 and ours.weight.grad.dtype is torch.float16


@pytest.mark.parametrize("recipe", ["delayed", "mxfp8"])
def test_torch_autocast(recipe: str, device: Any) -> None:
    where = place(torch, device)
    ours, manual = (layer(device=where, recipe=RECIPES[recipe]) for _ in range(2))
    x = torch.randn(16, 64, device=where, requires_grad=True)
    with torch.autocast(where.type, dtype=torch.bfloat16):
        y = ours(x)
    z = manual(x.detach().bfloat16())
    y.float().sum().backward()
    z.float().sum().backward()
    assert y.dtype is torch.bfloat16 and x.grad.dtype is torch.float32 and ours.weight.grad.dtype is torch.float32
    assert same(y, z) and same(ours.weight.grad, manual.weight.grad)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_evaluation_records_nothing(mode: str) -> None:
    ours = layer(recipe=DELAYED)
    x = torch.randn(16, 64)
    ours(x).sum().backward()
    before = {name: b.clone() for name, b in ours.named_buffers()}
    ours.eval()
    with getattr(torch, mode)():
        y = ours(x)
        made_inside = bridge.Linear(64, 32, recipe=DELAYED)
        assert made_inside(x).shape == (16, 32)
    assert not y.requires_grad and all(torch.equal(b, before[name]) for name, b in ours.named_buffers())
    assert same(ours(x), y)


@pytest.fixture
def quantized(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one element whenever a weight is quantized."""
    from nvfp.interop import _torch_site

    seen: list[int] = []
    real = _torch_site.quantize_weight

    def counting(*args: Any, **kwargs: Any) -> Any:
        seen.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(_torch_site, "quantize_weight", counting)
    return seen


def test_weights_are_quantized_again_when_they_change(quantized: list[int]) -> None:
    ours = layer(recipe=MX).eval()
    x = torch.randn(8, 64)
    first = ours(x)
    ours(x), ours(x)
    assert len(quantized) == 1
    with torch.no_grad():
        ours.weight.mul_(2)
    assert not torch.equal(ours(x), first) and len(quantized) == 2
    ours.weight = torch.nn.Parameter(ours.weight.detach().clone())  # another tensor
    ours(x)
    ours.load_state_dict(ours.state_dict())
    ours(x)
    assert len(quantized) == 4
    torch.optim.SGD([ours.weight], lr=0.1).step()
    ours(x).sum().backward()
    torch.optim.SGD([ours.weight], lr=0.1).step()
    ours(x)
    assert len(quantized) == 5


def test_weights_written_past_torchs_counter_are_read_after_backward_and_mode_changes() -> None:
    ours, fresh = layer(recipe=MX), layer(recipe=MX)
    x = torch.randn(8, 64)
    ours(x).sum().backward()
    ours.weight.data.mul_(3)  # counts no version
    fresh.weight.data.mul_(3)
    assert same(ours(x), fresh(x))
    ours.weight.data.mul_(2)
    fresh.weight.data.mul_(2)
    assert same(ours.eval()(x), fresh.eval()(x))


def test_stochastic_rounding_differs_from_step_to_step() -> None:
    ours = layer(recipe=SR)
    x = torch.randn(32, 64, requires_grad=True)
    dy = torch.randn(32, 32)
    found = [torch.autograd.grad(ours(x), x, dy)[0] for _ in range(2)]
    assert not torch.equal(*found) and ours.scaling_rounding[1] == 2


def test_what_it_refuses() -> None:
    ours = layer(recipe=MX)
    for bad in (torch.ones(2, 64, dtype=torch.float64), torch.ones(2, 64, dtype=torch.int32), np.ones((2, 64), "f4")):
        with pytest.raises(DTypeError, match=r"\[torch\.Linear\]"):
            ours(bad)
    with pytest.raises(ShapeError, match=r"\[linear\]"):
        ours(torch.ones(2, 63))
    with pytest.raises(DTypeError, match=r"\[torch\.Linear\] expected recipe=a Recipe"):
        bridge.Linear(4, 4, recipe="mxfp8")
    with pytest.raises(DeviceError, match="on cpu or cuda, got meta"):
        ours(torch.ones(2, 64, device="meta"))


def test_results_are_ordinary_tensors() -> None:
    ours = layer(recipe=MX)
    x = torch.randn(4, 64)
    y = ours(x)
    y.add_(1).relu_().sum().backward()  # in place on the result
    with torch.no_grad():
        z = ours(x)
        z += 1
    assert np.isfinite(values(z)).all() and z.is_contiguous()


# The weight was made on another stream than the one its gradient comes from; torch may say so.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node.s stream does not match:UserWarning")
@pytest.mark.gpu
def test_torchs_current_stream() -> None:
    """A result is right on the stream that torch is on, with the device busy in between."""
    where = place(torch, nf.Device("cuda"))
    ours = layer(1024, 1024, device=where, recipe=DELAYED)
    x = torch.randn(1024, 1024, device=where)
    expected = ours.eval()(x).detach()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        late = torch.zeros_like(x)
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        late.requires_grad_()
        y = ours(late)
        y.sum().backward()
    side.synchronize()
    assert torch.equal(y, expected) and late.grad.isfinite().all() and late.grad.abs().sum() > 0
