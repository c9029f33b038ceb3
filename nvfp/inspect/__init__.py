"""Looking into a run: what it costs."""

from __future__ import annotations

from nvfp.inspect.memory import peak_memory as peak_memory
