"""The short soak; two thousand visits: ``python -m tests.soak``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.tiny_model import make_tiny_model
from tests.soak.soak import serving, soak, soak_config
from tests.soak.visits import Behaviour


@pytest.mark.parametrize("async_scheduling", [False, True])
async def test_nothing_is_left_of_hundreds_of_visitors(tmp_path: Path, async_scheduling: bool) -> None:
    config = soak_config(make_tiny_model(tmp_path / "tiny"), async_scheduling=async_scheduling)
    async with serving(config) as server:
        report = await soak(server, 250, seed=int(async_scheduling), progress=lambda: None)
    assert report.wrong == []
    assert report.after == report.before
    assert report.metrics["vllm:kv_cache_usage_perc"] == 0
    # The visits were what they should be.
    assert set(report.visits) == set(Behaviour)
    assert report.statuses[200] > 50
    assert report.statuses[429] > 0
    assert report.metrics["vllm:num_preemptions_total"] > 5
    assert report.metrics["vllm:prefix_cache_hits_total"] > 500
