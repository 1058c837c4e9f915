"""The traffic of a run as ``--workload`` takes it: a preset's name, or a file in the run's own folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.diagnosis.bundle import RunBundle
from workbench.atomic import write_text
from workloads import WorkloadError, WorkloadSpec, load_workload, preset_names

WORKLOAD_FILE = "workload.toml"


def stored_workload(bundle: RunBundle) -> WorkloadSpec | None:
    """The spec that the manifest has; None where it has none that can be built (an imported run)."""
    fields = {name: value for name, value in bundle.manifest.workload.items() if name != "sha256"}
    try:
        return WorkloadSpec.create(fields) if fields else None
    except WorkloadError:
        return None


def workload_argument(bundle: RunBundle) -> str | None:
    """What to say after ``--workload`` for the same traffic; None: it can't be named."""
    spec = stored_workload(bundle)
    if spec is None:
        return None
    if spec.name in preset_names() and load_workload(spec.name).sha256 == spec.sha256:
        return spec.name
    return None if bundle.folder is None else _short(bundle.folder / WORKLOAD_FILE)


def write_workload(bundle: RunBundle) -> None:
    """Leave the file that :func:`workload_argument` names, where it names one."""
    spec, argument = stored_workload(bundle), workload_argument(bundle)
    if spec is not None and bundle.folder is not None and argument and argument.endswith(WORKLOAD_FILE):
        write_text(bundle.folder / WORKLOAD_FILE, as_toml(spec))


def as_toml(spec: WorkloadSpec) -> str:
    """The whole spec, a field a line; a data file that it reads is named by its full path, because relative
    paths in a file start at that file.
    """
    fields = spec.model_dump(mode="json", exclude_none=True)
    source = fields.get("source")
    if isinstance(source, dict) and isinstance(source.get("path"), str):
        source["path"] = str(Path(source["path"]).absolute())
    return "".join(f"{name} = {_toml(value)}\n" for name, value in fields.items())


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_toml(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    # A JSON string, number or boolean is one in TOML, too, but for one character and pairs of surrogates.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _short(path: Path) -> str:
    """From the current folder where it lies below it."""
    whole = path.absolute()
    here = Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else whole)
