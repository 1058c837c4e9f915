"""A capacity search from its question to its answer; written down after every run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.errors import InvalidInputError
from experiments.capacity.models import CapacityResult, CapacitySpec, RateRun
from experiments.capacity.search import Answer, CapacitySearch
from experiments.design import block_seed
from workbench.atomic import write_json
from workbench.manifest import utc_now

CAPACITY_FILE = "capacity.json"
MOST_IN_VAIN = 5
"""Runs one after the other that do not count, before the search gives up."""
BELOW, ABOVE = 0.1, 2.5
"""Range of the search, in shares of the pace of a closed loop, when the user gives none."""
RunRate = Callable[[float, int], RateRun]
"""(requests per second, seed) to what that run said."""


class Capacity:
    """``run_rate`` and ``probe`` are put in: the real ones run a target, tests a queue on paper."""

    def __init__(
        self,
        spec: CapacitySpec,
        root: Path,
        run_rate: RunRate,
        *,
        probe: Callable[[], float] | None = None,
        machine: Callable[[], dict[str, Any]] = dict,
        clock: Callable[[], float] = time.monotonic,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._spec = spec
        self._run_rate = run_rate
        self._probe = probe
        self._machine = machine
        self._clock = clock
        self._say = say
        self._created = utc_now()
        self._runs: list[RateRun] = []
        self._range: tuple[float, float] | None = None
        self._folder = root / f"capacity-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"

    def run(self) -> CapacityResult:
        """Ends with a readable ``capacity.json`` whatever happens."""
        try:
            self._folder.mkdir(parents=True)
        except OSError as error:
            allowed = f"a folder that can be written ({error.strerror})"
            raise InvalidInputError("runs-dir", str(self._folder.parent), allowed) from None
        start, search = self._clock(), None
        status, answer = "failed", Answer("unknown")
        try:
            self._range = self._find_range()
            search = CapacitySearch(*self._range, self._spec.tolerance)
            status = self._search(search, start)
        except KeyboardInterrupt:
            status = "interrupted"
        finally:
            if search is not None:
                answer = search.answer()
            result = self._write(status, answer, start)
        return result

    def _find_range(self) -> tuple[float, float]:
        low, high = self._spec.lowest, self._spec.highest
        if low is None or high is None:
            if self._probe is None:
                raise InvalidInputError("lowest", low, "given: nothing tells the range")
            pace = self._probe()
            self._say(f"a closed loop is served at {pace:.3g} requests/s")
            low, high = low or pace * BELOW, high or pace * ABOVE
        if not low < high:
            raise InvalidInputError("lowest", low, f"below the highest rate, {high:.4g}")
        return low, high

    def _search(self, search: CapacitySearch, start: float) -> str:
        in_vain = 0
        while not search.done:
            if len(self._runs) >= self._spec.max_runs:
                return "budget"
            spent, done = self._clock() - start, len(self._runs)
            longest = spent / done if done else 0.0
            if self._spec.budget_s is not None and done and spent + longest > self._spec.budget_s:
                return "budget"
            found = self._run_rate(search.next_rate(), block_seed(self._spec.seed, len(self._runs)))
            self._runs.append(found)
            self._say(f"{found.rate:8.3f} requests/s  {found.state:<6} {found.reason}")
            if found.state in ("PASSED", "MISSED"):
                in_vain = 0
                search.tell(found.rate, found.state == "PASSED")
            else:
                in_vain += 1
                if in_vain >= MOST_IN_VAIN:
                    return "budget" if search.answer().where == "rate" else "failed"
            self._write("running", search.answer(), start)
        return "complete"

    def _write(self, status: str, answer: Answer, start: float) -> CapacityResult:
        low, high = self._range or (self._spec.lowest, self._spec.highest)
        result = CapacityResult(
            id=self._folder.name,
            created=self._created,
            status=status,
            answer=answer.where,
            rate=answer.rate,
            low=answer.low,
            high=answer.high,
            text=answer_text(self._spec, answer, low, high),
            lowest=low,
            highest=high,
            spec=self._spec,
            runs=self._runs,
            machine=self._machine(),
            seconds=round(self._clock() - start, 3),
        )
        write_json(self._folder / CAPACITY_FILE, result.model_dump(mode="json"))
        return result


def answer_text(spec: CapacitySpec, answer: Answer, low: float | None, high: float | None) -> str:
    """One sentence."""
    goal = f"{spec.target_ratio:.0%} of the requests within {spec.slo}"
    if answer.where == "rate" and answer.rate is not None:
        span = f"{answer.rate:.4g} requests/s [{answer.low:.4g}, {answer.high:.4g}]"
        return f"{goal}: up to {span} on {spec.workload}"
    if answer.where == "below the lowest tried":
        return f"{goal}: not even at the lowest rate tried, {low:.4g} requests/s"
    if answer.where == "above the highest tried":
        return f"{goal}: still at the highest rate tried, {high:.4g} requests/s: it lies above"
    return f"{goal}: not known yet"
