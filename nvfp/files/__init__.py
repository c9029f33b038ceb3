"""Files: arrays, checkpoints of a run, and models that other stacks have written, as safetensors."""

from __future__ import annotations

from nvfp.files.checkpoint import load_checkpoint as load_checkpoint, save_checkpoint as save_checkpoint
from nvfp.files.converting import convert_model as convert_model
from nvfp.files.models import Checkpoint as Checkpoint, load_model as load_model, open_checkpoint as open_checkpoint
from nvfp.files.tensors import load as load, load_with_metadata as load_with_metadata, save as save
from nvfp.files.writing import save_model as save_model
