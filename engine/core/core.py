"""EngineCore: the loop of schedule, execute, update. Knows requests and tokens, no text and no HTTP."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from engine.clock import Clock, VirtualClock
from engine.config import EngineConfig
from engine.core.runner import InlineRunner, StepRunner, ThreadRunner
from engine.errors import EngineDeadError, EngineError, InvalidInputError
from engine.executor.base import Executor, Profilable, Watched
from engine.kv.manager import KVCacheManager
from engine.kv.residency import BlockResidency
from engine.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, SchedulerStats
from engine.plan import StepResult
from engine.scheduler.scheduler import Scheduler
from engine.scheduler.step_stats import StepStats
from engine.trace.recorder import TraceRecorder

ASYNC_DEPTH = 2
"""Steps planned but not finished with asynchronous scheduling: one runs, one waits for it."""


STEP_STAMPS = ("step_id", "t_start", "t_schedule", "t_prepare", "t_forward", "t_sample", "t_end")
"""The first columns of :data:`engine.trace.records.STEP_COLUMNS`, as ``_record`` writes them; with
:class:`StepStats` and the device's time they make a row.
"""


class _Planned(NamedTuple):
    """A submitted step."""

    num_tokens: int
    t_start: int
    t_schedule: int
    stats: StepStats | None


class EngineCore:
    """Owns the scheduler, the KV bookkeeping and the executor. Not thread-safe: one thread calls it.

    With ``async_scheduling`` the executor runs on its own thread and the next step is planned while it
    works; on a :class:`VirtualClock` the same order of events happens without threads, so that
    simulations are reproducible.

    An exception from the executor is raised by ``step``, once; after that every call raises
    :class:`EngineDeadError`.
    """

    def __init__(
        self,
        config: EngineConfig,
        scheduler: Scheduler,
        executor: Executor,
        runner: StepRunner,
        clock: Clock,
        trace: TraceRecorder,
    ) -> None:
        self.config = config
        self.scheduler = scheduler
        self.executor = executor
        self._runner = runner
        self._clock = clock
        self._trace = trace
        self._depth = ASYNC_DEPTH if config.async_scheduling else 1
        self._planned: deque[_Planned] = deque()
        self._abort_outputs: list[EngineCoreOutput] = []
        self._dead = False
        self._shut_down = False

    @classmethod
    def create(
        cls, config: EngineConfig, executor: Executor, clock: Clock, trace: TraceRecorder
    ) -> EngineCore:
        """Wire a core. ``config.max_model_len`` should be resolved to the model's limit by whoever loaded
        the model.

        Raises:
            InvalidInputError: the configuration does not fit the executor's KV pool.
        """
        residency = BlockResidency(clock, config.kv_cache_metrics_sample) if config.kv_cache_metrics else None
        kv = KVCacheManager(
            executor.num_kv_blocks,
            config.block_size,
            enable_caching=config.enable_prefix_caching,
            residency=residency,
        )
        scheduler = Scheduler(config, kv, clock, trace)
        threaded = config.async_scheduling and not isinstance(clock, VirtualClock)
        runner: StepRunner = ThreadRunner(executor) if threaded else InlineRunner(executor)
        return cls(config, scheduler, executor, runner, clock, trace)

    @property
    def max_request_tokens(self) -> int:
        """Most prompt plus output tokens of one request: ``max_model_len`` or the KV pool, whichever is
        smaller.
        """
        return self.scheduler.max_request_tokens

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request.

        Raises:
            InvalidInputError: it can never be served, or its id is in use; nothing else is affected.
        """
        self._require_alive()
        self.scheduler.add(request)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """End requests at once, in whatever state; unknown ids are ignored.

        The next ``step`` reports each with ``finish_reason=abort`` and its timings.
        """
        self._require_alive()
        self._abort_outputs.extend(self.scheduler.abort(request_ids))

    def has_work(self) -> bool:
        """Whether ``step`` has anything to do or to report."""
        return bool(self._planned or self._abort_outputs or self.scheduler.has_work())

    def step(self) -> EngineCoreOutputs:
        """Plan, execute and take in one step; with nothing to do it returns at once, with no outputs."""
        self._require_alive()
        try:
            return self._step()
        except BaseException:
            self._dead = True
            raise

    def reset_prefix_cache(self, *, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes.

        Args:
            reset_running_requests: preempt whatever runs, so that the reset can't be refused.

        Returns:
            False, and nothing changed, if requests hold blocks.
        """
        self._require_alive()
        if reset_running_requests:
            self.scheduler.preempt_all()
        return self.scheduler.kv.reset_prefix_cache()

    def start_profile(self, num_steps: int, max_seconds: float) -> None:
        """Profile the next steps, see :class:`engine.executor.profiled.ProfiledExecutor`.

        Raises:
            InvalidInputError: a bound is out of range, a window is open, or this core writes no trace.
        """
        self._require_alive()
        executor = self.executor
        if not isinstance(executor, Profilable):
            raise InvalidInputError("trace_dir", None, "a folder: profiles are written into it")
        self._runner.call(lambda: executor.start_profile(num_steps, max_seconds))

    def stop_profile(self) -> bool:
        """End the profiled window; False when none is open."""
        self._require_alive()
        executor = self.executor
        return isinstance(executor, Profilable) and self._runner.call(executor.stop_profile)

    def check_health(self) -> None:
        """Ask an executor that depends on other processes whether they live; for when no step is due.

        Raises:
            EngineError: they do not, and so this core is dead.
        """
        if isinstance(self.executor, Watched):
            try:
                self.executor.check_health()
            except BaseException:
                self._dead = True
                raise

    def stats(self) -> SchedulerStats:
        return self.scheduler.stats()

    def check_invariants(self) -> None:
        """Raises :class:`engine.kv.invariants.InvariantError` if the books don't balance."""
        self.scheduler.check_invariants()

    def shutdown(self) -> None:
        """Wait for the step that runs, then release executor and trace. May be called twice, also after a
        failure.
        """
        if self._shut_down:
            return
        self._shut_down = self._dead = True
        try:
            self._runner.shutdown()
            self.executor.shutdown()
        finally:
            self._trace.close()

    # ---- one step

    def _step(self) -> EngineCoreOutputs:
        while len(self._planned) < self._depth and self._plan_next():
            pass
        outputs, self._abort_outputs = self._abort_outputs, []
        num_tokens = 0
        if self._planned:
            planned = self._planned.popleft()
            num_tokens = planned.num_tokens
            plan, result = self._runner.next_result()
            outputs += self.scheduler.update(plan, result)
            self._record(planned, result)
        elif self.scheduler.has_unfinished_requests():
            raise EngineError("requests are unfinished but nothing can be scheduled: the scheduler is stuck")
        if self.config.check_invariants or not self.scheduler.has_unfinished_requests():
            self.scheduler.check_invariants()
        return self.news(outputs, num_tokens)

    def news(self, outputs: list[EngineCoreOutput], step_tokens: int = 0) -> EngineCoreOutputs:
        """``outputs`` with the state of the engine right now."""
        residency = self.scheduler.kv.pool.residency
        return EngineCoreOutputs(
            outputs=outputs,
            stats=self.scheduler.stats(),
            step_tokens=step_tokens,
            timestamp_ns=self._clock.now_ns(),
            kv_evictions=[] if residency is None else residency.take_evictions(),
        )

    def _plan_next(self) -> bool:
        """Plan and submit one step; False if there was nothing to submit."""
        if not self.scheduler.has_plannable_work():
            return False
        t_start = self._clock.now_ns()
        plan = self.scheduler.schedule()
        num_tokens = plan.total_num_scheduled_tokens
        if not num_tokens and not plan.finished_request_ids and not plan.preempted_request_ids:
            return False
        stats = self.scheduler.last_planned_stats if num_tokens else None
        self._runner.submit(plan)
        self._planned.append(_Planned(num_tokens, t_start, self._clock.now_ns(), stats))
        return True

    def _record(self, planned: _Planned, result: StepResult) -> None:
        _, t_start, t_schedule, stats = planned
        if stats is None or not self._trace.enabled:
            return
        # One plain tuple: this runs once a step with cold caches, where each object and call costs a µs.
        self._trace.record_step(
            (
                result.step_id,
                t_start,
                t_schedule,
                result.t_prepare_ns,
                result.t_forward_ns,
                result.t_sample_ns,
                self._clock.now_ns(),
                *stats,
                result.gpu_forward_ns,
            )
        )

    def _require_alive(self) -> None:
        if self._dead:
            raise EngineDeadError("the engine core has stopped")
