"""Experiment files: a question with hypothesis, design and stopping rule, written down before it is asked.

``workbench sweep chunk-size`` runs a shipped one, ``workbench sweep mine.toml`` your own. What the command
line says besides replaces what the file says.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine.errors import InvalidInputError
from experiments.factors import REGISTRY, FactorExpectation
from experiments.models import Frozen

FOLDER = Path(__file__).parent


class ExperimentFile(Frozen):
    """The keys of an experiment file; all but ``factor`` and ``question`` have the sweep's defaults."""

    question: str
    factor: str
    levels: list[Any] | None = None
    baseline: Any = None
    metric: str | None = None
    delta: str | None = None
    workload: str | None = None
    slo: str | None = None
    request_rate: float | None = None
    num_prompts: int | None = None
    utilisation: float | None = None
    blocks: int | None = None
    """The stopping rule: this many blocks ..."""
    budget: str | None = None
    """... or what this much time holds, whichever comes first."""
    confirm: int | None = None
    pilot: int | None = None
    across: str | None = None
    search: str | None = None
    seed: int | None = None
    target: str | None = None
    target_command: str | None = None
    target_args: str | None = None
    hypothesis: list[FactorExpectation] | None = None
    """Default: the factor's own expectations."""
    engine: dict[str, Any] | None = None
    """Settings of all levels."""


def read_experiment(name: str) -> ExperimentFile:
    """A path, or the name of a shipped file.

    Raises:
        InvalidInputError: there is none, or a key in it is unknown or wrong.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file() or path == REGISTRY:
        known = ", ".join(shipped_experiments())
        raise InvalidInputError("file", name, f"an experiment file (.toml), or one of {known}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return ExperimentFile.model_validate(table)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidInputError("file", str(path), f"a readable TOML file ({error})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidInputError("file", f"{path.name}: {where}", first["msg"]) from None


def shipped_experiments() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml") if path != REGISTRY)
