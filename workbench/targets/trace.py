"""Moves what the builtin engine traced into the run's bundle."""

from __future__ import annotations

import contextlib
from pathlib import Path

from workbench.runstore import RunWriter


def collect_trace(folder: Path, writer: RunWriter) -> list[str]:
    """Bring ``steps.parquet`` and ``events.parquet`` into the bundle, note rows and losses in the manifest.

    A server that was killed leaves streams that are whole up to its last flush: they are finished here.

    Returns:
        Reasons why the trace is not complete; empty when it is.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from engine.trace.tables import TABLES, finalize_trace

    problems: list[str] = []
    try:
        finalize_trace(folder)
    except (OSError, pa.ArrowException) as error:
        problems.append(f"trace: {error}")
    drops = dict(writer.manifest.drops)
    for table in TABLES:
        path = table.parquet_path(folder)
        try:
            metadata = pq.read_metadata(path)
        except FileNotFoundError:
            problems.append(f"trace: the engine left no {table.name}")
            continue
        except (OSError, pa.ArrowException) as error:
            problems.append(f"trace: {path.name}: {error}")
            continue
        facts = metadata.metadata or {}
        dropped = int(facts.get(b"dropped", b"0"))
        if dropped:
            drops[table.name] = dropped
            problems.append(f"trace: {dropped} rows of {table.name} were lost")
        if facts.get(b"complete") == b"false":
            problems.append(f"trace: {table.name} ends early: the engine did not end in order")
        path.replace(writer.path / path.name)
        writer.note_table(table.name, metadata.num_rows, table.version)
    writer.update(drops=drops)
    with contextlib.suppress(OSError):
        folder.rmdir()  # stays when something unexpected lies in it
    return problems
