"""One thread for torch in these tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Torch's threads and OpenBLAS's wait for each other when there are few cores: small models then take minutes."""
    torch = sys.modules.get("torch")  # test modules have imported it where it is there
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
