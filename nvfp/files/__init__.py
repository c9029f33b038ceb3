"""Files: arrays and checkpoints as safetensors."""

from __future__ import annotations

from nvfp.files.checkpoint import load_checkpoint as load_checkpoint, save_checkpoint as save_checkpoint
from nvfp.files.tensors import load as load, load_with_metadata as load_with_metadata, save as save
