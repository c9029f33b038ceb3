"""Update rules: one launch per step, group and dtype, state in plain arrays; schedules and clipping."""

from __future__ import annotations

from nvfp.optim.adam import Adam as Adam, AdamW as AdamW
from nvfp.optim.clipping import clip_grad_norm as clip_grad_norm
from nvfp.optim.muon import Muon as Muon
from nvfp.optim.schedule import (
    Schedule as Schedule,
    constant as constant,
    cosine as cosine,
    linear as linear,
    wsd as wsd,
)
from nvfp.optim.sgd import SGD as SGD
