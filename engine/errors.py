"""Errors that cross a boundary. Each carries one line a user can act on: field, value, what is allowed."""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors raised on purpose by the engine."""


class InvalidInputError(EngineError, ValueError):
    """A value was refused at the edge: HTTP 400, or exit code 2 on the command line.

    Args:
        field: name of the parameter as the user wrote it.
        value: the refused value.
        allowed: what would have been accepted, in words.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        shown = repr(value)
        if len(shown) > 120:
            shown = shown[:117] + "..."
        super().__init__(f"{field}={shown}: {allowed}")


class ModelLoadError(EngineError):
    """The model is missing, damaged or of a kind that is not supported."""


class EngineDeadError(EngineError):
    """The engine process ended; every request in flight is failed with this error."""


class QueueFullError(EngineError):
    """The queue limit is reached: HTTP 429 with Retry-After."""
