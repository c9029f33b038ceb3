"""The bytes the example trains on: the source of Python's standard library, or a folder of your own."""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

EXCLUDED = ("test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__", "lib2to3")
TEXT = (".py", ".txt", ".md", ".rst", ".c", ".h", ".toml")


@dataclass(frozen=True)
class Corpus:
    """Training and validation bytes, split by file, and a fingerprint of both."""

    train: np.ndarray
    validation: np.ndarray
    sha256: str
    files: int

    def batch(self, starts: np.ndarray, context: int, *, part: str = "train") -> np.ndarray:
        """Return windows [B, context + 1] of uint8: the context and the byte that follows it."""
        return getattr(self, part)[starts[:, None] + np.arange(context + 1)]


def load_corpus(folder: str | None = None, *, every: int = 20, limit: int = 48 << 20) -> Corpus:
    """Read a corpus.

    Args:
        folder: a folder of text; the standard library's source if None (tests excluded).
        every: each ``every``-th file is kept for validation.
        limit: most bytes that are read.

    Raises:
        OSError: the folder is unreadable or holds no usable text.
    """
    root = Path(folder) if folder else Path(sysconfig.get_paths()["stdlib"])
    if not root.is_dir():
        raise OSError(f"{root} is not a readable folder")
    suffixes = TEXT if folder else (".py",)
    skip = () if folder else EXCLUDED
    paths = sorted(
        p
        for p in root.rglob("*")
        if p.suffix in suffixes and p.is_file() and not set(p.relative_to(root).parts) & set(skip)
    )
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    total, count, digest = 0, 0, hashlib.sha256()
    for i, path in enumerate(paths):
        content = path.read_bytes()
        if total + len(content) > limit:
            break
        digest.update(content)
        total, count = total + len(content), count + 1
        parts[i % every == every - 1].append(content)
    train, validation = (np.frombuffer(b"".join(p), np.uint8) for p in parts)
    if len(train) < 1024 or len(validation) < 256:
        raise OSError(
            f"{root} holds {total} bytes of text in {count} files ({', '.join(suffixes)}); "
            f"{every} files and some kilobytes are needed"
        )
    return Corpus(train, validation, digest.hexdigest(), count)
