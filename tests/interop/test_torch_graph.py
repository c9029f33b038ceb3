"""Linear in torch's graph: what is saved, freed and recomputed, when a step ends, second derivatives, compiling."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp.errors import GradientError
from tests.devices import need_oracle
from tests.interop.common import DELAYED, MX, RECIPES, SR, same

torch = need_oracle("torch")
pytestmark = pytest.mark.oracle
bridge = nf.interop.torch


def layer(*sizes: int, **options: Any) -> Any:
    torch.manual_seed(0)
    return bridge.Linear(*(sizes or (64, 32)), **options)


def test_retained_graphs_and_freed_ones() -> None:
    ours = layer(recipe=MX)
    x = torch.randn(16, 64, requires_grad=True)
    y = ours(x)
    y.sum().backward(retain_graph=True)
    first = x.grad.clone()
    y.sum().backward()
    assert torch.equal(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_torch_owns_what_backward_needs() -> None:
    """Saved operands are tensors that torch packs, frees and offloads; nothing of full precision is among them."""
    ours = layer(recipe=MX)
    packed: list[Any] = []

    def pack(t: Any) -> Any:
        packed.append((t.dtype, tuple(t.shape)))
        return t.clone()

    x = torch.randn(32, 64, requires_grad=True)
    expected = torch.autograd.grad(ours(x).sum(), x)[0]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = ours(x)
    assert packed and all(dtype is torch.uint8 for dtype, _ in packed)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], expected)
    kept = weakref.ref(ours(x).grad_fn)
    gc.disable()
    try:
        assert kept() is None  # no cycle holds a graph
    finally:
        gc.enable()


def test_operands_that_were_offloaded_own_no_padding() -> None:
    from nvfp.interop._torch_memory import put_together, take_apart
    from nvfp.kernels.operand import Operand, OperandPair

    codes = np.zeros((8, 64), np.uint8)[:4, :32]
    column = Operand(codes, np.zeros((4, 1), np.uint8), None, nf.mxfp8, (4, 32), 1, padded_rows=8)
    tensors, template = take_apart([OperandPair(None, column), "plan"])
    same_place, plan = put_together(template, tensors)
    assert plan == "plan" and same_place.col.padded_rows == 8 and same_place.col.codes.strides == (64, 1)
    assert same_place.col.codes.ctypes.data == codes.ctypes.data
    elsewhere, _ = put_together(template, [t.clone() for t in tensors])
    assert elsewhere.col.padded_rows == 0 and elsewhere.col.format is nf.mxfp8


def test_weights_that_are_computed() -> None:
    ours = layer(recipe=MX)
    x, factor = torch.randn(8, 64), torch.tensor(2.0, requires_grad=True)
    y = torch.func.functional_call(ours, {"weight": ours.weight.detach() * factor}, (x,))
    y.sum().backward()
    assert factor.grad.isfinite() and ours.weight.grad is None
    with torch.no_grad():
        ours.weight.mul_(2)
    assert same(y, ours(x))


def test_second_derivatives_raise_by_name() -> None:
    ours = layer(recipe=MX)
    x = torch.randn(4, 64, requires_grad=True)
    for dy in (torch.ones(4, 32), torch.ones(4, 32, requires_grad=True)):
        (g,) = torch.autograd.grad(ours(x), x, dy, create_graph=True)
        with pytest.raises(GradientError, match=r"\[torch\.Linear\] expected first derivatives"):
            (g**2).sum().backward()
    (g,) = torch.autograd.grad((ours(x) ** 2).sum(), x, create_graph=True)
    with pytest.raises(GradientError):
        torch.autograd.grad(g.sum(), ours.weight)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("recipe", ["delayed", "nvfp4", "block"])
def test_checkpointing_changes_no_bit(recipe: str, reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    def model() -> Any:
        torch.manual_seed(1)
        return torch.nn.Sequential(
            bridge.Linear(64, 32, recipe=RECIPES[recipe]),
            torch.nn.GELU(),
            bridge.Linear(32, 64, recipe=RECIPES[recipe]),
        )

    plain, saved = model(), model()
    for _ in range(3):
        x = torch.randn(32, 64, requires_grad=True)
        a, b = plain(x), checkpoint(saved, x, use_reentrant=reentrant)
        ga, gb = _gradient(a, x), _gradient(b, x)
        assert same(a, b) and same(ga, gb)
    for p, q in zip(plain.parameters(), saved.parameters(), strict=True):
        assert same(p.grad, q.grad)
    for (name, p), q in zip(plain.named_buffers(), saved.buffers(), strict=True):
        assert torch.equal(p, q), name


def _gradient(y: Any, x: Any) -> Any:
    x.grad = None
    (y * torch.linspace(-1, 1, y.shape[-1])).sum().backward()
    return x.grad


def test_a_shared_layer_steps_once_per_backward() -> None:
    ours = layer(64, 64, recipe=DELAYED)
    x = torch.randn(16, 64)
    (ours(x).sum() + ours(ours(x)).sum()).backward()
    history = ours.scaling_forward_amax_history
    assert history.count_nonzero() == 2 and history[-1, 0] >= x.abs().max()
    assert ours.scaling_backward_amax_history.count_nonzero() == 1


def test_a_failed_backward_leaves_no_half_of_a_step() -> None:
    ours = layer(recipe=DELAYED)
    x = torch.randn(16, 64, requires_grad=True)

    class Boom(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, dy: Any) -> Any:
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        ours(Boom.apply(x)).sum().backward()
    assert ours.scaling_forward_scale.tolist() == [1, 1]
    ours(x).sum().backward()
    assert ours.scaling_backward_amax_history.count_nonzero() == 1 and ours.scaling_forward_scale[0] != 1


def test_the_amax_of_a_failed_backward_does_not_survive_a_file() -> None:
    ours, fresh = layer(recipe=DELAYED), layer(recipe=DELAYED)
    x = torch.randn(16, 64, requires_grad=True)
    x.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ours(x).sum().backward()
    fresh.load_state_dict(ours.state_dict())
    assert not fresh.scaling_backward_amax_history.any()


@pytest.mark.parametrize("recipe", [DELAYED, SR], ids=str)
def test_a_rule_that_fails_puts_the_whole_pass_back(recipe: Any) -> None:
    """The last layer's gradient was made, then the first one's cannot be: amaxes and draws are as before."""
    model = torch.nn.Sequential(*(layer(64, 64, recipe=recipe) for _ in range(2)))
    twin = copy.deepcopy(model)
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(3))

    def fail(*_: Any) -> Any:
        raise ValueError("no")

    y = model(x)
    first = y.grad_fn.next_functions[0][0]  # the node of the layer below
    first.rule = fail
    with pytest.raises(ValueError, match="no"):
        y.sum().backward()
    history = model[1]._buffers.get("scaling_backward_amax_history")
    assert history is None or not history.any()
    model.zero_grad()
    for net in (model, twin):
        z = net(x)
        (z * z).sum().backward()
    assert recipe is DELAYED or torch.equal(model[1].weight.grad, twin[1].weight.grad)


@pytest.mark.parametrize("what", ["weight", "x"])
@pytest.mark.parametrize("shape", [(16, 64), (2, 8, 64)], ids=str)
def test_what_backward_reads_in_high_precision_is_not_written(what: str, shape: tuple[int, ...]) -> None:
    """dgrad reads the weight itself, wgrad the input: torch says so when they are written in between."""
    results = []
    for override in ("high_precision", "dequantized"):  # the latter has copies of its own
        for written in (False, True):
            ours = layer(recipe=nf.recipes.MXFP8BlockScaling(backward_override=override))  # type: ignore[arg-type]
            x = torch.randn(*shape, generator=torch.Generator().manual_seed(1), requires_grad=True)
            y = ours(x)
            if written:
                with torch.no_grad():
                    (x if what == "x" else ours.weight).mul_(2)
            if written and override == "high_precision":
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    y.sum().backward()
                continue
            y.sum().backward()
            assert x.grad.shape == shape
            results.append((x.grad, ours.weight.grad))
    assert len(results) == 3 and all(torch.equal(a, b) for a, b in zip(*results[1:], strict=True))


def test_frozen_layers_below_the_graph_step_too() -> None:
    ours = layer(recipe=DELAYED).requires_grad_(False)
    x = torch.randn(16, 64)
    ours(x)
    ours(2 * x)
    assert ours.scaling_forward_scale[0] == torch.tensor(448.0) / x.abs().max()
    ours.eval()(4 * x)
    assert ours.scaling_forward_amax_history.max() == 2 * x.abs().max()


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # loading inductor
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's tracer looks at tensors after a break
def test_compiled_models_break_the_graph_here() -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), layer(recipe=MX), torch.nn.Tanh())
    x = torch.randn(4, 8, requires_grad=True)
    compiled = torch.compile(model, backend="eager")
    y = compiled(x)
    y.sum().backward()
    found, x.grad = x.grad, None
    z = model(x)
    z.sum().backward()
    assert torch.equal(y, z) and torch.equal(found, x.grad)
