"""Small torch models learn under every recipe as in bfloat16, also in the hands of Accelerate and Lightning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nvfp as nf
from tests.devices import need_oracle
from tests.interop.common import DELAYED, MX, RECIPES, place
from tests.tolerances import check

torch = need_oracle("torch")
pytestmark = pytest.mark.oracle
bridge = nf.interop.torch


def network(device: Any = None) -> Any:
    torch.manual_seed(0)
    made = torch.nn.Sequential(
        torch.nn.Embedding(32, 64), torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64),
        torch.nn.LayerNorm(64), torch.nn.Linear(64, 32),
    )  # fmt: skip
    return made.to(device)


def batch(step: int) -> tuple[Any, Any]:
    """A token and its successor in a fixed order."""
    x = torch.randint(32, (64,), generator=torch.Generator().manual_seed(step))
    return x, (5 * x + 3) % 32


def curve(net: Any, steps: int = 30) -> np.ndarray:
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    where = next(net.parameters()).device
    losses = []
    for step in range(steps):
        x, y = (t.to(where) for t in batch(step))
        with torch.autocast(where.type, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(net(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


@pytest.mark.parametrize("recipe", ["delayed", "mxfp8", "nvfp4"])
def test_loss_stays_near_bfloat16(recipe: str, device: Any) -> None:
    where = place(torch, device)
    expected = curve(network(where))
    found = curve(bridge.convert_model(network(where), RECIPES[recipe], keep=["5"]))
    assert expected[-1] < 0.2 * expected[0]
    check(found, expected, "torch_loss_nvfp4" if recipe == "nvfp4" else "torch_loss_fp8")


def test_accelerate() -> None:
    accelerate = need_oracle("accelerate")
    net = bridge.convert_model(network(), DELAYED)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=3e-3))
    losses = []
    for step in range(20):
        x, y = batch(step)
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    state = accelerator.get_state_dict(model)
    assert "1.scaling_forward_scale" in state and state["1.scaling_forward_scale"].dtype is torch.float32


@pytest.mark.filterwarnings("ignore")  # Lightning warns about whatever it finds here
def test_lightning(tmp_path: Any) -> None:
    lightning = need_oracle("lightning")

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = bridge.convert_model(network(), MX)
            self.losses: list[float] = []

        def training_step(self, pair: Any, index: int) -> Any:
            loss = torch.nn.functional.cross_entropy(self.net(pair[0]), pair[1])
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    module = Module()
    trainer = lightning.Trainer(
        max_steps=20, accelerator="cpu", precision="bf16-mixed", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    data = torch.utils.data.DataLoader([batch(i) for i in range(20)], batch_size=None)
    trainer.fit(module, data)
    assert module.losses[-1] < 0.8 * module.losses[0]
