"""From a configuration to a core that can step: executor, trace, :class:`EngineCore`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from engine.clock import MonotonicClock
from engine.config import EngineConfig
from engine.core.client import DEFAULT_EXECUTOR
from engine.core.core import EngineCore
from engine.executor.base import Executor
from engine.executor.info import ExecutorInfo
from engine.executor.profiled import PROFILE_FOLDER, ProfiledExecutor
from engine.trace.recorder import NullRecorder, TraceRecorder

ExecutorFactory = Callable[[EngineConfig], tuple[Executor, ExecutorInfo]]


def load_executor_factory(path: str) -> ExecutorFactory:
    """The factory named ``module:function``. Imported late: this is what brings torch into a process."""
    module, _, name = path.partition(":")
    factory: ExecutorFactory = getattr(importlib.import_module(module), name)
    return factory


def create_core(
    config: EngineConfig, executor_factory: str = DEFAULT_EXECUTOR
) -> tuple[EngineCore, ExecutorInfo]:
    """Executor, trace and core as ``config`` wants them.

    Raises:
        ModelLoadError, InvalidInputError: as the executor's factory and :meth:`EngineCore.create`.
    """
    executor, info = load_executor_factory(executor_factory)(config)
    if config.trace_dir is not None:
        executor = ProfiledExecutor(executor, Path(config.trace_dir) / PROFILE_FOLDER)
    resolved = config.model_copy(update={"max_model_len": info.max_model_len})
    return EngineCore.create(resolved, executor, MonotonicClock(), _create_recorder(config.trace_dir)), info


def _create_recorder(trace_dir: str | None) -> TraceRecorder:
    if trace_dir is None:
        return NullRecorder()
    from engine.trace.writer import TraceWriter  # brings pyarrow, which nobody needs without a trace

    return TraceWriter(trace_dir)
