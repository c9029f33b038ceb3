"""`CustomRecipe`, hybrid tensors and policies by name."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import nvfp as nf
from nvfp import recipes
from nvfp.autograd.recompute import checkpoint
from nvfp.errors import ArgumentError, DTypeError
from nvfp.recipes import CustomRecipe, HybridQuantizer, IdentityQuantizer, Policy, QuantizerRole, factories as ready
from nvfp.recipes.plan import DENSE

MX, CURRENT, DELAYED = recipes.MXFP8BlockScaling(), recipes.Float8CurrentScaling(), recipes.DelayedScaling()
NV = recipes.NVFP4BlockScaling()


def model(rng: int = 0) -> nf.nn.Module:
    """Two GEMMs in a layer behind a Linear, two levels deep."""
    made = nf.random.default_rng(rng)
    inner = nf.nn.Sequential(nf.nn.Linear(8, 16, rng=made), nf.nn.LayerNormMLP(16, 8, rng=made))
    return nf.nn.Sequential(inner, nf.nn.Linear(16, 4, bias=False, rng=made))


def roles_seen(context: Any, call: Any) -> list[QuantizerRole]:
    seen: list[QuantizerRole] = []

    def factory(role: QuantizerRole) -> Any:
        seen.append(role)
        return ready.mxfp8_factory(role)

    with nf.autocast(recipe=CustomRecipe(factory), **context):
        for _ in range(2):
            call(nf.ones((3, 8)))
    return seen


def test_the_factory_is_asked_once_for_each_role_by_name(device: Any) -> None:
    net = model()
    seen = roles_seen({}, net)
    assert net.gemm_names() == ["0.0", "0.1.fc1", "0.1.fc2", "1"]
    wanted = [(name, kind) for name in net.gemm_names() for kind in ("input", "weight", "grad_output")]
    assert [(r.name, r.tensor_type) for r in seen] == wanted
    assert {r.module_type for r in seen} == {"linear"}


@dataclass
class Answer:
    """Called like a function; equality takes its hash away."""

    value: Any

    def __call__(self, argument: Any) -> Any:
        return nf.max(argument, axis=0) if self.value is None else self.value


@pytest.mark.parametrize(
    "recipe",
    [
        CustomRecipe(Answer(nf.mxfp8)),
        Policy({"0": CustomRecipe(Answer(nf.mxfp8))}, default=MX),
        recipes.DelayedScaling(amax_history_len=2, amax_compute_algo=Answer(None)),
    ],
    ids=("custom", "policy", "delayed"),
)
def test_functions_without_a_hash(device: Any, recipe: recipes.Recipe) -> None:
    net = model()
    for enabled in (True, False):
        with nf.autocast(enabled, recipe, calibrating=True):
            y = net(nf.ones((3, 8)))
        y.sum().backward()
    assert recipe != CustomRecipe(Answer(nf.nvfp4))


def test_names_are_those_of_the_outermost_module_called(device: Any) -> None:
    net = model()
    assert [r.name for r in roles_seen({}, lambda x: getattr(net, "0")(x))][::3] == ["0", "1.fc1", "1.fc2"]

    class Owner(nf.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net
            self.loose = [nf.nn.Linear(8, 8)]  # in a list: no registered module

        def forward(self, x: nf.Array) -> nf.Array:
            out: nf.Array = self.body(self.loose[0](x))
            return out

    assert [r.name for r in roles_seen({}, Owner())][::3] == ["", "body.0.0", "body.0.1.fc1", "body.0.1.fc2", "body.1"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [(None, "a TensorPlan, a quantized dtype or a recipe"), ("mxfp8", "a TensorPlan, a quantized dtype"),
     (DELAYED.linear_plan().x, "a rule for delayed scaling")],
    ids=["None", "text", "delayed"],
)  # fmt: skip
def test_answers_that_are_refused(answer: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=rf"\[CustomRecipe\] expected {words}"):
        CustomRecipe(lambda role: answer).linear_plan()


def test_arguments_that_are_refused() -> None:
    with pytest.raises(ArgumentError, match="qfactory as a function"):
        CustomRecipe("mxfp8")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="quantization_alignment as an int"):
        CustomRecipe(ready.mxfp8_factory, quantization_alignment=0)
    with pytest.raises(ArgumentError, match="columnwise_source"):
        HybridQuantizer(nf.mxfp8, nf.nvfp4, "row")  # type: ignore[arg-type]
    two = {"input": DELAYED, "weight": recipes.DelayedScaling(margin=1), "grad_output": MX}
    with pytest.raises(ArgumentError, match="one rule for delayed scaling in a layer"):
        CustomRecipe(lambda role: two[role.tensor_type]).linear_plan()


def test_delayed_state_for_one_tensor(device: Any) -> None:
    """Only the tensor that asked for it has a history; the others have none and keep their scale of 1."""
    made: dict[str, Any] = {"input": nf.mxfp8, "weight": DELAYED, "grad_output": IdentityQuantizer()}
    layer = nf.nn.Linear(32, 8, rng=nf.random.default_rng(0))
    x = nf.ones((4, 32), dtype=nf.float32)
    x.requires_grad = True
    recipe = CustomRecipe(lambda role: made[role.tensor_type])
    for _ in range(2):
        with nf.autocast(recipe=recipe):
            y = layer(x)
        y.sum().backward()
    state = {k: np.asarray(v) for k, v in layer.state_dict().items()}
    amax = np.abs(state["weight"]).max()
    assert state["scaling.forward.scale"].tolist() == [1, np.float32(448) / amax]
    assert not state["scaling.forward.amax_history"][:, 0].any() and not state["scaling.backward.amax_history"].any()


def test_backward_override_of_a_custom_recipe() -> None:
    plan = CustomRecipe(ready.nvfp4_factory, backward_override="dequantized").linear_plan()
    assert plan.tensors == recipes.NVFP4BlockScaling(backward_override="dequantized").linear_plan().tensors
    assert plan.x.side("col").source == "row" and plan.dy == IdentityQuantizer()


POLICY = Policy(
    {"0.0": None, "*.fc2": MX, "*.fc1:weight": None, "*.fc1:grad_output": CURRENT, "1": NV}, default=CURRENT
)


def test_a_policy_by_name_and_tensor() -> None:
    table = POLICY.table(model())
    assert table["0.0"] == DENSE and table["0.1.fc2"] == MX.linear_plan() and table["1"] == NV.linear_plan()
    plan, base = table["0.1.fc1"], CURRENT.linear_plan()
    assert (plan.x, plan.w, plan.dy) == (base.x, IdentityQuantizer(), base.dy)
    assert plan.fast_fprop == base.fast_fprop
    assert POLICY.linear_plan("0.1.fc1") is plan and POLICY.linear_plan() == base


def test_the_first_pattern_decides_and_stands_for_all_below() -> None:
    rules: dict[str, recipes.Recipe | None] = {"layers.1": None, "layers.1.fc1": MX, "layers.*": NV}
    policy = Policy(rules, default=CURRENT)
    assert policy.linear_plan("layers.1.fc1").dense
    assert policy.linear_plan("layers.10.fc1") == NV.linear_plan()
    assert policy.linear_plan("head") == CURRENT.linear_plan()
    assert Policy({"a": None}).linear_plan("b").dense


@pytest.mark.parametrize("tensor", ["input", "grad_output"])
def test_a_rotation_needs_both_operands(tensor: str) -> None:
    plan = Policy({f"*:{tensor}": MX}, default=NV).linear_plan("a")
    assert (plan.x.turned, plan.dy.turned) == (None, None)
    assert plan.dy.stochastic == (tensor == "input")
    assert Policy({"*:weight": MX}, default=NV).linear_plan("a").x.turned == "rht16"


def test_delayed_rules_come_with_their_tensors() -> None:
    assert Policy({"*:weight": DELAYED}, default=MX).linear_plan("a").delayed is not None
    assert (
        Policy({"*:input": MX, "*:weight": MX, "*:grad_output": MX}, default=DELAYED).linear_plan("a").delayed is None
    )
    with pytest.raises(ArgumentError, match=r"\[Policy\] expected one rule"):
        Policy({"*:weight": recipes.DelayedScaling(margin=2)}, default=DELAYED).linear_plan("a")


def test_a_model_under_a_policy(device: Any) -> None:
    """Each layer has the bits that it has alone under its recipe; one in high precision takes float32 weights."""
    net, x = model(), nf.random.default_rng(1).normal(size=(4, 8), dtype=nf.bfloat16)
    policy = {"0.0": None, "*.fc1": MX, "*.fc2": DELAYED}
    with nf.autocast(recipe=CURRENT, policy=policy):
        y = net(x)
    first, mlp = (getattr(getattr(net, "0"), name) for name in ("0", "1"))
    with nf.autocast(recipe=CustomRecipe(ready.high_precision_factory)):
        h = first(x)
    with nf.autocast(policy={"fc1": MX, "fc2": recipes.DelayedScaling(amax_history_len=7)}, recipe=CURRENT):
        fresh = nf.nn.LayerNormMLP(16, 8)
        fresh.load_state_dict({k: v for k, v in mlp.state_dict().items() if "scaling" not in k})
        h = fresh(h)
    with nf.autocast(recipe=CURRENT):
        wanted = getattr(net, "1")(h)
    assert np.array_equal(np.asarray(y), np.asarray(wanted))
    assert {k.rpartition(".")[0] for k in net.state_dict() if "scaling" in k} == {
        "0.1.scaling", "0.1.scaling.fc2.forward", "0.1.scaling.fc2.backward"
    }  # fmt: skip


def test_policies_are_records() -> None:
    same = Policy(dict(POLICY.rules), CURRENT)
    assert same == POLICY and hash(same) == hash(POLICY) and pickle.loads(pickle.dumps(POLICY)) == POLICY
    assert str(POLICY).startswith("Policy(0.0: high precision, *.fc2: MXFP8BlockScaling, *.fc1:weight: high")
    assert str(CustomRecipe(ready.mxfp8_factory)) == "CustomRecipe(mxfp8_factory)"


@pytest.mark.parametrize("rules", [{}, {"": None}, {3: None}, "head", ["head"], None], ids=repr)
def test_rules_that_are_refused(rules: Any) -> None:
    with pytest.raises(ArgumentError, match=r"\[Policy\] expected pattern -> recipe"):
        Policy(rules)


def test_more_that_is_refused() -> None:
    with pytest.raises(ArgumentError, match="one of input, weight, grad_output after the colon"):
        Policy({"head:bias": None})
    with pytest.raises(ArgumentError, match="after the colon"):
        Policy({"head:weight:input": None})
    with pytest.raises(DTypeError, match="recipes or None"):
        Policy({"head": "mxfp8"})  # type: ignore[dict-item]
    with pytest.raises(DTypeError, match="recipes or None"):
        Policy({"head": None}, default="mxfp8")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"patterns of 0\.0, 0\.1\.fc1.*\['haed'\]"):
        Policy({"haed": None, "1": None}).table(model())


def test_recomputed_layers_keep_their_names_and_state(device: Any) -> None:
    """A checkpointed layer is run again in backward under the name that it had, with the scales that it had."""

    class Net(nf.nn.Module):
        def __init__(self, again: bool) -> None:
            super().__init__()
            made = nf.random.default_rng(0)
            self.again = again
            self.a, self.b = nf.nn.LayerNormMLP(16, 24, rng=made), nf.nn.Linear(16, 16, rng=made)

        def forward(self, x: nf.Array) -> nf.Array:
            out: nf.Array = self.b(checkpoint(self.a, x) if self.again else self.a(x))
            return out

    policy = {"a.fc1": NV, "a.fc2": DELAYED, "b": recipes.MXFP8BlockScaling(backward_override="high_precision")}
    found = []
    for again in (False, True):
        net = Net(again)
        for step in range(2):
            x = nf.random.default_rng(step).normal(size=(8, 16), dtype=nf.bfloat16)
            x.requires_grad = True
            net.zero_grad()
            with nf.autocast(recipe=CURRENT, policy=policy):
                y = net(x)
            (y * y).sum().backward()
        arrays = {**net.state_dict(), "x": x.grad, **{f"{k}.grad": p.grad for k, p in net.parameters().items()}}
        found.append({k: np.asarray(v).tobytes() for k, v in arrays.items()})
    assert found[0] == found[1]
