"""The run store: one folder per run, written atomically, readable after a crash.

Every file is written beside its place and renamed into it, and the manifest is rewritten whole at each
change of state: a reader sees the old file or the new one, never half of one.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import ValidationError

from engine.errors import InvalidInputError
from workbench.atomic import beside, write_json
from workbench.errors import RunCorruptError
from workbench.manifest import Manifest, RunStatus, TableInfo, TargetInfo, tool_version, utc_now
from workbench.metrics.flat import flat

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

DEFAULT_ROOT = "runs"
ROOT_VARIABLE = "WORKBENCH_RUNS"
MANIFEST = "manifest.json"
METRICS = "metrics.json"
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_TABLE_NAME = re.compile(r"[a-z][a-z0-9_]*")
_METRIC_PARTS = ("window", "latency", "throughput", "counts", "load", "validity")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One line of ``runs list``. ``error`` tells why a folder can't be read (then most fields are empty)."""

    id: str
    path: Path
    created: str = ""
    name: str = ""
    status: str = ""
    target: str = ""
    model: str | None = None
    workload: str = ""
    tags: tuple[str, ...] = ()
    sweep_id: str | None = None
    valid: bool | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Flat names, see :func:`workbench.metrics.flat`."""
    error: str | None = None


class Run:
    """A stored run, opened for reading. Files are read when asked for."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    @property
    def id(self) -> str:
        return self.manifest.id

    def metrics(self, *parts: str) -> dict[str, Any] | None:
        """``metrics.json``, or None when the run has none.

        Args:
            parts: must be in it (``counts``, ``load`` ...).

        Raises:
            RunCorruptError: the file is there but is no JSON object, or one of its parts is none.
        """
        found = _read_json(self.path / METRICS)
        if found is None:
            return None
        for part in _METRIC_PARTS:
            value = found.get(part)
            if not (isinstance(value, dict) or (value is None and part not in parts)):
                raise RunCorruptError(f"{self.path / METRICS}: {part}: not a JSON object")
        return found

    def table(self, name: str) -> pd.DataFrame | None:
        """Table ``name`` (``requests``, ``steps`` ...), or None when the run has none.

        Integer columns are nullable (``Int64``), so stamps never pass through a float.

        Raises:
            InvalidInputError: ``name`` is no table name.
            RunCorruptError: the file can't be read.
        """
        table = self.arrow(name)
        if table is None:
            return None
        frame: pd.DataFrame = table.to_pandas(types_mapper=_nullable().get)
        return frame

    def arrow(self, name: str) -> pa.Table | None:
        """As :meth:`table`, as an Arrow table."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self._table_path(name)
        if not path.is_file():
            return None
        try:
            return pq.read_table(path)
        except (pa.ArrowException, OSError) as error:
            raise RunCorruptError(f"{path}: {error}") from None

    def tables(self) -> list[str]:
        """Names of the tables that lie in the folder."""
        return sorted(path.stem for path in self.path.glob("*.parquet"))

    def _table_path(self, name: str) -> Path:
        if not _TABLE_NAME.fullmatch(name):
            raise InvalidInputError("table", name, "lower-case letters, digits and _")
        return self.path / f"{name}.parquet"


class RunWriter:
    """A run while it is made. Leave it with :meth:`finish`; a crash before leaves a readable folder."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    @property
    def id(self) -> str:
        return self.manifest.id

    def update(self, **changes: Any) -> None:
        """Change fields of the manifest and write it."""
        self.manifest = Manifest.model_validate(self.manifest.model_copy(update=changes).model_dump())
        write_json(self.path / MANIFEST, self.manifest.model_dump(mode="json"))

    def write_table(self, name: str, table: pa.Table, schema_version: int) -> None:
        """Store ``table`` as ``name.parquet`` and note it in the manifest."""
        import pyarrow.parquet as pq

        with beside(self.path / f"{name}.parquet") as place:
            pq.write_table(table, place, compression="zstd")
        self.note_table(name, table.num_rows, schema_version)

    def note_table(self, name: str, rows: int, schema_version: int) -> None:
        """Note in the manifest a table that somebody else wrote."""
        entry = TableInfo(schema_version=schema_version, rows=rows)
        self.update(tables={**self.manifest.tables, name: entry})

    def write_metrics(self, metrics: dict[str, Any]) -> None:
        write_json(self.path / METRICS, metrics)

    def finish(self, status: RunStatus, error: str | None = None, **changes: Any) -> Run:
        self.update(status=status, error=error, **changes)
        return Run(self.path, self.manifest)


