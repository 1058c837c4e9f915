"""How the core hands plans to the executor: in its own thread of control, or on a thread beside it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from engine.executor.base import Executor, pipelined
from engine.plan import StepPlan, StepResult

T = TypeVar("T")


class StepRunner(Protocol):
    """Runs plans in the order of ``submit``."""

    def submit(self, plan: StepPlan) -> None: ...

    def next_result(self) -> tuple[StepPlan, StepResult]:
        """The oldest submitted plan and its result. Raises what the executor raised."""
        ...

    def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the thread that executes, behind the steps that were submitted."""
        ...

    def shutdown(self) -> None:
        """Let a step that runs come to its end; start no other."""
        ...


class InlineRunner:
    """Executes when the result is asked for. On virtual time this is exact also for asynchronous
    scheduling: what is planned before the result is taken was planned without knowing it.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._plans: deque[StepPlan] = deque()

    def submit(self, plan: StepPlan) -> None:
        self._plans.append(plan)

    def next_result(self) -> tuple[StepPlan, StepResult]:
        plan = self._plans.popleft()
        return plan, self._executor.execute(plan)

    def call(self, work: Callable[[], T]) -> T:
        return work()

    def shutdown(self) -> None:
        self._plans.clear()


class ThreadRunner:
    """One worker thread executes while the core plans on. An executor that can queue steps gets the next one
    before it is asked for the tokens of the last.
    """

    def __init__(self, executor: Executor) -> None:
        self._steps = pipelined(executor)
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="executor")
        self._pending: deque[tuple[StepPlan, Future[Any]]] = deque()

    def submit(self, plan: StepPlan) -> None:
        self._pending.append((plan, self._pool.submit(self._steps.begin, plan)))

    def next_result(self) -> tuple[StepPlan, StepResult]:
        plan, future = self._pending.popleft()
        begun = future.result()
        if isinstance(begun, StepResult):  # nothing is left to wait for behind the next step
            return plan, begun
        return plan, self._pool.submit(self._steps.finish, begun).result()

    def call(self, work: Callable[[], T]) -> T:
        return self._pool.submit(work).result()

    def shutdown(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._pending.clear()
