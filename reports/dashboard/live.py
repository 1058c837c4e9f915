"""What is going on in the store right now: runs, sweeps and capacity searches that are being written.

Reads what a bench leaves on the disk while it lasts: the manifest, and the engine's trace as a growing stream
of record batches. Nothing is locked, mended or finished here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from engine.trace.tables import EVENTS, STEPS, TraceTable
from experiments.ledger import LEDGER
from experiments.models import Cell
from experiments.schedule import SCHEDULE_FILE, StoredSchedule
from workbench.manifest import Manifest

_MOST_BYTES = 256 * 2**20
_MEASURED, _WARMUP = re.compile(r"-m\d+$"), re.compile(r"-w\d+$")
_PHASES = ("schedule_ms", "prepare_ms", "forward_ms", "sample_ms", "output_ms")
RECENT_S = 10.0


@dataclass(frozen=True)
class RunProgress:
    """A run while it lasts. ``None`` where nothing tells it yet."""

    phase: str
    """starting | warming up | sending | complete | interrupted | failed"""
    elapsed_s: float | None
    planned: int | None
    finished: int
    running: int | None
    waiting: int | None
    recent_tok_s: float | None
    """Output tokens per second over the last seconds of the trace."""
    eta_s: float | None
    steps: pd.DataFrame | None
    """All steps so far, with the columns that the step strips need; seconds from the start of the run."""
    note: str = ""


def run_progress(folder: Path, manifest: Manifest, now_ns: int) -> RunProgress:
    """Look at the run in ``folder``; ``now_ns``: wall clock."""
    start = manifest.clock[0] if manifest.clock else None
    elapsed = max(0.0, (now_ns - start.wall_ns) / 1e9) if start is not None else None
    planned = manifest.load.get("num_requests")
    planned = planned if isinstance(planned, int) and not isinstance(planned, bool) else None
    steps, note = _stream(folder, STEPS)
    events, _ = _stream(folder, EVENTS)
    phase: str = manifest.status
    if steps is None or events is None or start is None:
        text = note or "The engine has left no trace yet. An attached server never does: wait for the end."
        phase = "starting" if phase == "running" else phase
        return RunProgress(phase, elapsed, planned, 0, None, None, None, None, None, text)
    frame = _seconds(steps, start.monotonic_ns)
    done = events.filter(pc.equal(events["kind"], "finished"))["request_id"].to_pylist()
    measured = [name for name in done if _MEASURED.search(name or "")]
    seen = events["request_id"].to_pylist()
    sending = any(_MEASURED.search(name or "") for name in seen)
    if phase == "running":
        warm = any(_WARMUP.search(name or "") for name in seen)
        phase = "sending" if sending else ("warming up" if warm else "starting")
    last = frame.iloc[-1] if len(frame) else None
    return RunProgress(
        phase=phase,
        elapsed_s=elapsed,
        planned=planned,
        finished=len(measured),
        running=int(last["num_running"]) if last is not None else None,
        waiting=int(last["num_waiting"]) if last is not None else None,
        recent_tok_s=_recent(frame),
        eta_s=_eta(events, len(measured), planned, start.monotonic_ns, elapsed),
        steps=frame if len(frame) else None,
    )


def _stream(folder: Path, table: TraceTable) -> tuple[pa.Table | None, str]:
    """Whole batches of a growing stream; None when there is none (yet)."""
    path = table.stream_path(folder / "trace")
    batches: list[pa.RecordBatch] = []
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            return None, "The trace leads out of the run's folder; it is not read."
        if path.stat().st_size > _MOST_BYTES:
            return None, f"The trace is larger than {_MOST_BYTES >> 20} MiB; it is not followed."
        with pa.OSFile(str(path)) as source:
            reader = pa.ipc.open_stream(source)
            if reader.schema != table.schema:
                return None, "The trace has another schema than this version's."
            while True:
                batches.append(reader.read_next_batch())
    except StopIteration:
        pass
    except FileNotFoundError:
        return None, ""
    except (pa.ArrowException, OSError):
        pass  # cut in the middle of a batch: the rest comes with the next look
    return pa.Table.from_batches(batches, table.schema), ""


def _seconds(steps: pa.Table, origin_ns: int) -> pd.DataFrame:
    frame: pd.DataFrame = steps.to_pandas()
    frame["start_s"] = (frame["t_start"] - origin_ns) / 1e9
    frame["end_s"] = (frame["t_end"] - origin_ns) / 1e9
    marks = ["t_start", "t_schedule", "t_prepare", "t_forward", "t_sample", "t_end"]
    for phase, before, after in zip(_PHASES, marks, marks[1:], strict=False):
        frame[phase] = (frame[after] - frame[before]) / 1e6
    frame["step_ms"] = (frame["t_end"] - frame["t_start"]) / 1e6
    return frame


def _recent(steps: pd.DataFrame) -> float | None:
    """Decoded tokens per second over the last ``RECENT_S`` of the trace."""
    if steps.empty:
        return None
    end = float(steps["end_s"].iloc[-1])
    part = steps[steps["end_s"] > end - RECENT_S]
    width = end - float(part["start_s"].iloc[0])
    return float(part["decode_tokens"].fillna(0).sum()) / width if width > 0 else None


def _eta(
    events: pa.Table, finished: int, planned: int | None, origin_ns: int, elapsed: float | None
) -> float | None:
    """Seconds left at the pace of the measured requests that have finished; None below three of them."""
    if planned is None or elapsed is None or finished < 3 or finished >= planned:
        return None
    queued = events.filter(pc.equal(events["kind"], "queued"))
    pairs = zip(queued["request_id"].to_pylist(), queued["t_ns"].to_pylist(), strict=True)
    first = next((t for name, t in pairs if _MEASURED.search(name or "")), None)
    if first is None:
        return None
    spent = elapsed - (first - origin_ns) / 1e9
    return spent / finished * (planned - finished) if spent > 0 else None


@dataclass(frozen=True)
class SweepProgress:
    """A sweep while it lasts: the cells of its schedule and what the ledger says of them."""

    id: str
    factor: str
    done: int
    planned: int
    current: str
    """What runs now, in words; empty between two runs."""
    eta_s: float | None
    """At the pace of the runs so far, cut to what is left of the budget."""
    cells: list[Cell]
    """Finished cells in the order in which they ran."""
    quiet_s: float
    """Since the ledger's last line."""


