"""Conversations against the truth server: what it was told in each turn, and when."""

from __future__ import annotations

import pytest

from tests.workbench.mock import running
from workbench.benchspec import Deadlines
from workbench.load.bodies import Features, prepare
from workbench.load.runner import LoadPlan, play
from workbench.load.wire import open_session
from workbench.mock_server import MockServer, Script
from workloads import Arrivals, SessionsSource, WorkloadSpec, build


async def talk(server: MockServer, *, endpoint="completions", kind="poisson", limit=None, count=3, **source):
    """Play sessions of three turns; returns (workload requests, result)."""
    fields = {"turns": 3, "first_input_tokens": 6, "input_tokens": 2, "output_tokens": 4, "think_s": 0.03}
    fields |= {"think_kind": "constant", **source}
    arrivals = {"kind": kind, "rate": 100.0 if kind == "poisson" else None, "max_concurrency": limit}
    spec = WorkloadSpec(source=SessionsSource(**fields), arrivals=Arrivals(**arrivals))
    workload = build(spec, seed=1, nonce="n", num_requests=count)
    ready = prepare(
        workload,
        model="mock",
        endpoint=endpoint,
        features=Features(),
        phase="measure",
        id_prefix="q",
        extra_body={},
        keep_replies=fields.get("history", "reply") == "reply",
    )
    path = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}[endpoint]
    async with running(server) as url, open_session({}, Deadlines()) as session:
        return workload, await play(LoadPlan(ready, url + path, max_concurrency=limit), session)


def prompts(server: MockServer, key: str = "prompt"):
    return {int(a.request_id[1:]): a.body[key] for a in server.arrivals}


async def test_each_turn_holds_what_was_said_and_answered_before():
    server = MockServer(Script())
    workload, result = await talk(server)
    said = prompts(server)
    answer = [0, 1, 2, 3]  # the mock's token ids
    for opening in range(0, 9, 3):
        own = [r.prompt_token_ids.tolist() for r in workload[opening : opening + 3]]
        assert said[opening] == own[0]
        assert said[opening + 1] == own[0] + answer + own[1]
        assert said[opening + 2] == own[0] + answer + own[1] + answer + own[2]
    assert [r.prompt_tokens for r in result.records] == [6, 12, 18] * 3
    assert [(r.session, r.turn) for r in result.records] == [(s, t) for s in range(3) for t in range(3)]


async def test_scripted_answers_are_known_beforehand():
    server = MockServer(Script())
    workload, _ = await talk(server, history="scripted")
    first = workload[0]
    expected = [
        *first.prompt_token_ids.tolist(),
        *first.scripted_reply.tolist(),
        *workload[1].prompt_token_ids.tolist(),
    ]
    assert prompts(server)[1] == expected


async def test_without_token_ids_from_the_server_the_script_stands_in():
    server = MockServer(Script(token_ids=False))
    workload, _ = await talk(server)
    assert prompts(server)[1][6:10] == workload[0].scripted_reply.tolist()


async def test_chat_history_is_a_list_of_messages():
    server = MockServer(Script())
    await talk(server, endpoint="chat", count=1)
    last = prompts(server, "messages")[2]
    assert [m["role"] for m in last] == ["user", "assistant", "user", "assistant", "user"]
    assert last[1]["content"] == " t0 t1 t2 t3"
    assert last[:3] == prompts(server, "messages")[1]


async def test_a_turn_waits_for_its_user_to_think():
    _, result = await talk(MockServer(Script()))
    for before, after in zip(result.records, result.records[1:], strict=False):
        if after.turn:
            assert after.intended_ns == before.last_token_ns + 30_000_000
            assert after.sent_ns >= after.intended_ns


async def test_a_session_ends_with_its_first_failure_and_owes_the_rest():
    def script(body):
        return Script(cut_after=1) if len(body["prompt"]) == 12 else Script()

    _, result = await talk(MockServer(script), count=2)
    assert [r.status for r in result.records] == ["ok", "failed", "cancelled"] * 2
    assert result.records[2].error == "an earlier turn of its session did not succeed"
    assert result.records[2].sent_ns is None


async def test_a_closed_loop_counts_users_who_think_too():
    server = MockServer(Script())
    _, result = await talk(server, kind="closed", limit=2, count=5)
    assert {r.status for r in result.records} == {"ok"}
    sessions = {}
    for r in result.records:
        first, last = sessions.get(r.session, (r.sent_ns, 0))
        sessions[r.session] = (min(first, r.sent_ns), max(last, r.close_ns))
    edges = sorted([(a, 1) for a, _ in sessions.values()] + [(b, -1) for _, b in sessions.values()])
    level = peak = 0
    for _at, change in edges:
        level += change
        peak = max(peak, level)
    assert peak == 2


@pytest.mark.parametrize("max_seconds", [0.02])
async def test_the_end_of_the_run_ends_thinking(max_seconds):
    server = MockServer(Script())
    fields = {"turns": 3, "first_input_tokens": 6, "input_tokens": 2, "output_tokens": 2, "think_s": 60.0}
    spec = WorkloadSpec(source=SessionsSource(**fields), arrivals=Arrivals(kind="burst"))
    ready = prepare(
        build(spec, seed=1, nonce="n", num_requests=2),
        model="mock", endpoint="completions", features=Features(), phase="measure", id_prefix="q",
        extra_body={},
    )  # fmt: skip
    async with running(server) as url, open_session({}, Deadlines()) as session:
        plan = LoadPlan(ready, f"{url}/v1/completions", max_seconds=max_seconds + 1.0)
        result = await play(plan, session)
    assert result.cut
    assert [(r.turn, r.status) for r in result.records] == [(0, "ok"), (0, "ok")]
