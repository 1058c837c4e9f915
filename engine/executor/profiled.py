"""An executor that can be watched by torch.profiler for a few steps. Costs nothing until it is asked to.

The window is bounded in steps and in time. It begins and ends on the thread that executes; the export, which
takes seconds, happens on a thread of its own while steps go on. The result is a Kineto trace and, beside it,
what it should hold (``.meta.json``): the steps, and a pair of clocks.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from engine.errors import InvalidInputError
from engine.executor.base import Executor, Watched, pipelined
from engine.executor.limits import MAX_SECONDS, MAX_STEPS
from engine.plan import StepPlan, StepResult

T = TypeVar("T")

logger = logging.getLogger(__name__)

PROFILE_FOLDER = "profile"
MAX_BYTES = 256 << 20
"""A trace larger than this is not kept: its file says so."""
EXPORT_WAIT_S = 20.0
"""What an export may still take when the engine shuts down."""


@dataclass(slots=True)
class _Window:
    """One profiled window under way."""

    profiler: Any
    num_steps: int
    max_seconds: float
    started_ns: int = 0
    wall_ns: int = 0
    step_ids: list[int] = field(default_factory=list)


class ProfiledExecutor:
    """An :class:`engine.executor.base.Executor` around another one.

    Args:
        inner: does the work.
        folder: where traces go, made when the first is written; None: profiling is refused.
    """

    def __init__(self, inner: Executor, folder: Path | None) -> None:
        self._inner = inner
        self._steps = pipelined(inner)
        self._folder = folder
        self._window: _Window | None = None
        self._exports: list[threading.Thread] = []

    @property
    def num_kv_blocks(self) -> int:
        return self._inner.num_kv_blocks

    @property
    def inner(self) -> Executor:
        return self._inner

    def execute(self, plan: StepPlan) -> StepResult:
        return self._counted(self._inner.execute, plan)

    def begin(self, plan: StepPlan) -> Any:
        """As :class:`engine.executor.base.PipelinedExecutor`; an inner executor that can't queue executes."""
        return self._counted(self._steps.begin, plan)

    def finish(self, step: Any) -> StepResult:
        return self._steps.finish(step)

    def ready(self, step: Any) -> bool:
        return self._steps.ready(step)

    def _counted(self, run: Callable[[StepPlan], T], plan: StepPlan) -> T:
        window = self._window
        if window is None or not plan.num_scheduled_tokens:
            return run(plan)
        import torch

        with torch.profiler.record_function(f"step#{plan.step_id}"):
            found = run(plan)
        window.step_ids.append(plan.step_id)
        passed_ns = time.monotonic_ns() - window.started_ns
        if len(window.step_ids) >= window.num_steps or passed_ns > window.max_seconds * 1e9:
            self.stop_profile()
        return found

    def start_profile(self, num_steps: int, max_seconds: float) -> None:
        """Profile the next steps. On the executing thread only.

        Raises:
            InvalidInputError: a window is open, a bound is out of range, or there is no folder for traces.
        """
        if self._folder is None:
            raise InvalidInputError("trace_dir", None, "a folder: profiles are written into it")
        if self._window is not None:
            raise InvalidInputError("profile", "start", "one window at a time; POST /stop_profile ends it")
        check_bounds(num_steps, max_seconds)
        import torch

        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profiler = torch.profiler.profile(activities=activities)
        profiler.start()
        if torch.cuda.is_available():
            # The first records of a session may be lost: let it lose these.
            torch.zeros(1, device="cuda").add_(1)
            torch.cuda.synchronize()
        self._window = _Window(profiler, num_steps, max_seconds, time.monotonic_ns(), time.time_ns())

    def stop_profile(self) -> bool:
        """End the window, if one is open, and export it in the background. On the executing thread only."""
        window, self._window = self._window, None
        if window is None:
            return False
        begin = time.monotonic_ns()
        window.profiler.stop()
        stop_ns = time.monotonic_ns() - begin
        number = len(self._exports)
        thread = threading.Thread(
            target=self._export, args=(window, number, stop_ns), name="profile-export", daemon=True
        )
        self._exports.append(thread)
        thread.start()
        return True

    def check_health(self) -> None:
        """As the inner executor's, if it has any to check."""
        if isinstance(self._inner, Watched):
            self._inner.check_health()

    def reset(self) -> None:
        self._inner.reset()

    def shutdown(self) -> None:
        """Finish a window that is open, wait for exports, release the inner executor."""
        try:
            self.stop_profile()
            deadline = time.monotonic() + EXPORT_WAIT_S
            for thread in self._exports:
                thread.join(max(0.0, deadline - time.monotonic()))
        finally:
            self._inner.shutdown()

    def _export(self, window: _Window, number: int, stop_ns: int) -> None:
        folder = self._folder
        if folder is None:
            return
        begin = time.monotonic_ns()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"window-{number}.json"
            partial = folder / f".window-{number}.partial.json"
            window.profiler.export_chrome_trace(str(partial))
            size = partial.stat().st_size
            if size > MAX_BYTES:
                partial.unlink()
            else:
                partial.replace(path)
            meta = _meta(window, stop_ns, time.monotonic_ns() - begin, size)
            (folder / f".window-{number}.meta").write_text(json.dumps(meta))
            (folder / f".window-{number}.meta").replace(folder / f"window-{number}.meta.json")
        except (OSError, RuntimeError) as error:
            logger.error("the profile could not be written: %s", error)


def check_bounds(num_steps: int, max_seconds: float) -> None:
    """
    Raises:
        InvalidInputError: naming the bound that is out of range.
    """
    if not 1 <= num_steps <= MAX_STEPS:
        raise InvalidInputError("num_steps", num_steps, f"1 to {MAX_STEPS}")
    if not 0 < max_seconds <= MAX_SECONDS:
        raise InvalidInputError("max_seconds", max_seconds, f"more than 0, at most {MAX_SECONDS:g}")


def _meta(window: _Window, stop_ns: int, export_ns: int, size: int) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "step_ids": window.step_ids,
        "monotonic_ns": window.started_ns,
        "wall_ns": window.wall_ns,
        "num_steps": window.num_steps,
        "max_seconds": window.max_seconds,
        "stop_ns": stop_ns,
        "export_ns": export_ns,
        "bytes": size,
        "kept": size <= MAX_BYTES,
    }
