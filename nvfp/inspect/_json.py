"""What the reports of this room share when they become JSON."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any


def as_json(record: Any, path: str | os.PathLike[str] | None, indent: int | None) -> str:
    """Return nested dicts and lists as JSON text, and write it to ``path`` unless that is None.

    Args:
        record: numbers that are not finite become null.
        path: a file, which is replaced.
        indent: spaces per level; None for one line.
    """
    text = json.dumps(finite(record), indent=indent, allow_nan=False)
    if path is not None:
        Path(path).write_text(text + "\n", encoding="utf-8")
    return text


def finite(value: Any) -> Any:
    """Return nested dicts and lists with None in place of floats that JSON cannot hold.

    Example:
        >>> finite({"a": [1.0, float("nan")]})
        {'a': [1.0, None]}
    """
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
