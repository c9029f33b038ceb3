"""What tests need that compile for a GPU without one: NVRTC, and the disassembler."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

from nvfp.kernels.cuda._loader import Instance, compile_cubin
from nvfp.optional import has


def need_nvrtc() -> None:
    """Skip where NVRTC is not installed (extra `compile` or `cuda13`)."""
    if not (has("cuda.bindings.nvrtc") and has("cuda.core") and has("cuda.pathfinder")):
        pytest.skip("NVRTC is not installed")
    from cuda.pathfinder import find_nvidia_header_directory

    if find_nvidia_header_directory("cudart") is None:
        pytest.skip("NVRTC is not installed: no CUDA headers")


@cache
def sass(instance: Instance, arch: str, folder: Path) -> str:
    """Return the disassembly of the kernel ``instance``; skip without cuobjdump."""
    need_nvrtc()
    from cuda.pathfinder import find_nvidia_binary_utility

    tools = [find_nvidia_binary_utility(name) for name in ("cuobjdump", "nvdisasm")]
    if None in tools:
        pytest.skip("cuobjdump is not installed")
    code, _ = compile_cubin(instance, arch)
    file = folder / "kernel.cubin"
    file.write_bytes(code)
    environment = {"PATH": str(Path(tools[1] or "").parent)}  # cuobjdump calls nvdisasm
    command = [str(tools[0]), "-sass", "-fun", instance.name, str(file)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
