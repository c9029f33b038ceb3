"""Fixtures of the tests of formats."""

from __future__ import annotations

import pytest

from tests.dtypes import cuda_headers


@pytest.fixture(scope="session")
def casts(tmp_path_factory: pytest.TempPathFactory) -> cuda_headers.Casts:
    """NVIDIA's conversion headers, compiled for the host; skips where they cannot be."""
    if (reason := cuda_headers.problem()) is not None:
        pytest.skip(reason)
    return cuda_headers.Casts(tmp_path_factory.mktemp("cuda_headers"))
