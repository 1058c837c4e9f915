"""What the bench needs to know about a server under test, and how it gets rid of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from workbench.manifest import TargetInfo


class Target(Protocol):
    """A server under test. Use as a context manager: leaving it stops what was started."""

    base_url: str
    info: TargetInfo

    def __enter__(self) -> Target: ...

    def __exit__(self, *exc: object) -> None: ...

    def pids(self) -> list[int]:
        """Processes to watch; empty for a server that is not ours."""
        ...

    def death(self) -> str | None:
        """One line when the server has died by itself; None while it lives or can't be told."""
        ...


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says about itself. None: it does not tell."""

    model: str
    vocab_size: int | None = None
    max_model_len: int | None = None
    echo: dict[str, Any] | None = None
    """Settings in force, flat, under EngineConfig's names; further facts under their own."""
    raw: dict[str, Any] = field(default_factory=dict)


def echo_mismatches(requested: dict[str, Any], echo: dict[str, Any] | None) -> list[str]:
    """Settings that the server did not take over as asked; each is a reason for an invalid run.

    ``auto`` and None leave the choice to the server, so any answer is right.
    """
    if not requested:
        return []
    if echo is None:
        return ["the target does not tell its configuration (no /server_info)"]
    reasons = []
    for name, wanted in requested.items():
        if wanted is None or wanted == "auto":
            continue
        if name not in echo:
            reasons.append(f"config: {name}={wanted!r} was asked for, the target does not mention it")
        elif echo[name] != wanted:
            reasons.append(f"config: {name}={wanted!r} was asked for, {echo[name]!r} is in force")
    return reasons
