"""One request to send, and the result of building a workload."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class WorkloadRequest:
    """One request to send. Exactly one of ``prompt_token_ids``, ``prompt`` and ``messages`` is set."""

    index: int
    offset_ns: int | None
    """Intended send time after the start; None in a closed loop, and for a session's later turns."""
    group: str
    max_tokens: int
    prompt_token_ids: NDArray[np.int32] | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    num_prompt_tokens: int | None = None
    """As built; None when only the server can count (text, and turns that hold the server's own answers)."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request's body (sampling parameters)."""
    session: int | None = None
    """Conversation that it belongs to. Its turns have consecutive indices."""
    turn: int = 0
    """0 opens the session; later turns hold only what they add to it."""
    think_ns: int = 0
    """From the last token of the turn before to the sending of this one."""
    scripted_reply: NDArray[np.int32] | None = None
    """Stands for this turn's answer in later prompts when the server's own is not wanted or not known as
    ids."""


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """The request list, and what building it did to the source."""

    requests: list[WorkloadRequest]
    notes: dict[str, Any]
    """Rows dropped, cut or spread, digest of the file, how text was counted; empty for random classes."""
