"""What the scripts share: read a specification, prove whose engine is measured, write one JSON object."""

from __future__ import annotations

import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any


def read_specification() -> dict[str, Any]:
    """From standard input."""
    specification: dict[str, Any] = json.load(sys.stdin)
    return specification


def whose_engine() -> str:
    """Folder of the engine that Python found: the gate compares it with the revision it meant."""
    import engine

    return str(Path(str(engine.__file__)).resolve().parent.parent)


def answer(specification: dict[str, Any], **fields: Any) -> None:
    """Write the result to the path in argv[1], whole or not at all."""
    path = Path(sys.argv[1])
    text = json.dumps({"specification_sha256": specification["sha256"], "engine": whose_engine(), **fields})
    scratch = path.with_suffix(".part")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)


def prompt_of(segments: list[list[Any]], vocab_size: int = 30_000) -> list[int]:
    """Token ids of ``[[tag, length], ...]``: equal tags give equal tokens, in every process and revision."""
    return [
        100 + zlib.crc32(f"{tag}/{position}".encode()) % (vocab_size - 200)
        for tag, length in segments
        for position in range(length)
    ]
