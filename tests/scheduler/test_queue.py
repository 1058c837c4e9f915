from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from engine.request import Request
from engine.scheduler.queue import PriorityQueue, create_waiting_queue, priority_key
from tests.scheduler.harness import make_request


def request(name: str, order: int, **fields) -> Request:
    return Request(make_request(name, 1, **fields), max_total_tokens=10, order=order, queued_ns=0)


def pop_all(queue) -> list[str]:
    names = []
    while (head := queue.peek()) is not None:
        names.append(head.request_id)
        queue.remove(head)
    return names


def test_fcfs_order_and_removal_from_the_middle():
    queue = create_waiting_queue("fcfs")
    requests = [request(name, order) for order, name in enumerate("abcd")]
    for each in requests:
        queue.add(each)
    queue.remove(requests[1])
    queue.put_back(requests[1])
    assert len(queue) == 4
    queue.remove(requests[2])
    assert pop_all(queue) == ["b", "a", "d"]
    assert queue.peek() is None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans()), max_size=20), st.randoms())
def test_priority_order_with_removals(fields, random):
    queue = PriorityQueue()
    requests = []
    for order, (priority, arrival, preempted) in enumerate(fields):
        each = request(str(order), order, priority=priority, arrival_ns=arrival)
        each.num_preemptions = int(preempted)
        requests.append(each)
        queue.add(each)
    for gone in random.sample(requests, len(requests) // 2):
        queue.remove(gone)
        requests.remove(gone)
    assert {each.request_id for each in queue} == {each.request_id for each in requests}
    assert pop_all(queue) == [each.request_id for each in sorted(requests, key=priority_key)]


def test_priority_heap_does_not_keep_what_was_aborted():
    queue = PriorityQueue()
    for order in range(1000):
        each = request(str(order), order, priority=5)
        queue.add(each)
        queue.remove(each)
    assert len(queue) == 0
    assert len(queue._heap) <= 65


def test_an_id_that_left_and_came_again_stands_once():
    queue = PriorityQueue()
    old, new = request("a", 0, priority=0), request("a", 1, priority=9)
    queue.add(old)
    queue.remove(old)
    queue.add(new)
    queue.add(request("b", 2, priority=5))
    assert pop_all(queue) == ["b", "a"]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_both_policies_have_a_queue(policy):
    assert create_waiting_queue(policy).peek() is None
