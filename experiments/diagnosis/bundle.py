"""What a diagnosis looks at: one run's tables as arrays on one time axis, read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from workbench.manifest import Manifest
from workbench.runstore import Run
from workbench.timeline.segments import EngineLife, StepTimes
from workbench.timeline.split import RequestSplit, engine_lives, split_requests, step_times
from workbench.timeline.tables import read_checked

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TABLES = ("requests", "steps", "events", "telemetry_cpu", "telemetry_gpu")
_STAMPS = ("t_start", "t_schedule", "t_prepare", "t_forward", "t_sample", "t_end")
_COUNTS = (
    *("num_prefill_reqs", "num_decode_reqs", "prefill_tokens", "decode_tokens", "prefill_sum_sk"),
    *("prefill_sum_sqsk", "decode_sum_sk", "num_running", "num_waiting", "kv_used", "kv_free", "kv_cached"),
    *("num_preempted", "preempted_tokens", "prefix_query_tokens", "prefix_hit_tokens"),
)


class Steps:
    """Columns of ``steps.parquet`` in order of time. Stamps are float ns from the first step's start (a
    missing one is NaN); ``times`` has the whole numbers.
    """

    def __init__(self, table: pa.Table | None) -> None:
        self.times: StepTimes = step_times(table)
        self.origin_ns = int(self.times.planned.min()) if len(self.times) else 0
        self._columns: dict[str, Floats] = {}
        self.stop: NDArray[np.str_] = np.empty(0, np.str_)
        if table is None:
            return
        order = np.argsort(table["t_end"].to_numpy().astype(np.int64), kind="stable")
        for name in _STAMPS:
            values = [None if v is None else v - self.origin_ns for v in table[name].to_pylist()]
            self._columns[name] = np.array(values, np.float64)[order]
        self._columns["forward"] = self._columns["t_forward"] - self._columns["t_prepare"]
        self._finish_on_device(table, order)
        for name in _COUNTS:
            self._columns[name] = np.array(table[name].to_pylist(), np.float64)[order]
        self.stop = np.array(table["admission_stop"].to_pylist(), np.str_)[order]

    def _finish_on_device(self, table: pa.Table, order: Ints) -> None:
        """A device works beside the host: its forward begins when it was queued and the step before it is
        done, and lasts for the device's own time. ``device_unknown`` marks steps that nobody waited for.
        """
        if "gpu_forward_ns" not in table.column_names or not table["gpu_forward_ns"].null_count < len(table):
            return
        columns = self._columns
        lasted = np.array(table["gpu_forward_ns"].to_pylist(), np.float64)[order]
        before = np.concatenate([[np.nan], columns["t_sample"][:-1]])
        done = np.fmin(np.fmax(columns["t_prepare"], before) + lasted, columns["t_sample"])
        unknown = np.isnan(lasted)
        columns["t_forward"] = np.where(unknown, columns["t_sample"], done)
        columns["forward"] = lasted
        columns["device_unknown"] = unknown.astype(np.float64)

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, name: str) -> Floats:
        return self._columns.get(name, np.empty(0, np.float64))

    @property
    def ids(self) -> Ints:
        return self.times.step_id

    @cached_property
    def duration(self) -> Floats:
        """ns from the moment a step can run to its end."""
        lasting: Floats = (self.times.end - self.times.start).astype(np.float64)
        return lasting

    @cached_property
    def tokens(self) -> Floats:
        return self["prefill_tokens"] + self["decode_tokens"]


@dataclass(frozen=True)
class RunBundle:
    """One run. ``rows`` and ``splits`` are the measured requests; ``lives`` are all that the engine saw."""

    run_id: str
    manifest: Manifest
    rows: Sequence[Mapping[str, Any]]
    splits: Sequence[RequestSplit]
    lives: Sequence[EngineLife]
    steps: Steps
    telemetry: Mapping[str, Sequence[tuple[int, float, str]]]
    """Good samples by name: (t_ns, value, source)."""
    has_events: bool
    all_output_tokens: int
    """Of every request, warm-up included."""
    folder: Path | None = None
    """Where the run is stored."""

    @classmethod
    def of(
        cls,
        run_id: str,
        manifest: Manifest,
        tables: Mapping[str, pa.Table | None],
        folder: Path | None = None,
    ) -> RunBundle:
        requests, events = tables.get("requests"), tables.get("events")
        everything = requests.to_pylist() if requests is not None else []
        steps = Steps(tables.get("steps"))
        lives = engine_lives(events, steps.times)
        measured = [row for row in everything if row["phase"] == "measure"]
        return cls(
            run_id=run_id,
            manifest=manifest,
            rows=measured,
            splits=split_requests(measured, lives),
            lives=[life for many in lives.values() for life in many],
            steps=steps,
            telemetry=_telemetry(tables.get("telemetry_cpu"), tables.get("telemetry_gpu")),
            has_events=events is not None and events.num_rows > 0,
            all_output_tokens=sum(row["output_tokens"] or 0 for row in everything),
            folder=folder,
        )

    @classmethod
    def read(cls, run: Run) -> RunBundle:
        """
        Raises:
            RunCorruptError: a table of the run can't be read.
        """
        return cls.of(run.id, run.manifest, {name: read_checked(run, name) for name in TABLES}, run.path)

    def setting(self, name: str, default: Any = None) -> Any:
        """An engine setting in force; as asked for where the target does not echo; else ``default``."""
        for source in (self.manifest.target.echo, self.manifest.target.requested):
            if source and source.get(name) is not None:
                return source[name]
        return default

    @cached_property
    def traced(self) -> list[RequestSplit]:
        """Measured requests that the engine's trace tells about from beginning to end."""
        return [one for one in self.splits if one.life is not None and one.life.complete]

    @cached_property
    def answered(self) -> list[RequestSplit]:
        """Of those, the ones that got a first token."""
        return [one for one in self.traced if one.first_ns is not None and one.first_parts is not None]

    @cached_property
    def in_flight(self) -> InFlight:
        return InFlight(self.lives)

    @cached_property
    def window(self) -> tuple[int, int]:
        """(first sent, last end) of the measured requests, ns."""
        if not self.splits:
            return (0, 0)
        return min(s.sent_ns for s in self.splits), max(s.end_ns for s in self.splits)

    @cached_property
    def measured_steps(self) -> NDArray[np.bool_]:
        """Steps inside the window."""
        begin, end = self.window
        times = self.steps.times
        return (times.end > begin) & (times.planned < end)

    def samples(self, name: str) -> Floats:
        """Good telemetry values of ``name``, in order of time, inside the window where there are any."""
        begin, end = self.window
        found = self.telemetry.get(name, ())
        inside = [value for t_ns, value, _ in found if begin <= t_ns <= end]
        return np.array(inside or [value for _, value, _ in found], np.float64)


class InFlight:
    """Requests inside the engine at any time: taken by the core and not finished."""

    def __init__(self, lives: Sequence[EngineLife]) -> None:
        begins = [life.taken_ns for life in lives]
        ends = [life.finished_ns for life in lives if life.finished_ns is not None]
        self._begins = np.sort(np.array(begins, np.int64))
        self._ends = np.sort(np.array(ends, np.int64))

    def at(self, t_ns: Ints) -> Ints:
        """Count just after each moment."""
        begun = np.searchsorted(self._begins, t_ns, side="right")
        ended = np.searchsorted(self._ends, t_ns, side="right")
        return (begun - ended).astype(np.int64)


def _telemetry(*tables: pa.Table | None) -> dict[str, list[tuple[int, float, str]]]:
    found: dict[str, list[tuple[int, float, str]]] = {}
    for table in tables:
        for row in table.to_pylist() if table is not None else ():
            if row["value"] is not None:
                found.setdefault(row["name"], []).append((row["t_ns"], row["value"], row["source"]))
    return found
