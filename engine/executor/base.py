"""The executor: runs a plan on a model (or on a cost model) and says what was sampled."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from engine.plan import StepPlan, StepResult


class Executor(Protocol):
    """Contract. One thread calls it; plans arrive in ``step_id`` order.

    ``execute`` must apply ``finished_request_ids`` and ``preempted_request_ids`` first, then enter
    ``new_requests``, then run. It never fails for one request's sake: bad requests are refused at the front
    end. Any exception ends the engine.
    """

    @property
    def num_kv_blocks(self) -> int:
        """Blocks in the pool, the null block (id 0) included."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step to its end. A plan without scheduled tokens only applies the bookkeeping."""
        ...

    def reset(self) -> None:
        """Forget every request (after an abort of all)."""
        ...

    def shutdown(self) -> None:
        """Release threads and memory. May be called twice."""
        ...


@runtime_checkable
class Profilable(Protocol):
    """An executor whose steps can be profiled; both are called on the thread that executes."""

    def start_profile(self, num_steps: int, max_seconds: float) -> None:
        """Profile the next steps.

        Raises:
            InvalidInputError: a bound is out of range, or a window is open.
        """
        ...

    def stop_profile(self) -> bool:
        """End the window; False when none was open."""
        ...


@runtime_checkable
class Watched(Protocol):
    """An executor that depends on other processes."""

    def check_health(self) -> None:
        """
        Raises:
            EngineError: it can't run another step.
        """
        ...


@runtime_checkable
class PipelinedExecutor(Protocol):
    """An executor that can queue a step before the one before it has ended.

    ``finish(begin(plan))`` is ``execute(plan)``; with asynchronous scheduling the next ``begin`` comes in
    between. Both are called on the thread that executes, in the order of the plans.
    """

    def begin(self, plan: StepPlan) -> Any:
        """Queue a step. One that was run to its end comes back as its :class:`StepResult`."""
        ...

    def finish(self, step: Any) -> StepResult:
        """Wait for the step's tokens."""
        ...

    def ready(self, step: Any) -> bool:
        """Whether :meth:`finish` would return at once."""
        ...


class _RunToTheEnd:
    """Steps of an executor that can't queue: each is run when it begins."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def begin(self, plan: StepPlan) -> Any:
        return self._executor.execute(plan)

    def finish(self, step: Any) -> StepResult:
        if not isinstance(step, StepResult):
            raise TypeError(f"{type(step).__name__} is no step that was run to its end")
        return step

    def ready(self, step: Any) -> bool:
        return True


def pipelined(executor: Executor) -> PipelinedExecutor:
    """``executor`` as one whose steps are begun and finished, whether it can queue them or not."""
    return executor if isinstance(executor, PipelinedExecutor) else _RunToTheEnd(executor)
