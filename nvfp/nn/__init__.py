"""Layers. `functional_call(model, params, x)` runs a model with other parameters."""

from __future__ import annotations

from nvfp.nn.functional.cross_entropy import cross_entropy as cross_entropy
from nvfp.nn.layers import (
    GELU as GELU,
    MLP as MLP,
    Activation as Activation,
    Embedding as Embedding,
    Sequential as Sequential,
)
from nvfp.nn.linear import Linear as Linear
from nvfp.nn.module import Module as Module, functional_call as functional_call