class RunStore:
    """All runs under one folder. Sweeps lie beside them and are not touched here."""

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        """``root``: default ``$WORKBENCH_RUNS``, else ``runs/``. Made when first written to."""
        self.root = Path(root or os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT)

    def create(
        self,
        *,
        target: TargetInfo,
        name: str = "",
        tags: list[str] | None = None,
        **fields: Any,
    ) -> RunWriter:
        """Start a run: its folder appears complete with a manifest of status ``running``."""
        import psutil

        self._make_root()
        for _attempt in range(8):
            run_id = new_run_id()
            manifest = Manifest(
                id=run_id,
                created=utc_now(),
                name=name,
                tags=tags or [],
                tool_version=tool_version(),
                target=target,
                pid=os.getpid(),
                pid_created=psutil.Process().create_time(),
                **fields,
            )
            temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=self.root))
            temporary.chmod(0o755)
            write_json(temporary / MANIFEST, manifest.model_dump(mode="json"))
            final = self.root / run_id
            try:
                temporary.rename(final)
            except OSError:
                # The same second and the same random part: take another name.
                shutil.rmtree(temporary, ignore_errors=True)
                continue
            return RunWriter(final, manifest)
        raise RunCorruptError(f"{self.root}: no free name for a new run")

    def adopt(self, files: dict[str, bytes]) -> Run:
        """Take in a run that was exported elsewhere: ``files`` by name, a manifest among them.

        Raises:
            RunCorruptError: its manifest can't be read.
            InvalidInputError: a run of its id is here already, or the id is no folder's name.
        """
        self._make_root()
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=self.root))
        try:
            temporary.chmod(0o755)
            for name, data in files.items():
                (temporary / name).write_bytes(data)
            manifest = _load_manifest(temporary)
            if not _RUN_NAME.fullmatch(manifest.id):
                raise InvalidInputError("id", manifest.id, "letters, digits, _ and - (a folder's name)")
            final = self.root / manifest.id
            if final.exists():
                raise InvalidInputError("id", manifest.id, f"a run that {self.root} does not hold yet")
            temporary.rename(final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return Run(final, manifest)

    def folders(self) -> list[str]:
        """Names of the folders that hold a run, readable or not, oldest first; others are passed over."""
        if not self.root.is_dir():
            return []
        found = []
        for path in sorted(self.root.iterdir()):
            if path.name.startswith(".") or not path.is_dir():
                continue
            if (path / MANIFEST).exists() or any(
                (path / f).exists() for f in (METRICS, "requests.parquet", "server.log")
            ):
                found.append(path.name)
        return found

    def list(self) -> list[RunInfo]:
        """All runs, oldest first. A run that can't be read has ``error``."""
        return [self._info(self.root / name) for name in self.folders()]

    def info(self, run_id: str) -> RunInfo | None:
        """The line of ``list`` for the run in the folder ``run_id``; None when there is no such folder."""
        path = self.root / run_id
        return self._info(path) if path.parent == self.root and path.is_dir() else None

    def open(self, id_or_path: str | os.PathLike[str]) -> Run:
        """Open a run by its id, a unique beginning of it, or its folder.

        Raises:
            InvalidInputError: there is no such run, or more than one.
            RunCorruptError: its manifest can't be read.
        """
        path = self._find(id_or_path)
        return Run(path, _load_manifest(path))

    def remove(self, run_id: str) -> None:
        """Delete a run of this store, readable or not. Folders outside the store are never touched."""
        path = self._find(run_id)
        if path.resolve().parent != self.root.resolve() or (path / "sweep.json").exists():
            raise InvalidInputError("run", run_id, f"a run directly under {self.root}")
        # Renamed first: a half-deleted run never shows up as a corrupt one.
        doomed = self.root / f".removed-{path.name}-{secrets.token_hex(3)}"
        path.rename(doomed)
        shutil.rmtree(doomed)

    def _make_root(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInputError(
                "runs-dir", str(self.root), f"a folder that can be written ({error.strerror})"
            ) from None

    def _find(self, id_or_path: str | os.PathLike[str]) -> Path:
        text = os.fspath(id_or_path)
        if not text:
            raise InvalidInputError("run", text, "a run id or folder")
        if os.sep not in text and text not in (".", ".."):
            if (self.root / text).is_dir():
                return self.root / text
            matches = [p for p in self.root.glob("*") if p.name.startswith(text) and (p / MANIFEST).exists()]
            if len(matches) == 1:
                return matches[0]
            if len(matches) > 1:
                raise InvalidInputError(
                    "run", text, "unique: it is the beginning of " + ", ".join(p.name for p in matches[:4])
                )
        if (Path(text) / MANIFEST).exists():
            return Path(text)
        raise InvalidInputError(
            "run", text, f"the id of a run under {self.root}, or a run's folder (see: workbench runs list)"
        )

    def _info(self, path: Path) -> RunInfo:
        try:
            manifest = _load_manifest(path)
            metrics = _read_json(path / METRICS)
            values = flat(metrics) if metrics else {}
            validity = (metrics or {}).get("validity") or {}
            valid = validity.get("valid") if isinstance(validity, dict) else None
        except RunCorruptError as error:
            return RunInfo(id=path.name, path=path, error=str(error))
        status, note = manifest.status, manifest.error
        if status == "running" and not _alive(manifest):
            status, note = "interrupted", "the process that wrote it is gone"
        return RunInfo(
            id=path.name,
            path=path,
            created=manifest.created,
            name=manifest.name,
            status=status,
            target=manifest.target.kind,
            model=manifest.target.model,
            workload=str(manifest.workload.get("name", "")),
            tags=tuple(manifest.tags),
            sweep_id=manifest.sweep.id if manifest.sweep else None,
            valid=valid if isinstance(valid, bool) else None,
            metrics=values,
            error=note,
        )


def new_run_id() -> str:
    """Sorts by time (UTC)."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        data = path.read_bytes()
        try:
            value = msgspec.json.decode(data)  # a third of the time, which a list of 2,000 runs feels
        except msgspec.DecodeError:
            value = json.loads(data)  # takes NaN
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RunCorruptError(f"{path.name}: {error}") from None
    if not isinstance(value, dict):
        raise RunCorruptError(f"{path.name}: not a JSON object")
    return value


def _load_manifest(path: Path) -> Manifest:
    raw = _read_json(path / MANIFEST)
    if raw is None:
        raise RunCorruptError(f"{path.name}: no {MANIFEST}")
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RunCorruptError(f"{path.name}: {MANIFEST}: {where}: {first['msg']}") from None


def _alive(manifest: Manifest) -> bool:
    import psutil

    if manifest.pid is None:
        return False
    try:
        created = psutil.Process(manifest.pid).create_time()
    except psutil.Error:
        return False
    return manifest.pid_created is None or abs(created - manifest.pid_created) < 1.0


def _nullable() -> dict[Any, Any]:
    import pandas as pd
    import pyarrow as pa

    return {
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
