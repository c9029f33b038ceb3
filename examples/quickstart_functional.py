"""Quick start without `.backward()`: `value_and_grad` over `functional_call`, ten steps in one autocast."""

from __future__ import annotations

import nvfp as nf
from nvfp import recipes
from nvfp.recipes import Format


def main(steps: int = 10) -> list[float]:
    """Take gradient steps on a small regression; returns the losses."""
    rng = nf.random.default_rng(0)
    model = nf.nn.Linear(64, 32, rng=rng)
    x = rng.normal(size=(256, 64))
    target = nf.matmul(x, rng.normal(size=(64, 32)))

    def loss_fn(params: dict[str, nf.Array], x: nf.Array) -> nf.Array:
        y = nf.nn.functional_call(model, params, x)
        return nf.mean((y - target) * (y - target))

    params = {name: p.detach() for name, p in model.parameters().items()}
    losses = []
    with nf.autocast(enabled=True, recipe=recipes.DelayedScaling(margin=0, fp8_format=Format.HYBRID)):
        for step in range(steps):
            loss, (grads, x_grad) = nf.value_and_grad(loss_fn, argnums=(0, 1))(params, x)
            params = {name: p - 2.0 * grads[name] for name, p in params.items()}
            losses.append(float(loss))
            print(f"step {step}: loss {losses[-1]:.4f}, gradient of x {x_grad.shape}")
    return losses


if __name__ == "__main__":
    main()
