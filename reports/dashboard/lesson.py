"""The built-in lesson of the X-ray page: six requests on a pool of 16 blocks, played by the engine's own
scheduler.

``lesson.json`` is recorded by ``tests/reports/lesson_recorder.py``; nothing of it is written by hand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from reports.lifecycle import DECODE, PREFILL
from reports.xray import Share, StepView, Waiting


@dataclass(frozen=True)
class Player:
    """A request of the lesson."""

    request: str
    prompt: int
    output: int
    arrives: int
    about: str


@dataclass(frozen=True)
class LessonShare:
    """What a request computes in a step: ``before`` of ``target`` tokens were computed already."""

    request: str
    tokens: int
    before: int
    target: int

    @property
    def phase(self) -> str:
        """A request that lacks only its newest token decodes."""
        return DECODE if self.target - self.before == 1 else PREFILL


@dataclass(frozen=True)
class Event:
    """``queued first_token prefix_hit preempted resumed finished`` with the tokens that go with it."""

    kind: str
    request: str
    tokens: int | None


@dataclass(frozen=True)
class LessonStep:
    """A step as the scheduler's books stood while it ran."""

    step: int
    start_ms: float
    ms: float
    stop: str
    evicted: int
    events: list[Event]
    shares: list[LessonShare]
    running: list[str]
    waiting: list[tuple[str, int, bool]]
    """(request, tokens to compute, was preempted), in queue order."""
    tables: dict[str, list[int]]
    """Block table of every running request."""
    findable: list[int]
    """Blocks whose content the prefix cache knows, held or free."""

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    def owners(self, block: int) -> list[str]:
        return [request for request, table in self.tables.items() if block in table]


@dataclass(frozen=True)
class Lesson:
    """The record; ``blocks`` are numbered from 1 (0 is the null block)."""

    block_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    blocks: int
    players: list[Player]
    steps: list[LessonStep]

    def player(self, request: str) -> Player:
        return next(p for p in self.players if p.request == request)


@cache
def lesson() -> Lesson:
    """The shipped record."""
    raw = json.loads(files("reports.dashboard").joinpath("lesson.json").read_text(encoding="utf-8"))
    settings = raw["settings"]
    return Lesson(
        **settings, players=[Player(**p) for p in raw["requests"]], steps=[_step(s) for s in raw["steps"]]
    )


def _step(raw: dict[str, Any]) -> LessonStep:
    waiting = [(w["request"], w["tokens"], w["preempted"]) for w in raw["waiting"]]
    events = [Event(**e) for e in raw["events"]]
    shares = [LessonShare(**s) for s in raw["shares"]]
    return LessonStep(**{**raw, "waiting": waiting, "events": events, "shares": shares})


def view(play: Lesson, index: int) -> StepView:
    """The step as the figures of any run's step take it."""
    step = play.steps[index]
    held = {block for table in step.tables.values() for block in table}
    cached = [block for block in step.findable if block not in held]
    since = {e.request: s.start_ms for s in play.steps[: index + 1] for e in s.events if e.kind == "queued"}
    since |= {
        e.request: s.start_ms for s in play.steps[: index + 1] for e in s.events if e.kind == "preempted"
    }
    return StepView(
        {
            "kv_used": len(held),
            "kv_cached": len(cached),
            "kv_free": play.blocks - len(held) - len(cached),
        },
        [Share(s.request, s.phase, s.tokens) for s in step.shares],
        [Waiting(name, step.start_ms - since[name], preempted) for name, _, preempted in step.waiting],
    )
