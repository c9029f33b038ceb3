"""A torch model whose linear layers are nvfp's: convert, train, look, save. Needs torch (pip install 'nvfp[torch]')."""

from __future__ import annotations

import torch

import nvfp as nf
from nvfp import recipes

RECIPES = {
    "bf16": None,
    "fp8": recipes.DelayedScaling(),
    "mxfp8": recipes.MXFP8BlockScaling(),
    "nvfp4": recipes.NVFP4BlockScaling(),
}


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def make_model(symbols: int = 64, width: int = 64) -> torch.nn.Sequential:
    torch.manual_seed(0)  # equal initial values for every recipe
    return torch.nn.Sequential(
        torch.nn.Embedding(symbols, width), Block(width), Block(width), torch.nn.Linear(width, symbols)
    )


def train(model: torch.nn.Module, steps: int, device: str) -> list[float]:
    """Learn the successor of a symbol; return the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        symbols = torch.randint(64, (128,), generator=generator)
        x, y = symbols.to(device), ((11 * symbols + 5) % 64).to(device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(steps: int = 60) -> dict[str, list[float]]:
    """Train the same model under several recipes; return their losses."""
    device = "cuda" if torch.cuda.is_available() and nf.cuda_problem() is None else "cpu"
    curves = {}
    for name, recipe in RECIPES.items():
        model = make_model().to(device)
        if recipe is not None:
            nf.interop.torch.convert_model(model, recipe, keep=["3"])  # the last layer stays as it is
        curves[name] = train(model, steps, device)
        print(f"{name:>6}: loss {curves[name][0]:.3f} -> {curves[name][-1]:.3f}")
    print(nf.interop.torch.report(model))
    plain = make_model()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "scaling_" not in k})  # plain torch again
    return curves


if __name__ == "__main__":
    main()
