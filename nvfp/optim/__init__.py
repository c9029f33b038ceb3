"""Update rules: one launch per step and dtype, state in plain arrays."""

from __future__ import annotations

from nvfp.optim.adam import AdamW as AdamW
