"""All inputs of a step in one block of bytes: written on the host, copied once, seen on the device as typed
arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine.executor.device.runtime import DeviceRuntime, Event

ALIGNMENT = 16
"""Bytes; vectorised loads want it."""
_TORCH: Mapping[str, torch.dtype] = {
    "i8": torch.int64,
    "i4": torch.int32,
    "f8": torch.float64,
    "f4": torch.float32,
    "u1": torch.uint8,
}


@dataclass(frozen=True, slots=True)
class Field:
    """An array: ``kind`` is numpy's name of its type (i8, i4, f8, f4, u1)."""

    name: str
    kind: str
    count: int

    @property
    def num_bytes(self) -> int:
        return self.count * int(self.kind[1])


class Layout:
    """Where each field lies, one behind the other."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self.fields = tuple(fields)
        self.offsets: list[int] = []
        end = 0
        for field in fields:
            self.offsets.append(end)
            end += -(-field.num_bytes // ALIGNMENT) * ALIGNMENT
        self.num_bytes = end

    def on_host(self, block: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[np.generic]]:
        """Writable arrays over ``block``."""
        return {
            field.name: block[offset : offset + field.num_bytes].view(field.kind)
            for field, offset in zip(self.fields, self.offsets, strict=True)
        }

    def on_device(self, block: torch.Tensor) -> dict[str, torch.Tensor]:
        """Tensors over ``block`` (uint8, 1-d, on the device)."""
        return {
            field.name: block[offset : offset + field.num_bytes].view(_TORCH[field.kind])
            for field, offset in zip(self.fields, self.offsets, strict=True)
        }


class _Slot:
    def __init__(self, pinned: torch.Tensor) -> None:
        self.tensor = pinned
        self.array: npt.NDArray[np.uint8] = pinned.numpy()
        self.copied: Event | None = None


class Staging:
    """A device block at a fixed address, and pinned blocks in turn before it.

    A pinned block is written again only after its last copy has come: with as many blocks as steps are
    under way that is never waited for. The device block is read and overwritten in the order of the queue.
    """

    def __init__(self, runtime: DeviceRuntime, capacity: int, num_slots: int) -> None:
        self._runtime = runtime
        self.block = runtime.device_bytes(capacity)
        self._slots = [_Slot(runtime.pinned(capacity)) for _ in range(num_slots)]
        self._next = 0

    @property
    def capacity(self) -> int:
        return self.block.shape[0]

    def host(self) -> npt.NDArray[np.uint8]:
        """The block to write the next step's inputs into."""
        slot = self._slots[self._next]
        if slot.copied is not None:
            slot.copied.synchronize()
            slot.copied = None
        return slot.array

    def send(self, num_bytes: int) -> None:
        """Queue the copy of what was written: the step's only one to the device."""
        slot = self._slots[self._next]
        self._runtime.upload(self.block[:num_bytes], slot.tensor[:num_bytes])
        slot.copied = self._runtime.record_event()
        self._next = (self._next + 1) % len(self._slots)
