"""Messages between the load generator and its worker processes: pickles with a length in front, over pipes.

Both ends are this program, one the child of the other; nothing from outside gets in.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from workbench.benchspec import Deadlines
from workbench.load.progress import BenchProgress
from workbench.load.runner import LoadPlan, LoadResult

_LENGTH = struct.Struct("!Q")
HEADER_BYTES = _LENGTH.size


@dataclass(frozen=True, slots=True)
class Job:
    """To the worker: its share of the schedule."""

    plan: LoadPlan
    headers: Mapping[str, str]
    deadlines: Deadlines


@dataclass(frozen=True, slots=True)
class Ready:
    """From the worker: the job is unpacked, the session open."""


@dataclass(frozen=True, slots=True)
class Start:
    """To the worker: the schedule's origin."""

    start_ns: int


@dataclass(frozen=True, slots=True)
class Stop:
    """To the worker: give up what is in flight and hand in what was recorded."""


@dataclass(frozen=True, slots=True)
class Tick:
    """From the worker: how far it is, for the display."""

    now: BenchProgress


@dataclass(frozen=True, slots=True)
class Finished:
    """From the worker, last: everything it recorded."""

    result: LoadResult


def pack(message: Any) -> bytes:
    data = pickle.dumps(message, protocol=5)
    return _LENGTH.pack(len(data)) + data


def unpack(data: bytes) -> Any:
    return pickle.loads(data)


def length(header: bytes) -> int:
    return int(_LENGTH.unpack(header)[0])


def read_blocking(pipe: IO[bytes]) -> Any | None:
    """The next message; None at the end of the pipe."""
    header = pipe.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    data = pipe.read(length(header))
    return unpack(data)
