"""Reads a GGUF file's header fast: metadata, and where each tensor's bytes lie. No torch.

``gguf.GGUFReader`` makes one numpy array per metadata element, which takes seconds for a vocabulary; this
reader walks the header once. Types, enums and block sizes come from the ``gguf`` library, and so does
dequantisation. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from engine.errors import ModelLoadError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS: dict[int, str] = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True)
class GGUFTensorInfo:
    """``shape`` is row-major, as in torch (GGUF itself lists the fastest dimension first)."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    """First byte, from the start of the file."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """A parsed header over a memory-mapped file; nothing but the header has been read."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensorInfo]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """Value of ``{architecture}.{key}``."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def raw(self, name: str) -> np.ndarray:
        """The tensor's bytes as stored, uint8 ``[num_bytes]``, mapped from the file."""
        info = self.tensors[name]
        return np.memmap(self.path, dtype=np.uint8, mode="r", offset=info.offset, shape=(info.num_bytes,))


def read_gguf(path: Path) -> GGUFFile:
    """Parse the header of ``path``.

    Raises:
        ModelLoadError: not a GGUF file, an unknown version, or cut short.
    """
    try:
        size = path.stat().st_size
        if size < 24:
            raise ModelLoadError(f"{path}: not a GGUF file ({size} bytes)")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data, size)
    except OSError as error:
        raise ModelLoadError(f"{path}: can't be read: {error.strerror or error}") from None
    except (struct.error, UnicodeDecodeError, ValueError, KeyError) as error:
        raise ModelLoadError(f"{path}: damaged GGUF header ({error})") from None


def _parse(path: Path, data: mmap.mmap, size: int) -> GGUFFile:
    if data[:4] != _MAGIC:
        raise ModelLoadError(f"{path}: not a GGUF file (it starts with {bytes(data[:4])!r})")
    version, num_tensors, num_pairs = struct.unpack_from("<IQQ", data, 4)
    if version not in _VERSIONS:
        raise ModelLoadError(
            f"{path}: GGUF version {version}; supported: {', '.join(map(str, _VERSIONS))}, little-endian"
        )
    cursor = _Cursor(data, 24)
    metadata: dict[str, Any] = {}
    for _ in range(num_pairs):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    infos: list[tuple[str, tuple[int, ...], GGMLQuantizationType, int]] = []
    for _ in range(num_tensors):
        name = cursor.string()
        dims = cursor.array("Q", cursor.scalar("I"))
        kind = GGMLQuantizationType(cursor.scalar("I"))
        infos.append((name, tuple(reversed(dims)), kind, cursor.scalar("Q")))
    alignment = int(metadata.get("general.alignment", 32))
    start = -(-cursor.offset // alignment) * alignment
    tensors: dict[str, GGUFTensorInfo] = {}
    for name, shape, kind, offset in infos:
        per_block, block_bytes = GGML_QUANT_SIZES[kind]
        elements = 1
        for dim in shape:
            elements *= dim
        num_bytes = elements // per_block * block_bytes
        if start + offset + num_bytes > size:
            raise ModelLoadError(
                f"{path}: cut short: {name} ends at byte {start + offset + num_bytes}, the file at {size}"
            )
        tensors[name] = GGUFTensorInfo(name, shape, kind, start + offset, num_bytes)
    return GGUFFile(path, metadata, tensors)


class _Cursor:
    """Reads little-endian values one after another."""

    __slots__ = ("data", "offset")

    def __init__(self, data: mmap.mmap, offset: int) -> None:
        self.data = data
        self.offset = offset

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.offset)
        self.offset += struct.calcsize("<" + code)
        return value

    def array(self, code: str, count: int) -> list[Any]:
        layout = f"<{count}{code}"
        values = list(struct.unpack_from(layout, self.data, self.offset))
        self.offset += struct.calcsize(layout)
        return values

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        # The hot loop of the header: a vocabulary and its merges are some 100,000 strings.
        data, offset, length_at = self.data, self.offset, struct.Struct("<Q").unpack_from
        values = []
        for _ in range(count):
            begin = offset + 8
            offset = begin + length_at(data, offset)[0]
            if offset > len(data):
                raise ValueError("a string runs past the end of the file")
            values.append(data[begin:offset].decode("utf-8"))
        self.offset = offset
        return values

    def value(self, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind == GGUFValueType.ARRAY:
            item = self.scalar("I")
            count = self.scalar("Q")
            if item == GGUFValueType.STRING:
                return self.strings(count)
            if item == GGUFValueType.ARRAY:
                return [self.value(item) for _ in range(count)]
            return self.array(_SCALARS[item], count)
        return self.scalar(_SCALARS[kind])
