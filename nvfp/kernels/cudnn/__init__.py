"""cuDNN: attention on CUDA, through NVIDIA's own graph API (`nvidia-cudnn-frontend`).

`record` is the record of one attention, `support` says what cuDNN is not asked for, `layout` is how its
tensors lie in memory, `plan` builds and keeps graphs, `words` holds what dropout reads on the device, `run` is
the forward and the backward, `binding` is the one file that calls the library.
"""
