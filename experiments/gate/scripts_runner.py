"""Run scripts inside revisions and take their answers, or say why there is none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from experiments.gate.models import Side, Unusable
from experiments.gate.script_process import ScriptProcess

SCRIPTS = Path(__file__).with_name("scripts")
Answer = dict[str, Any]
BeforeTurn = Callable[[Side], None]


class RunScript(Protocol):
    """Run ``script`` inside ``side`` on ``specification``; tests put another one in."""

    def __call__(self, side: Side, script: str, specification: Answer, timeout_s: float) -> Answer: ...


class RunTurns(Protocol):
    """Run ``script`` inside both sides, which take turns in ``order``; answers by the sides' names."""

    def __call__(
        self,
        order: Sequence[Side],
        script: str,
        specification: Answer,
        timeout_s: float,
        before_turn: BeforeTurn,
    ) -> dict[str, Answer]: ...


def run_script(
    side: Side, script: str, specification: Answer, timeout_s: float, *, scripts: Path | None = None
) -> Answer:
    """One script in a fresh process.

    Args:
        script: its name in ``scripts/``; always this revision's, on both sides.
        specification: with its ``sha256``, which the answer must repeat.
        scripts: another folder of scripts, for trying out what the gate does with broken ones.

    Raises:
        Unusable: it failed, ran out of time, wrote nothing readable, answered something else, or measured
            another engine than the side's.
    """
    with ScriptProcess(side, _file(script, scripts), specification) as process:
        return process.answer(timeout_s)


def run_turns(
    order: Sequence[Side], script: str, specification: Answer, timeout_s: float, before_turn: BeforeTurn
) -> dict[str, Answer]:
    """Both sides' processes are alive together, and only one of them works at a time.

    The machine's speed drifts within seconds; two turns right after one another share most of that. Who
    begins alternates (A B, B A, A B ...), so that a steady drift favours nobody.

    Args:
        order: who takes the first turn, then the other.
        script: waits for each turn, see ``scripts/baton.py``.
        before_turn: called while neither works.

    Raises:
        Unusable: as :func:`run_script`, for either side.
    """
    until = time.monotonic() + timeout_s
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(ScriptProcess(side, _file(script), specification, turns=True))
            for side in order
        ]
        ended = [process for process in processes if not process.is_over(until)]  # in the warm-up
        while not ended:
            for process in processes:
                before_turn(process.side)
                process.allow()
                if not process.is_over(until):
                    ended.append(process)
            processes.reverse()
        found = {p.side.name: p.answer(max(0.0, until - time.monotonic())) for p in ended}
        if len(found) < len(processes):
            raise Unusable(f"{ended[0].side.name}: {script} took fewer turns than the other side")
        return found


def _file(script: str, scripts: Path | None = None) -> Path:
    return (scripts or SCRIPTS) / f"{script}.py"


def one_after_the_other(run: RunScript) -> RunTurns:
    """Sides that know no turns: each is run whole."""

    def turns(
        order: Sequence[Side], script: str, specification: Answer, timeout_s: float, before_turn: BeforeTurn
    ) -> dict[str, Answer]:
        found = {}
        for side in order:
            before_turn(side)
            found[side.name] = run(side, script, specification, timeout_s)
            before_turn(side)
        return found

    return turns
