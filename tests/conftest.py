"""Fixtures and hooks of all tests: the device under test, drawn cases, and the list of skips for CI."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

from nvfp import config
from nvfp.device import Device, cuda_problem, use_device
from tests.devices import to_device, to_numpy

__all__ = ["to_device", "to_numpy"]  # so that a test may import them from here too

hypothesis.settings.register_profile("nvfp", deadline=None, print_blob=True, max_examples=50)
hypothesis.settings.register_profile("ci", parent=hypothesis.settings.get_profile("nvfp"), derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "nvfp")


def pytest_configure() -> None:
    if _plain_malloc():
        import cupy

        cupy.cuda.set_allocator(None)  # one cudaMalloc per array: compute-sanitizer then sees its true bounds
        cupy.cuda.set_pinned_memory_allocator(None)


def _plain_malloc() -> bool:
    return config.flag("NVFP_TEST_PLAIN_MALLOC") and cuda_problem() is None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    problem = cuda_problem()
    if problem is not None:
        skip = pytest.mark.skip(reason=f"no CUDA device: {problem}")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)


@pytest.fixture(params=["cpu", "cuda"], scope="session")
def device(request: pytest.FixtureRequest) -> Device:
    """Each device that nvfp runs on; CUDA skips with the reason where there is none."""
    if request.param == "cuda" and (problem := cuda_problem()) is not None:
        pytest.skip(f"no CUDA device: {problem}")
    return Device(request.param)


@pytest.fixture(scope="session")
def xp(device: Device) -> Any:
    """The array module of `device`: NumPy or CuPy."""
    if device.type == "cpu":
        return np
    import cupy

    return cupy


@pytest.fixture(autouse=True)
def default_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make the device under test nvfp's default one; tests without `device` run on the CPU unless marked gpu."""
    if "device" in request.fixturenames:
        chosen = request.getfixturevalue("device")
    else:
        chosen = Device("cuda" if request.node.get_closest_marker("gpu") else "cpu")
    with use_device(chosen):
        yield


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print each distinct skip reason once; write them to the file that NVFP_SKIP_REPORT names (.ci/check_skips.py)."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(r.longrepr[2] if isinstance(r.longrepr, tuple) else str(r.longrepr) for r in reports)
    for reason, times in sorted(reasons.items()):
        terminalreporter.write_line(f"{times} skipped: {reason.removeprefix('Skipped: ')}")
    target = config.get("NVFP_SKIP_REPORT")
    if target:
        Path(target).write_text("".join(f"{reason}\n" for reason in sorted(reasons)))
