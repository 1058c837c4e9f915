"""Messages between the front end's process and the core's: tagged structs, msgpack, one message a ZeroMQ
frame.
"""

from __future__ import annotations

import msgspec

from engine.executor.info import ExecutorInfo
from engine.messages import EngineCoreOutputs, EngineCoreRequest, SchedulerStats


class Add(msgspec.Struct, frozen=True, tag="add"):
    request: EngineCoreRequest


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    request_ids: list[str]


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset_prefix_cache"):
    call_id: int


class StartProfile(msgspec.Struct, frozen=True, tag="start_profile"):
    call_id: int
    num_steps: int
    max_seconds: float


class StopProfile(msgspec.Struct, frozen=True, tag="stop_profile"):
    call_id: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Stop after the current step; requests in flight are dropped."""


ToCore = Add | Abort | ResetPrefixCache | StartProfile | StopProfile | Shutdown


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded; ``info`` are the settings in force."""

    info: ExecutorInfo
    stats: SchedulerStats


class StartFailed(msgspec.Struct, frozen=True, tag="start_failed"):
    """The core can't come up. ``kind`` is ``ModelLoadError``, ``InvalidInputError`` or the name of
    another exception.

    ``field``, ``value`` and ``allowed`` are those of an ``InvalidInputError`` (``value`` as text).
    """

    kind: str
    message: str
    field: str = ""
    value: str = ""
    allowed: str = ""


class Step(msgspec.Struct, frozen=True, tag="step"):
    outputs: EngineCoreOutputs


class ResetPrefixCacheDone(msgspec.Struct, frozen=True, tag="reset_prefix_cache_done"):
    call_id: int
    succeeded: bool


class ProfileDone(msgspec.Struct, frozen=True, tag="profile_done"):
    """Answer to :class:`StartProfile` and :class:`StopProfile`; the last three are an
    ``InvalidInputError``'s.
    """

    call_id: int
    succeeded: bool
    field: str = ""
    value: str = ""
    allowed: str = ""


class Died(msgspec.Struct, frozen=True, tag="died"):
    """The core is about to end, or has ended, without having been told to."""

    message: str


FromCore = Ready | StartFailed | Step | ResetPrefixCacheDone | ProfileDone | Died

encode = msgspec.msgpack.Encoder().encode


def to_core_decoder() -> msgspec.msgpack.Decoder[ToCore]:
    return msgspec.msgpack.Decoder(ToCore)


def from_core_decoder() -> msgspec.msgpack.Decoder[FromCore]:
    return msgspec.msgpack.Decoder(FromCore)
