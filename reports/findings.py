"""The diagnosis of a run for its report: ``findings.json``, read as untrusted data."""

from __future__ import annotations

from experiments.diagnosis.models import FINDINGS, FINDINGS_SCHEMA_VERSION, Diagnosis
from reports.documents import read_document
from workbench.runstore import Run


def load_findings(run: Run) -> Diagnosis | None:
    """What ``workbench diagnose`` left in the run's folder; None: it was never called.

    Raises:
        RunCorruptError: the file is cut short, of another schema, or no diagnosis at all.
    """
    path = run.path / FINDINGS
    return read_document(path, Diagnosis, FINDINGS_SCHEMA_VERSION) if path.exists() else None
