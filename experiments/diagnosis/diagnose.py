"""All families over one run: vet the data, ask each, put the costliest finding first."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from experiments.diagnosis.bundle import RunBundle
from experiments.diagnosis.cache import diagnose_cache
from experiments.diagnosis.checks import vet
from experiments.diagnosis.context import diagnose_context
from experiments.diagnosis.gaps import diagnose_gaps
from experiments.diagnosis.models import FINDINGS, Diagnosis, Family, Finding
from experiments.diagnosis.preemption import diagnose_preemption
from experiments.diagnosis.queueing import diagnose_queueing
from experiments.diagnosis.workload_file import write_workload
from workbench.atomic import write_json
from workbench.runstore import Run

logger = logging.getLogger(__name__)

_DWARFED = 4.0


def diagnose(bundle: RunBundle, references: Sequence[RunBundle] = ()) -> Diagnosis:
    """Diagnose ``bundle``.

    Args:
        references: other runs of the same load: a healthy baseline, or the cache switched off.
    """
    vetting = vet(bundle)
    baseline = references[0] if references else None
    findings = [
        diagnose_queueing(bundle, vetting),
        diagnose_gaps(bundle, vetting, baseline),
        diagnose_context(bundle, vetting),
        diagnose_cache(bundle, references),
        diagnose_preemption(bundle, vetting),
    ]
    return Diagnosis(
        run=bundle.run_id,
        against=[one.run_id for one in references],
        checks=vetting.checks,
        findings=sorted(findings, key=lambda one: _rank(one, findings)),
    )


def diagnose_run(
    run: Run, references: Sequence[Run] = (), complain: Callable[[str], None] = logger.warning
) -> Diagnosis:
    """Read, diagnose, and leave ``findings.json`` in the run's folder, with the traffic of the experiments
    that it proposes where no preset names it (``workload.toml``).

    Args:
        complain: told, in a line, when the folder can't be written.

    Raises:
        RunCorruptError: a table can't be read.
    """
    bundle = RunBundle.read(run)
    found = diagnose(bundle, [RunBundle.read(one) for one in references])
    try:
        if found.top is not None:
            write_workload(bundle)
        write_json(run.path / FINDINGS, found.model_dump(mode="json"))
    except OSError as error:
        # A store that others own may be read-only: the verdict is worth as much.
        complain(f"{FINDINGS} is not stored: {error.strerror or error}")
    return found


def _rank(finding: Finding, findings: Sequence[Finding]) -> tuple[int, float]:
    """Wrong results before slow ones, causes before their consequences, then by share of the time."""
    if finding.verdict == "abstain" or finding.effect is None:
        return (3, 0.0)
    if finding.family is Family.CACHE_CORRECTNESS:
        return (0, -finding.effect.share)
    follows = finding.family is Family.QUEUEING and any(_explains(other, finding) for other in findings)
    return (2 if follows else 1, -finding.effect.share)


def _explains(preemption: Finding, queueing: Finding) -> bool:
    """A queue for KV blocks follows from the preemption, unless both have the same cause and the queue is by
    far the costlier.
    """
    if preemption.family is not Family.PREEMPTION or preemption.effect is None or queueing.effect is None:
        return False
    dwarfed = queueing.effect.share > _DWARFED * preemption.effect.share
    return queueing.cause == "kv_blocks" and not (preemption.cause == "kv_blocks" and dwarfed)
