"""Layers. `functional_call(model, params, x)` runs a model with other parameters."""

from __future__ import annotations

from nvfp.nn._quantized_init import quantized_model_init as quantized_model_init
from nvfp.nn.dot_product_attention import DotProductAttention as DotProductAttention
from nvfp.nn.drop_path import DropPath as DropPath
from nvfp.nn.dropout import Dropout as Dropout
from nvfp.nn.functional.cross_entropy import cross_entropy as cross_entropy
from nvfp.nn.inference import InferenceParams as InferenceParams
from nvfp.nn.layernorm_linear import LayerNormLinear as LayerNormLinear
from nvfp.nn.layernorm_mlp import LayerNormMLP as LayerNormMLP
from nvfp.nn.layers import (
    GEGLU as GEGLU,
    GELU as GELU,
    MLP as MLP,
    Activation as Activation,
    Embedding as Embedding,
    ReLU as ReLU,
    Sequential as Sequential,
    SiLU as SiLU,
    SwiGLU as SwiGLU,
)
from nvfp.nn.linear import Linear as Linear
from nvfp.nn.linear_cross_entropy import LinearCrossEntropy as LinearCrossEntropy
from nvfp.nn.module import Module as Module, functional_call as functional_call
from nvfp.nn.multihead_attention import MultiheadAttention as MultiheadAttention
from nvfp.nn.norm import L2Normalization as L2Normalization, LayerNorm as LayerNorm, RMSNorm as RMSNorm
from nvfp.nn.rotary import RotaryPositionEmbedding as RotaryPositionEmbedding
from nvfp.nn.transformer import TransformerLayer as TransformerLayer
