"""convert_model and report: what becomes narrow, what stays, what torch's own modules read past forward."""

from __future__ import annotations

from typing import Any

import pytest

import nvfp as nf
from nvfp.errors import ArgumentError, DTypeError
from tests.devices import need_oracle
from tests.interop.common import DELAYED, MX, same

torch = need_oracle("torch")
pytestmark = pytest.mark.oracle
bridge = nf.interop.torch


def model() -> Any:
    torch.manual_seed(0)
    block = torch.nn.ModuleDict({"up": torch.nn.Linear(32, 64), "down": torch.nn.Linear(64, 32)})
    return torch.nn.ModuleDict({"block": block, "head": torch.nn.Linear(32, 8), "norm": torch.nn.LayerNorm(32)})


def test_in_place_with_the_same_objects() -> None:
    net = model()
    parameters, linear = list(net.parameters()), net["block"]["up"]
    calls: list[Any] = []
    linear.register_forward_hook(lambda *_: calls.append(1))
    assert bridge.convert_model(net, MX) is net
    assert all(a is b for a, b in zip(parameters, net.parameters(), strict=True)) and net["block"]["up"] is linear
    assert isinstance(linear, bridge.Linear) and linear.recipe is MX
    linear(torch.ones(2, 32))
    assert calls == [1]
    expected = bridge.Linear(32, 64, recipe=MX)
    expected.load_state_dict(linear.state_dict())
    x = torch.randn(4, 32)
    assert torch.equal(linear(x), expected(x))


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        ([], set()),
        (["head"], {"head"}),
        (["block"], {"block.up", "block.down"}),
        (["*.up", "he?d"], {"block.up", "head"}),
    ],
)
def test_keep(keep: list[str], kept: set[str]) -> None:
    found = bridge.report(bridge.convert_model(model(), MX, keep=keep))
    assert set(found.kept) == kept and set(found.converted) == {"block.up", "block.down", "head"} - kept


def test_names_decide_under_a_policy() -> None:
    """The bits of nvfp's own layers under the same policy, in training, and after another policy."""
    torch.manual_seed(0)
    policies = [
        nf.recipes.Policy({"1": None, "0:grad_output": nf.recipes.Float8CurrentScaling()}, default=MX),
        nf.recipes.Policy({"0": MX}, default=DELAYED),
    ]
    ours = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 16))
    theirs = nf.nn.Sequential(nf.nn.Linear(32, 32, device="cpu"), nf.nn.Linear(32, 16, device="cpu"))
    theirs.load_state_dict({k: v.detach().numpy() for k, v in ours.state_dict().items()})
    for number, policy in enumerate(policies):
        assert bridge.convert_model(ours, policy) is ours
        assert bridge.report(ours).kept == (("1",) if number == 0 else ())
        for seed in (1, 2):
            x = torch.randn(4, 32, generator=torch.Generator().manual_seed(seed))
            a, b = x.clone().requires_grad_(), nf.asarray(x.numpy(), device="cpu", requires_grad=True)
            y = ours(a)
            (y * y).sum().backward()
            with nf.autocast(recipe=policy):
                z = theirs(b)
            (z * z).sum().backward()
            assert same(y, z) and same(a.grad, b.grad), (number, seed)
    assert "scaling_forward_scale" in ours[1].state_dict() and "scaling_forward_scale" not in ours[0].state_dict()


def test_a_policy_that_cannot_be_changes_nothing() -> None:
    net = model()
    wide = nf.recipes.Float8BlockScaling(x_block_scaling_dim=2, w_block_scaling_dim=1)
    policy = nf.recipes.Policy({"head:weight": nf.recipes.Float8BlockScaling(), "head": wide}, default=MX)
    with pytest.raises(ArgumentError, match="128 x 128"):
        bridge.convert_model(net, policy)
    assert all(type(m) is not bridge.Linear for m in net.modules())


def test_report() -> None:
    text = str(bridge.report(bridge.convert_model(model(), DELAYED, keep=["head"])))
    assert "block.up        64 x 32      DelayedScaling" in text and "torch.nn.Linear" in text
    assert "2 of 3 linear layers, 94.1% of their weights" in text
    assert str(bridge.report(torch.nn.ReLU())) == "0 of 0 linear layers, none of their weights"


def test_a_model_that_is_one_layer_and_layers_used_twice() -> None:
    alone = torch.nn.Linear(8, 8)
    assert bridge.convert_model(alone, MX) is alone and isinstance(alone, bridge.Linear)
    shared = torch.nn.Linear(8, 8)
    net = torch.nn.Sequential(shared, torch.nn.ReLU(), shared)
    bridge.convert_model(net, MX)
    assert net[0] is net[2] and isinstance(net[0], bridge.Linear)


def test_tied_weights_stay_tied() -> None:
    net = torch.nn.ModuleDict({"embed": torch.nn.Embedding(16, 8), "head": torch.nn.Linear(8, 16, bias=False)})
    net["head"].weight = net["embed"].weight
    bridge.convert_model(net, MX)
    assert net["head"].weight is net["embed"].weight


def test_converting_again_changes_the_recipe() -> None:
    net = bridge.convert_model(model(), MX)
    bridge.convert_model(net, DELAYED, keep=["head"])
    assert net["block"]["up"].recipe is DELAYED and net["head"].recipe is MX


def test_what_it_refuses_changes_nothing() -> None:
    net = model()
    for keep in ("head", ["haed"], [1], 5, ["head", "blok.*"]):
        with pytest.raises(ArgumentError, match=r"\[convert_model\]"):
            bridge.convert_model(net, MX, keep=keep)
    for bad in ("mxfp8", nf.nvfp4):
        with pytest.raises(DTypeError, match="recipe=a Recipe"):
            bridge.convert_model(net, bad)
    for call in (bridge.convert_model, bridge.report):
        with pytest.raises(DTypeError, match=r"torch\.nn\.Module"):
            call([net])
    assert not bridge.report(net).converted


def test_torchs_attention_keeps_its_projection() -> None:
    net = bridge.convert_model(torch.nn.MultiheadAttention(32, 2, batch_first=True), MX)
    (row,) = bridge.report(net).rows
    assert row.recipe is None and "subclass of torch.nn.Linear" in row.reason
    x = torch.randn(2, 4, 32)
    assert net(x, x, x)[0].shape == x.shape


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows with every call of a bridge's forward (a hook would switch torch's fast path off by itself)."""
    calls: list[Any] = []
    real = bridge.Linear.forward
    monkeypatch.setattr(bridge.Linear, "forward", lambda self, x: (calls.append(1), real(self, x))[1])
    return calls


@pytest.mark.parametrize("padded", [False, True])
def test_torchs_fast_path_does_not_pass_them_by(padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In evaluation torch's encoder would read the weights itself and compute in full precision."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
    net = bridge.convert_model(torch.nn.TransformerEncoder(layer, 2), MX).eval()
    x = torch.randn(2, 5, 32)
    mask = torch.tensor([[False] * 5, [False, False, False, True, True]]) if padded else None
    calls = _counted(monkeypatch)
    with torch.no_grad():
        found = net(x, src_key_padding_mask=mask)
    assert found.shape == x.shape and len(calls) == 4
