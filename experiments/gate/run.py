"""A gate from two revisions to a verdict. Fail-closed: whatever could not be measured is UNUSABLE, never a
pass."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import InvalidInputError
from experiments.gate.ack import ACK_FILE, Acceptance, acknowledge, read_acceptances
from experiments.gate.arms import (
    check_folder,
    code_changed,
    commit_of,
    export_revision,
    python_for,
    repository_of,
)
from experiments.gate.decision import Rule
from experiments.gate.models import EXIT_CODES, GateResult, GateVerdict, Side, Tier, Unusable
from experiments.gate.scripts_runner import RunScript, RunTurns, run_script, run_turns
from experiments.gate.tier0 import run_tier0
from experiments.gate.tier1 import run_tier1
from experiments.gate.tier2 import run_tier2
from workbench.manifest import machine_info, tool_version, utc_now

_ORDER = (GateVerdict.FAIL, GateVerdict.UNUSABLE, GateVerdict.INCONCLUSIVE, GateVerdict.PASS)


@dataclass(frozen=True)
class GateRequest:
    """What to compare. Either two revisions or two folders.

    Attributes:
        out: folder of the results; exported trees go into ``out/trees``.
        ack: acknowledgement file in the head; None: ``.perf-ack.toml`` in its folder.
        even_if_unchanged: measure the wall clock also when no code differs.
    """

    out: Path
    base: str | None = None
    head: str | None = None
    base_dir: Path | None = None
    head_dir: Path | None = None
    tiers: tuple[int, ...] = (0, 1, 2)
    model: str = "smollm2-135m"
    engine: Mapping[str, Any] = field(default_factory=dict)
    ack: Path | None = None
    seed: int = 0
    even_if_unchanged: bool = False
    rule: Rule = field(default_factory=Rule)


class Gate:
    """Runs a request; scripts and control kernel are put in by tests."""

    def __init__(
        self,
        request: GateRequest,
        *,
        run: RunScript = run_script,
        turns: RunTurns = run_turns,
        control: Callable[[], float] | None = None,
        say: Callable[[str], None] = lambda _text: None,
        python: Callable[[str, Path, Path], str] | None = None,
    ) -> None:
        """``python``: finds the Python of a side, as :func:`experiments.gate.arms.python_for` does."""
        self._request = request
        self._python = python or python_for
        self._run = run
        self._turns = turns
        self._control = control
        self._say = say
        self._built = 0

    def result(self) -> GateResult:
        """Raises:
        InvalidInputError: the request makes no sense (exit 2); everything else is a verdict.
        """
        start, request = time.monotonic(), self._request
        request.out.mkdir(parents=True, exist_ok=True)
        try:
            sides = self._build()
        except Unusable as error:
            names = [Side(name=n, revision=None, commit=None, folder="", python="") for n in ("base", "head")]
            return self._sum_up(names[0], names[1], [_unusable(t, str(error)) for t in request.tiers], start)
        base, head = sides
        accepted = read_acceptances(request.ack or Path(head.folder) / ACK_FILE, Path(base.folder) / ACK_FILE)
        tiers: list[Tier] = []
        for tier in request.tiers:
            broken = any(t.tier == 0 and t.verdict is GateVerdict.FAIL for t in tiers)
            if broken:
                tiers.append(_skipped(tier, "the outputs differ: nothing else is comparable"))
                continue
            self._say(f"tier {tier}")
            tiers.append(self._tier(tier, sides, accepted))
            self._say(f"tier {tier}: {tiers[-1].verdict} ({tiers[-1].reason})")
        return self._sum_up(base, head, tiers, start)

    def _tier(self, tier: int, sides: tuple[Side, Side], accepted: Sequence[Acceptance]) -> Tier:
        request, (base, head) = self._request, sides
        engine = {"model": request.model, **request.engine}
        try:
            if tier == 0:
                found = run_tier0(base, head, self._run, request.model, dict(request.engine))
            elif tier == 1:
                found = run_tier1(base, head, self._run)
            elif not request.even_if_unchanged and not code_changed(Path(base.folder), Path(head.folder)):
                return _skipped(2, "no code differs")
            else:
                found = run_tier2(
                    sides, self._build, self._turns, engine, rule=request.rule, control=self._control,
                    seed=request.seed, say=self._say,
                )  # fmt: skip
        except Unusable as error:
            return _unusable(tier, str(error))
        return _with_acceptances(found, accepted)

    def _build(self) -> tuple[Side, Side]:
        """Both sides, new: exported trees are never used twice."""
        self._built += 1
        request = self._request
        if request.base_dir is not None and request.head_dir is not None:
            return (
                self._side("base", check_folder("base-dir", request.base_dir), None, None),
                self._side("head", check_folder("head-dir", request.head_dir), None, None),
            )
        if request.base is None:
            raise InvalidInputError("base", None, "a revision, or --base-dir with --head-dir")
        repository = repository_of(Path.cwd())
        base = self._exported("base", repository, request.base)
        if request.head is None:
            return base, self._side("head", check_folder("head", repository), None, None)
        return base, self._exported("head", repository, request.head)

    def _exported(self, name: str, repository: Path, revision: str) -> Side:
        folder = self._request.out / "trees" / f"{name}-{time.time_ns()}"
        commit = export_revision(repository, revision, folder)
        if not (folder / "engine" / "__init__.py").is_file():
            raise Unusable(f"{name}: {revision} has no engine: no baseline")
        return self._side(name, folder.resolve(), revision, commit)

    def _side(self, name: str, folder: Path, revision: str | None, commit: str | None) -> Side:
        python = self._python(f"{name}-{self._built}", folder, self._request.out)
        return Side(
            name=name,
            revision=revision,
            commit=commit or commit_of(folder),
            folder=str(folder),
            python=python,
        )

    def _sum_up(self, base: Side, head: Side, tiers: list[Tier], start: float) -> GateResult:
        found = [tier.verdict for tier in tiers]
        verdict = next((v for v in _ORDER if v in found), GateVerdict.SKIPPED)
        decisive = [f"tier {tier.tier}: {tier.reason}" for tier in tiers if tier.verdict is verdict]
        return GateResult(
            created=utc_now(),
            base=base,
            head=head,
            verdict=verdict,
            exit_code=EXIT_CODES[verdict],
            reason="; ".join(decisive),
            tiers=tiers,
            machine=machine_info(),
            tool_version=tool_version(),
            command=list(sys.argv),
            seconds=round(time.monotonic() - start, 3),
        )


def _with_acceptances(tier: Tier, accepted: Sequence[Acceptance]) -> Tier:
    if tier.verdict is not GateVerdict.FAIL:
        return tier
    findings = acknowledge(tier.tier, tier.findings, accepted)
    if any(finding.verdict is GateVerdict.FAIL for finding in findings):
        return tier.model_copy(update={"findings": findings})
    return tier.model_copy(
        update={"findings": findings, "verdict": GateVerdict.PASS, "reason": tier.reason + ", acknowledged"}
    )


def _unusable(tier: int, reason: str) -> Tier:
    return Tier(tier=tier, verdict=GateVerdict.UNUSABLE, reason=reason)


def _skipped(tier: int, reason: str) -> Tier:
    return Tier(tier=tier, verdict=GateVerdict.SKIPPED, reason=reason)
