"""Files that a reader sees whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def beside(final: Path) -> Iterator[Path]:
    """A temporary path next to ``final``; renamed onto it when the block succeeds, removed when it fails.

    A link is followed, so that it goes on pointing at what it pointed at. What is there and is neither a file
    nor a folder (/dev/null, a pipe) is yielded itself: renaming would put a file in the device's place, for
    every program of the machine.
    """
    final = final.resolve()
    if final.exists() and not (final.is_file() or final.is_dir()):
        yield final
        return
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}")
    try:
        yield temporary
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` atomically, flushed to disk. NaN and infinity are refused: missing is null."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` atomically, flushed to disk."""
    with beside(path) as place, place.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if place.is_file():  # a device has nothing to sync
            os.fsync(file.fileno())
