"""The kernels of the dense stems compile for every declared architecture, without warnings, spills or local memory."""

from __future__ import annotations

import pytest

from nvfp.kernels import compile as command
from nvfp.kernels.cuda import _loader
from nvfp.kernels.cuda._loader import ARCHITECTURES, Instance
from nvfp.kernels.cuda.instances import instances, one_per_source
from tests.kernels.cuda.nvrtc import need_nvrtc, sass

STEMS = (
    "activation",
    "adam",
    "bias_grad",
    "cross_entropy",
    "dropout",
    "embedding",
    "layer_norm",
    "multi_tensor",
    "rms_norm",
    "sgd",
    "softmax",
)
DECLARED = [instance for stem in STEMS for instance in instances(stem)]
# Kernels that move their data 16 bytes at a time.
WIDE = {
    "activation_gated", "activation_gated_vjp", "activation_vjp", "adam", "bias_grad_partial", "cross_entropy_rows",
    "cross_entropy_vjp", "dropout", "embedding", "embedding_walk", "layer_norm", "layer_norm_vjp",
    "rms_norm", "rms_norm_vjp", "sgd",
}  # fmt: skip


def check(instance: Instance, arch: str) -> None:
    _, log = _loader.compile_cubin(instance, arch)
    assert not log, log
    used = command.usage(instance, arch)
    assert (used.stack, used.spills) == (0, 0)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_no_warnings_and_no_spills(arch: str) -> None:
    need_nvrtc()
    for instance in one_per_source(DECLARED):
        check(instance, arch)


@pytest.mark.parametrize("instance", DECLARED, ids=str)
def test_hopper_code(instance: Instance, tmp_path_factory: pytest.TempPathFactory) -> None:
    text = sass(instance, "sm_90a", tmp_path_factory.getbasetemp())
    check(instance, "sm_90a")
    assert not {"LDL", "STL"} & set(text.replace(".", " ").split()), "uses local memory"
    if instance.name in WIDE:
        assert "LDG.E.128" in text, "loads less than 16 bytes at a time"
    # The order and number of roundings is promised to the bit: no contraction but where the source says fmaf or
    # the compiler expands a division, a root or an exponential.
    if instance.source in ("bias_grad.cu", "embedding.cu"):
        assert "FFMA" not in text
