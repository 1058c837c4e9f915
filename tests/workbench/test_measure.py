"""The bytes on the wire: fixed by seed and nonce, warm-up apart from them."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import InvalidInputError
from tests.workbench.mock import running
from workbench.benchspec import BenchSpec
from workbench.errors import TargetError
from workbench.load.measure import measure
from workbench.mock_server import MockServer, Script
from workbench.targets.attach import AttachTarget
from workloads import RequestClass, WorkloadError, WorkloadSpec

WORKLOAD = WorkloadSpec(
    classes=(
        RequestClass(name="a", input_tokens=(20, 40), output_tokens=(2, 4)),
        RequestClass(name="b", input_tokens=50, output_tokens=1, prefix_tokens=16),
    ),
    num_requests=6,
)


async def bodies(nonce: str = "n", server: MockServer | None = None, **fields: Any) -> list[dict[str, Any]]:
    """What arrived: the probe, the warm-up (ids xw0 ...), what is measured (xm0 ...)."""
    server = server or MockServer()
    async with running(server) as url:
        spec = BenchSpec.create(workload=WORKLOAD, base_url=url, request_id_prefix="x", **fields)
        await measure(spec, AttachTarget(url, None), nonce, on_facts=lambda *_: None, progress=None)
    order = {"": 0, "xw": 1, "xm": 2}
    arrivals = sorted(server.arrivals, key=lambda a: (order[a.request_id[:2]], a.request_id))
    return [a.body for a in arrivals]


async def test_same_seed_and_nonce_put_the_same_bytes_on_the_wire():
    first, second, other = await bodies(seed=4), await bodies(seed=4), await bodies("other", seed=4)
    assert first == second
    assert len(first) == 1 + 4 + 6
    prompts = [{tuple(body["prompt"]) for body in run} for run in (first, other)]
    assert not prompts[0] & prompts[1]
    assert [len(b["prompt"]) for b in first] == [len(b["prompt"]) for b in other]


async def test_warm_up_sends_no_measured_prompt_and_every_class():
    arrived = await bodies(warmup_requests=4)
    warm = [tuple(body["prompt"]) for body in arrived[:5]]
    measured = {tuple(body["prompt"][:16]) for body in arrived[5:]}
    assert not {prompt[:16] for prompt in warm} & measured
    assert {len(prompt) == 50 for prompt in warm[1:]} == {True, False}


async def test_no_warm_up():
    assert len(await bodies(warmup_requests=0)) == 1 + 6


async def test_what_a_body_holds():
    arrived = await bodies(extra_body={"top_p": 0.5, "temperature": 1.0})
    body = arrived[-1]
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["ignore_eos"] is True
    assert body["return_token_ids"] is True
    assert (body["top_p"], body["temperature"]) == (0.5, 1.0)
    assert body["model"] == "mock"


async def test_chat_sends_words():
    arrived = await bodies(endpoint="chat")
    (message,) = arrived[-1]["messages"]
    assert message["role"] == "user"
    assert "prompt" not in arrived[-1]
    lengths = {len(body["messages"][0]["content"].split()) for body in arrived}
    assert lengths <= {*range(20, 41), 50}


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        (Script(status=500), TargetError, "HTTP 500: as scripted"),
        (Script(status=400), TargetError, "HTTP 400: as scripted"),
        (Script(refuse=("max_tokens",)), TargetError, "max_tokens"),
        (Script(hang_after=0), TargetError, "no answer to a first request in 0.3 s"),
        (Script(cut_after=0), TargetError, "a first request failed"),
    ],
)
async def test_a_server_that_serves_nothing(script, error, words):
    with pytest.raises(error, match=words):
        await bodies(server=MockServer(script), ready_timeout_s=0.3)


async def test_facts_from_the_server_bound_the_workload():
    info = {
        "config": {"max_num_seqs": 3},
        "resolved": {"vocab_size": 100, "max_model_len": 30, "model": "path"},
    }
    with pytest.raises(WorkloadError, match="up to 30 tokens"):
        await bodies(server=MockServer(info=info))
    info["resolved"]["max_model_len"] = 64
    arrived = await bodies(server=MockServer(info=info))
    assert max(max(body["prompt"]) for body in arrived) < 75


async def test_a_server_without_a_model_needs_a_name():
    server = MockServer()
    server.model = None  # type: ignore[assignment]
    with pytest.raises(InvalidInputError, match="model="):
        await bodies(server=server)
