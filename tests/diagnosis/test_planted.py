"""Every planted fault gets its verdict, and nobody else is accused."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from engine.config import EngineConfig
from experiments.diagnosis.models import Diagnosis, Finding
from experiments.factors import load_factors
from experiments.request import SweepRequest, make_spec
from tests.diagnosis.cases import CASES, Case, run_case
from tests.diagnosis.confusion import table

NAMES = [case.name for case in CASES]
DOCS = Path(__file__).parents[2] / "docs" / "diagnosis.md"


@cache
def diagnosed(index: int) -> Diagnosis:
    return run_case(CASES[index])


def check(case: Case, found: Diagnosis) -> None:
    top = found.top
    got = (top.family.value, top.cause) if top else (None, None)
    assert got == (case.family, case.cause), [f.claim for f in found.findings]
    others = {f.family.value for f in found.findings[1:] if f.verdict == "finding"}
    assert others <= case.also
    if case.says:
        assert any(case.says in f.claim for f in found.findings), [f.claim for f in found.findings]


@pytest.mark.parametrize("index", range(len(CASES)), ids=NAMES)
def test_verdict(index):
    check(CASES[index], diagnosed(index))


@pytest.mark.parametrize("index", range(len(CASES)), ids=NAMES)
def test_verdict_does_not_hang_on_the_noise(index):
    case = CASES[index]
    world = replace(case.world, seed=11, noise=0.03)
    check(case, run_case(replace(case, world=world)))


@pytest.mark.parametrize("index", range(len(CASES)), ids=NAMES)
def test_a_finding_is_complete_and_an_abstention_says_why(index):
    families = [finding.family.value for finding in diagnosed(index).findings]
    assert sorted(families) == [
        *("accelerator_gaps", "cache_correctness", "context_scaling", "preemption", "queueing")
    ]
    for finding in diagnosed(index).findings:
        assert len(finding.claim) > 15
        if finding.verdict == "abstain":
            assert (finding.effect, finding.next, finding.confidence) == (None, None, "none")
        else:
            complete(finding, CASES[index])


def complete(finding: Finding, case: Case) -> None:
    assert finding.effect is not None
    assert 0.0 < finding.effect.share <= 1.0
    assert finding.evidence
    assert any(one.rows for one in finding.evidence)
    assert finding.rivals
    assert finding.confidence in ("high", "medium", "low")
    words = shlex.split(finding.next or "")
    assert words[:3] == ["workbench", "sweep", "--param"]
    flags = dict(zip(words[2::2], words[3::2], strict=False))
    factor = load_factors()[flags["--param"]]
    if finding.cause == case.cause:
        assert factor.name == case.sweeps
    in_force = EngineConfig.create(**case.world.engine).model_dump()[factor.field]
    baseline = factor.parse(flags["--baseline"])
    assert baseline == in_force or in_force is None


@pytest.mark.parametrize("index", [i for i, case in enumerate(CASES) if case.family], ids=str)
def test_the_next_experiment_is_a_sweep_that_can_be_planned(index):
    top = diagnosed(index).top
    assert top is not None
    assert top.next is not None
    make_sweep(top.next)


def make_sweep(line: str) -> None:
    """As the command line would; raises what it would refuse."""
    words = shlex.split(line)[2:]
    request, engine = {}, {}
    while words:
        name = words.pop(0).removeprefix("--").replace("-", "_")
        if name.startswith("no_") and name.removeprefix("no_") in EngineConfig.model_fields:
            engine[name.removeprefix("no_")] = False
        elif name in EngineConfig.model_fields and isinstance(EngineConfig.model_fields[name].default, bool):
            engine[name] = True
        elif name in EngineConfig.model_fields:
            value = words.pop(0)
            engine[name] = int(value) if value.lstrip("-").isdigit() else value
        else:
            request[name] = words.pop(0)
    spec = make_spec(SweepRequest(**request), engine)
    assert len(spec.levels) >= 2
    assert spec.baseline in spec.levels


def test_the_confusion_table_in_the_docs_is_this_one():
    assert table([diagnosed(i) for i in range(len(CASES))]) in DOCS.read_text(encoding="utf-8")


def test_there_are_enough_cases_of_every_kind():
    families = [case.family for case in CASES]
    assert len(CASES) >= 20
    assert len(set(families) - {None}) == 5
    assert sum(bool(case.rival) for case in CASES) >= 8
    assert sum(family is None for family in families) >= 8
