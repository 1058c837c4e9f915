"""The diagnosis of a run for its report: ``findings.json``, read as untrusted data."""

from __future__ import annotations

from pydantic import ValidationError

from experiments.diagnosis.models import FINDINGS, FINDINGS_SCHEMA_VERSION, Diagnosis
from workbench.errors import RunCorruptError
from workbench.runstore import Run


def load_findings(run: Run) -> Diagnosis | None:
    """What ``workbench diagnose`` left in the run's folder; None: it was never called.

    Raises:
        RunCorruptError: the file is cut short, of another schema, or no diagnosis at all.
    """
    try:
        found = Diagnosis.model_validate_json((run.path / FINDINGS).read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunCorruptError(f"{run.id}: {FINDINGS}: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or FINDINGS
        raise RunCorruptError(f"{run.id}: {FINDINGS}: {where}: {first['msg']}") from None
    if found.schema_version > FINDINGS_SCHEMA_VERSION:
        raise RunCorruptError(
            f"{run.id}: {FINDINGS} has schema {found.schema_version}, this workbench reads "
            f"{FINDINGS_SCHEMA_VERSION}"
        )
    return found
