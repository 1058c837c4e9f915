"""Plays the lesson of the X-ray page on the engine's own scheduler, with the simulator instead of a model.

``python -m tests.reports.lesson_recorder`` writes ``reports/dashboard/lesson.json``; a test compares the file
with what the scheduler does today.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.clock import VirtualClock
from engine.config import EngineConfig
from engine.core.core import EngineCore
from engine.executor.sim import CostModel, SimExecutor
from engine.messages import EngineCoreRequest
from engine.plan import StepPlan, StepResult
from engine.sampling_params import SamplingParams
from engine.trace.recorder import ListRecorder
from engine.trace.records import EVENT_COLUMNS, STEP_COLUMNS

TARGET = Path(__file__).parents[2] / "reports" / "dashboard" / "lesson.json"
BLOCKS = 16
"""Usable blocks of the pool; the null block comes on top."""
SETTINGS = {"block_size": 4, "max_num_batched_tokens": 16, "max_num_seqs": 3}
_EVENT = [name for name, _ in EVENT_COLUMNS]
_STEP = [name for name, _ in STEP_COLUMNS]


@dataclass(frozen=True)
class Player:
    """A request of the lesson: it arrives before step ``arrives``; the first ``shared`` tokens of its prompt
    are those of the document that others ask about, too.
    """

    name: str
    arrives: int
    prompt: int
    output: int
    shared: int
    about: str


PLAYERS = (
    Player("A", 0, 24, 8, 20, "asks about a document of 20 tokens"),
    Player("B", 0, 10, 6, 0, "an unrelated chat"),
    Player("C", 3, 24, 12, 20, "asks about the same document as A"),
    Player("D", 4, 8, 12, 0, "an unrelated chat"),
    Player("E", 9, 16, 6, 0, "a chat with a longer prompt"),
    Player("F", 20, 24, 3, 20, "comes back to the document after A and C are gone"),
)


class _Watcher(SimExecutor):
    """Looks at the scheduler's books while a step runs: after its plan, before its result."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(BLOCKS + 1, clock, CostModel(1_000_000, 100_000, 2_000, 0, 0))
        self.core: EngineCore | None = None
        self.seen: list[dict[str, Any]] = []

    def execute(self, plan: StepPlan) -> StepResult:
        if self.core is not None and plan.num_scheduled_tokens:
            self.seen.append(_books(self.core, plan))
        return super().execute(plan)


def _books(core: EngineCore, plan: StepPlan) -> dict[str, Any]:
    state, kv = core.scheduler.state, core.scheduler.kv
    shares = [
        {
            "request": name,
            "tokens": tokens,
            "before": plan.num_computed_tokens[name],
            "target": state.requests[name].num_tokens,
        }
        for name, tokens in plan.num_scheduled_tokens.items()
    ]
    return {
        "shares": shares,
        "running": [request.request_id for request in state.running],
        "waiting": [
            {"request": r.request_id, "tokens": r.num_tokens, "preempted": r.num_preemptions > 0}
            for r in state.waiting
        ],
        "tables": {
            r.request_id: [block.block_id for block in kv.tables[r.request_id]] for r in state.running
        },
        "findable": sorted(block.block_id for block in kv.pool.blocks if block.block_hash is not None),
    }


def play(trace: ListRecorder | None = None) -> dict[str, Any]:
    """The whole lesson, as ``lesson.json`` holds it; ``trace`` gets the engine's own rows."""
    clock, trace = VirtualClock(), trace or ListRecorder()
    watcher = _Watcher(clock)
    config = EngineConfig.create(**SETTINGS, check_invariants=True)
    core = watcher.core = EngineCore.create(config, watcher, clock, trace)
    coming = list(PLAYERS)
    while coming or core.has_work():
        while coming and coming[0].arrives <= len(watcher.seen):
            core.add_request(_request(coming.pop(0), clock.now_ns()))
        core.step()
    core.shutdown()
    steps = []
    for row, books in zip(trace.steps, watcher.seen, strict=True):
        step = dict(zip(_STEP, row, strict=True))
        steps.append(
            {
                "step": step["step_id"],
                "start_ms": round(step["t_start"] / 1e6, 3),
                "ms": round((step["t_end"] - step["t_start"]) / 1e6, 3),
                "stop": str(step["admission_stop"]),
                "evicted": step["kv_evicted"],
                "events": _events(trace, step["step_id"], step["t_start"], step["t_end"]),
                **books,
            }
        )
    players = [
        {"request": p.name, "prompt": p.prompt, "output": p.output, "arrives": p.arrives, "about": p.about}
        for p in PLAYERS
    ]
    return {
        "schema_version": 1,
        "settings": {**SETTINGS, "blocks": BLOCKS},
        "requests": players,
        "steps": steps,
    }


def _events(trace: ListRecorder, step_id: int, start: int, end: int) -> list[dict[str, Any]]:
    """Events of a step; those without a step id happen at its start or at its end (virtual time stands still
    in between).
    """
    found = []
    for row in trace.events:
        event = dict(zip(_EVENT, row, strict=True))
        kind = str(event["kind"])
        when = {"queued": start, "preempted": start, "finished": end}.get(kind)
        mine = event["step_id"] == step_id if event["step_id"] is not None else event["t_ns"] == when
        if mine and kind != "scheduled":
            found.append({"kind": kind, "request": event["request_id"], "tokens": event["tokens"]})
    return found


def _request(player: Player, now: int) -> EngineCoreRequest:
    own = 1000 * (ord(player.name) - ord("A") + 1)
    prompt = [*range(player.shared), *range(own, own + player.prompt - player.shared)]
    return EngineCoreRequest(
        request_id=player.name,
        external_id=player.name,
        prompt_token_ids=prompt,
        params=SamplingParams(max_tokens=player.output, ignore_eos=True),
        eos_token_ids=[],
        arrival_ns=now,
    )


def text() -> str:
    """``lesson.json``: a step a line, so that a change of the scheduler is a readable diff."""
    lesson = play()
    head = {key: value for key, value in lesson.items() if key != "steps"}
    lines = [json.dumps(step, separators=(",", ":")) for step in lesson["steps"]]
    return json.dumps(head)[:-1] + ', "steps": [\n' + ",\n".join(lines) + "\n]}\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
    print(TARGET)