def sweep_progress(folder: Path, now_s: float) -> SweepProgress | None:
    """Read schedule and ledger of the sweep in ``folder``; None when there is no readable schedule."""
    try:
        if any(not (folder / n).resolve().is_relative_to(folder.resolve()) for n in (SCHEDULE_FILE, LEDGER)):
            return None
        stored = StoredSchedule.model_validate_json((folder / SCHEDULE_FILE).read_bytes())
        lines = (folder / LEDGER).read_text(encoding="utf-8").splitlines()
        quiet = max(0.0, now_s - (folder / LEDGER).stat().st_mtime)
    except (OSError, ValueError, ValidationError):
        return None
    planned = len(stored.cells)
    cells: list[Cell] = []
    current = ""
    for line in lines:
        entry = _entry(line)
        try:
            if entry.get("event") == "planned":
                planned += len(entry["cells"])
            elif entry.get("event") == "started":
                phase, block, _ = entry["cell"]
                current = f"{'block' if phase == 'sweep' else phase} {block}, level {entry['level']}"
            elif entry.get("event") == "finished":
                cells.append(Cell.model_validate(entry["cell"]))
                current = ""
        except (KeyError, TypeError, ValueError, ValidationError):
            continue  # a line of another version: the rest can still be followed
    return SweepProgress(
        id=folder.name,
        factor=stored.spec.factor,
        done=len(cells),
        planned=planned,
        current=current,
        eta_s=_sweep_eta(cells, planned, stored, now_s),
        cells=cells,
        quiet_s=quiet,
    )


def _entry(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _sweep_eta(cells: list[Cell], planned: int, stored: StoredSchedule, now_s: float) -> float | None:
    times = [cell.seconds for cell in cells if cell.seconds]
    if not times or planned <= len(cells):
        return None
    left = sum(times) / len(times) * (planned - len(cells))
    try:
        begun = datetime.fromisoformat(stored.created).timestamp()
    except ValueError:
        return left
    if stored.spec.budget_s is not None:
        left = min(left, max(0.0, stored.spec.budget_s - (now_s - begun)))
    return left


def clock(seconds: float) -> str:
    """``75`` → ``1:15``."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
