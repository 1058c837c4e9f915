"""The waiting queue in policy order. All operations are O(1) or O(log n), aborts from the middle too."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import Literal, Protocol

from engine.request import Request


class WaitingQueue(Protocol):
    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]:
        """In no particular order."""
        ...

    def add(self, request: Request) -> None:
        """A new request."""
        ...

    def put_back(self, request: Request) -> None:
        """A preempted request: it comes before all new ones of its rank, so that it is not overtaken."""
        ...

    def peek(self) -> Request | None: ...

    def remove(self, request: Request) -> None: ...


class FcfsQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def add(self, request: Request) -> None:
        self._requests[request.request_id] = request

    def put_back(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self._requests.move_to_end(request.request_id, last=False)

    def peek(self) -> Request | None:
        return next(iter(self._requests.values()), None)

    def remove(self, request: Request) -> None:
        del self._requests[request.request_id]


PriorityKey = tuple[int, bool, int, int]


def priority_key(request: Request) -> PriorityKey:
    """Lower comes first: priority value, then preempted before new, then arrival, then order of entry."""
    return (request.priority, request.num_preemptions == 0, request.arrival_ns, request.order)


class PriorityQueue:
    """Lowest ``priority`` value first; a heap from which removed entries are dropped when they surface."""

    def __init__(self) -> None:
        self._heap: list[tuple[PriorityKey, Request]] = []
        self._live: dict[str, tuple[PriorityKey, Request]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in self._live.values())

    def add(self, request: Request) -> None:
        entry = (priority_key(request), request)
        self._live[request.request_id] = entry
        heapq.heappush(self._heap, entry)

    put_back = add

    def peek(self) -> Request | None:
        heap = self._heap
        while heap:
            entry = heap[0]
            if self._live.get(entry[1].request_id) is entry:
                return entry[1]
            heapq.heappop(heap)
        return None

    def remove(self, request: Request) -> None:
        del self._live[request.request_id]
        if len(self._heap) > 2 * len(self._live) + 64:  # many aborted entries that never surface
            self._heap = list(self._live.values())
            heapq.heapify(self._heap)


def create_waiting_queue(policy: Literal["fcfs", "priority"]) -> WaitingQueue:
    return PriorityQueue() if policy == "priority" else FcfsQueue()
