"""Messages between rank 0 and the other ranks: tagged structs, msgpack, one message a ZeroMQ frame."""

from __future__ import annotations

import zlib
from array import array

import msgspec

from engine.errors import EngineError, InvalidInputError, ModelLoadError
from engine.plan import StepPlan, StepResult


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """First line on a worker's stdin, as JSON."""

    config_json: str
    rank: int
    size: int
    folder: str
    """Temporary, of sockets and store. Rank 0 removes it; where it could not, the ranks do."""
    address: str
    """Of rank 0's socket."""
    store: str
    """File through which the ranks find each other."""
    timeout_s: float


class Connect(msgspec.Struct, frozen=True, tag="connect"):
    """All ranks have loaded: join the group."""


class Allocate(msgspec.Struct, frozen=True, tag="allocate"):
    num_blocks: int


class Step(msgspec.Struct, frozen=True, tag="step"):
    plan: StepPlan


class Reset(msgspec.Struct, frozen=True, tag="reset"):
    """Forget every request."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    pass


ToWorker = Connect | Allocate | Step | Reset | Stop


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The rank's part of the weights is in memory."""


class Sized(msgspec.Struct, frozen=True, tag="sized"):
    num_blocks: int
    """KV blocks that this rank has room for."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    pass


class Done(msgspec.Struct, frozen=True, tag="done"):
    step_id: int
    checksum: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The rank ends. ``field``, ``value`` and ``allowed`` are those of an ``InvalidInputError``."""

    kind: str
    message: str
    field: str = ""
    value: str = ""
    allowed: str = ""


FromWorker = Loaded | Sized | Ready | Done | Failed

encode = msgspec.msgpack.Encoder().encode


def to_worker_decoder() -> msgspec.msgpack.Decoder[ToWorker]:
    return msgspec.msgpack.Decoder(ToWorker)


def from_worker_decoder() -> msgspec.msgpack.Decoder[FromWorker]:
    return msgspec.msgpack.Decoder(FromWorker)


def checksum(message: bytes, result: StepResult) -> int:
    """What ranks compare after a step: CRC-32 of the plan as it was sent and of the tokens it sampled."""
    tokens = array("q", result.sampled_token_ids.values())
    return zlib.crc32(tokens.tobytes(), zlib.crc32(message))


def failure(error: Exception) -> Failed:
    details = {}
    if isinstance(error, InvalidInputError):
        details = {"field": error.field, "value": str(error.value), "allowed": error.allowed}
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return Failed(type(error).__name__, text, **details)


def as_error(rank: int, failed: Failed) -> EngineError:
    """What a rank reported, as rank 0 raises it."""
    if failed.kind == InvalidInputError.__name__:
        return InvalidInputError(failed.field, failed.value, failed.allowed)
    if failed.kind == ModelLoadError.__name__:
        return ModelLoadError(failed.message)
    return EngineError(f"tensor-parallel rank {rank} failed: {failed.kind}: {failed.message}")
