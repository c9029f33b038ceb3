"""Quick start: one Linear under FP8 delayed scaling, forward and backward."""

from __future__ import annotations

import nvfp as nf
from nvfp import recipes
from nvfp.recipes import Format


def main() -> None:
    """Run one forward and backward pass and print what came out."""
    rng = nf.random.default_rng(0)
    model = nf.nn.Linear(768, 3072, bias=True, rng=rng)
    x = rng.normal(size=(2048, 768))
    recipe = recipes.DelayedScaling(margin=0, fp8_format=Format.E4M3)

    with nf.autocast(enabled=True, recipe=recipe):
        out = model(x)
    out.sum().backward()

    print(f"device {out.device}, out {out.shape} {out.dtype}")
    largest = float(nf.max(nf.abs(model.weight.grad)))
    print(f"weight gradient {model.weight.grad.shape}, its largest magnitude {largest:.3f}")


if __name__ == "__main__":
    main()
