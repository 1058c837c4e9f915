"""``schedule.json``: the design and everything that decides it, on the disk before the first run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine.errors import InvalidInputError
from experiments.models import Cell, Frozen
from experiments.spec import SweepSpec
from workbench.atomic import write_json

SCHEDULE_FILE = "schedule.json"
SWEEP_FILE = "sweep.json"
SCHEDULE_SCHEMA_VERSION = 1


class StoredSchedule(Frozen):
    """``fingerprint``: facts outside the spec that decide a measurement (code revision, tool version,
    machine)."""

    schema_version: int = SCHEDULE_SCHEMA_VERSION
    id: str
    created: str
    spec: SweepSpec
    fingerprint: dict[str, Any]
    cells: list[Cell]


def write_schedule(folder: Path, schedule: StoredSchedule) -> None:
    write_json(folder / SCHEDULE_FILE, schedule.model_dump(mode="json"))


def read_schedule(folder: Path) -> StoredSchedule:
    """Raises:
    InvalidInputError: there is none, or it can't be read.
    """
    path = folder / SCHEDULE_FILE
    try:
        return StoredSchedule.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise InvalidInputError("sweep", str(folder), "the id or folder of a sweep") from None
    except (OSError, ValidationError) as error:
        raise InvalidInputError("sweep", str(path), f"a readable schedule ({type(error).__name__})") from None


def check_fingerprint(stored: StoredSchedule, now: Mapping[str, Any]) -> None:
    """Refuse to mix measurements of different things in one sweep.

    Raises:
        InvalidInputError: naming the first fact that has changed since the sweep was started.
    """
    for name in stored.fingerprint.keys() | now.keys():
        before, after = stored.fingerprint.get(name), now.get(name)
        if before != after:
            raise InvalidInputError(
                name, after, f"as when the sweep was started ({before!r}); start a new sweep"
            )
