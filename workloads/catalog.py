"""Workloads by name (shipped TOML files) or by path (the user's)."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path

from workloads.errors import WorkloadError
from workloads.spec import WorkloadSpec

DEFAULT_SWEEP_PRESET = "chat-and-documents"


def preset_names() -> list[str]:
    """Names of the shipped presets."""
    folder = files("workloads") / "presets"
    return sorted(
        entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")
    )


def load_workload(name_or_path: str) -> WorkloadSpec:
    """A shipped preset by name, or a ``.toml`` file by path.

    Raises:
        WorkloadError: no such preset or file, or it is no valid workload.
    """
    if name_or_path in preset_names():
        text = (files("workloads") / "presets" / f"{name_or_path}.toml").read_text(encoding="utf-8")
        return _parse(text, name_or_path, name_or_path)
    path = Path(name_or_path)
    if path.suffix != ".toml":
        raise WorkloadError(
            "workload", name_or_path, f"one of {', '.join(preset_names())}, or the path of a .toml file"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise WorkloadError("workload", name_or_path, f"a readable .toml file ({reason})") from None
    return _parse(text, path.stem, name_or_path, path.parent)


def _parse(text: str, name: str, source: str, folder: Path | None = None) -> WorkloadSpec:
    """``folder``: where the file lies; a ``path`` inside it that is relative starts there."""
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise WorkloadError("workload", source, f"valid TOML ({error})") from None
    fields.setdefault("name", name)
    inner = fields.get("source")
    if folder is not None and isinstance(inner, dict) and isinstance(inner.get("path"), str):
        inner["path"] = str(folder / inner["path"])
    return WorkloadSpec.create(fields)
