"""Queues whose waiting times are known: what the schedule-anchored latency must show and the other can't.

The formulas are judged on virtual time, where only mathematics is at stake; against the real truth server the
delays are lower bounds. How close a real machine comes is measured by ``benchmarks/client.py``.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.workbench.mock import requests, send
from workbench.mock_server import MockServer, Script
from workbench.queues import batch_interval, deterministic_wait, lindley, pollaczek_khinchine_wait
from workloads import Arrivals
from workloads.arrivals import offsets_ns


def test_d_d_1_waits_grow_by_what_service_is_too_slow():
    waits = lindley(np.arange(8) * 0.1, 0.5)
    assert waits == pytest.approx([i * 0.4 for i in range(8)])
    assert waits.mean() == pytest.approx(deterministic_wait(8, 10.0, 0.5)) == pytest.approx(1.4)
    assert lindley(np.arange(50) * 0.1, 0.09) == pytest.approx(np.zeros(50))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_our_poisson_schedule_waits_as_pollaczek_and_khinchine_say(load):
    offsets = offsets_ns(Arrivals(kind="poisson"), 400_000, 100.0, np.random.default_rng(5)) / 1e9
    service = load / 100.0
    waits = lindley(offsets, service)
    low, high = batch_interval(waits[1000:], 40)
    assert low <= pollaczek_khinchine_wait(100.0, service) <= high


def test_a_rate_above_capacity_has_no_mean():
    with pytest.raises(ValueError, match="capacity"):
        pollaczek_khinchine_wait(10.0, 0.11)


async def test_the_truth_server_with_one_slot_is_such_a_queue():
    offsets = offsets_ns(Arrivals(kind="poisson"), 16, 60.0, np.random.default_rng(2))
    prepared = requests(16, max_tokens=1)
    from dataclasses import replace

    prepared = [replace(r, offset_ns=int(at)) for r, at in zip(prepared, offsets, strict=True)]
    result = await send(MockServer(Script(ttft_ms=20), slots=1), prepared)
    waits = lindley(offsets / 1e9, 0.020)
    for record, wait in zip(result.records, waits, strict=True):
        assert (record.first_token_ns - record.intended_ns) / 1e9 >= wait + 0.020
