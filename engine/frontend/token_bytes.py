"""The bytes behind a token's name: byte-level (GPT-2's alphabet) and sentencepiece (``▁``, ``<0x0A>``)."""

from __future__ import annotations

import re


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in for each of the 256 bytes (Radford et al., 2019)."""
    printable = {
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    }
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


BYTE_TO_UNICODE = _byte_alphabet()
_UNICODE_TO_BYTE = {character: byte for byte, character in BYTE_TO_UNICODE.items()}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a byte-level token; one that leaves the alphabet stands for its own text."""
    try:
        return bytes(_UNICODE_TO_BYTE[character] for character in token)
    except KeyError:
        return token.encode("utf-8")


def sentencepiece_bytes(token: str) -> bytes:
    """Bytes of a sentencepiece token: ``▁`` is a space, ``<0xNN>`` one byte."""
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace("▁", " ").encode("utf-8")
