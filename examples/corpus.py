"""The bytes the example trains on: the source of Python's standard library, a folder or a file of your own."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

EXCLUDED = ("test", "tests", "idlelib", "site-packages", "dist-packages", "__pycache__", "lib2to3")
TEXT = (".py", ".txt", ".md", ".rst", ".c", ".h", ".toml")


@dataclass(frozen=True)
class Corpus:
    """Training and validation bytes, a fingerprint of both, and what a sample starts with."""

    train: np.ndarray
    validation: np.ndarray
    sha256: str
    files: int
    prompt: bytes

    def batch(self, starts: np.ndarray, context: int, *, part: str = "train") -> np.ndarray:
        """Return windows [B, context + 1] of uint8: the context and the byte that follows it."""
        return getattr(self, part)[starts[:, None] + np.arange(context + 1)]

    def check_context(self, context: int) -> None:
        """Raise ValueError unless windows of this length fit into both parts."""
        for part in ("train", "validation"):
            if len(getattr(self, part)) < context + 2:
                raise ValueError(
                    f"--context {context} is longer than the {part} part of the corpus "
                    f"({len(getattr(self, part)):,} bytes); shorten it or give more text"
                )


def load_corpus(source: str | None = None, *, every: int = 20, limit: int = 48 << 20) -> Corpus:
    """Read a corpus.

    Args:
        source: a folder of text, or one file; the standard library's source if None (tests excluded).
        every: of a folder, each ``every``-th file is kept for validation; of a file, its last
            ``1/every``.
        limit: most bytes that are read.

    Raises:
        OSError: the source is unreadable or holds too little text.
    """
    root = Path(source) if source else Path(sysconfig.get_paths()["stdlib"])
    if root.is_file():
        with root.open("rb") as file:
            content = file.read(limit)
        cut = len(content) - len(content) // every
        parts, pieces = ([content[:cut]], [content[cut:]]), [content]
        what = f"{root} holds {len(content)} bytes"
    elif root.is_dir():
        skip, suffixes = ((), TEXT) if source else (EXCLUDED, (".py",))
        pieces = list(_read_folder(root, skip, suffixes, limit))
        parts = ([], [])
        for i, piece in enumerate(pieces):
            parts[i % every == every - 1].append(piece)
        what = f"{root} holds {sum(map(len, pieces))} bytes of text in {len(pieces)} files ({', '.join(suffixes)})"
    else:
        raise OSError(f"{root} is not a readable file or folder")
    train, validation = (np.frombuffer(b"".join(part), np.uint8) for part in parts)
    if len(train) < 1024 or len(validation) < 256:
        raise OSError(f"{what}; {every} files, or one file, of some kilobytes are needed")
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    prompt = validation[:24].tobytes() if source else b"    def __init__(self, "
    return Corpus(train, validation, digest.hexdigest(), len(pieces), prompt)


def _read_folder(root: Path, skip: tuple[str, ...], suffixes: tuple[str, ...], limit: int) -> Iterator[bytes]:
    """Yield the text files below a folder in the order of their names, until ``limit`` bytes are reached."""
    total = 0
    for path in sorted(p for p in root.rglob("*") if p.suffix in suffixes and p.is_file()):
        if set(path.relative_to(root).parts) & set(skip):
            continue
        content = path.read_bytes()
        total += len(content)
        if total > limit:
            return
        yield content
