"""Wanted changes: a file in the head that names what may differ, and why.

.. code-block:: toml

    # .perf-ack.toml
    [[accept]]
    what = "1/mixed/steps"        # tier/name as the gate prints it; * matches anything
    reason = "the new admission rule trades steps for shorter queues"

An entry that the base's file has already is spent: what was accepted once is not accepted for good.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from engine.errors import InvalidInputError
from experiments.gate.models import Finding, GateVerdict
from experiments.models import Frozen

ACK_FILE = ".perf-ack.toml"


class Acceptance(Frozen):
    what: str
    reason: str


def read_acceptances(head: Path, base: Path) -> list[Acceptance]:
    """Entries of ``head`` that ``base`` does not have.

    Raises:
        InvalidInputError: a file that can't be read; a gate must not guess what was accepted.
    """
    spent = _read(base)
    return [entry for entry in _read(head) if entry not in spent]


def _read(path: Path) -> list[Acceptance]:
    if not path.is_file():
        return []
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        unknown = table.keys() - {"accept"}
        if unknown:
            raise InvalidInputError("ack", sorted(unknown)[0], "tables [[accept]] with what and reason")
        entries = [Acceptance.model_validate(entry) for entry in table.get("accept", [])]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError, TypeError) as error:
        line = str(error).splitlines()[0]
        raise InvalidInputError(
            "ack", str(path), f"tables [[accept]] with what and reason ({line})"
        ) from None
    for entry in entries:
        if not entry.reason.strip():
            raise InvalidInputError("ack", entry.what, "a reason beside it")
    return entries


def acknowledge(tier: int, findings: Sequence[Finding], accepted: Sequence[Acceptance]) -> list[Finding]:
    """Turn each FAIL that was accepted into a PASS that shows its reason."""
    return [_acknowledge(tier, finding, accepted) for finding in findings]


def _acknowledge(tier: int, finding: Finding, accepted: Sequence[Acceptance]) -> Finding:
    if finding.verdict is not GateVerdict.FAIL:
        return finding
    for entry in accepted:
        if fnmatch.fnmatchcase(f"{tier}/{finding.name}", entry.what):
            return finding.model_copy(update={"verdict": GateVerdict.PASS, "acknowledged": entry.reason})
    return finding
