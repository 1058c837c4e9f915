"""The client against a server that records what it really did, on the same clock."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.workbench.mock import requests, running, send, send_one
from workbench.benchspec import Deadlines
from workbench.load.runner import LoadPlan, play
from workbench.load.wire import open_session
from workbench.mock_server import MockServer, Script


def token_stamps(record):
    return [c.recv_ns for c in record.chunks if c.n_tokens]


@pytest.mark.parametrize("chat", [False, True])
async def test_every_stamp_lies_where_the_server_says(chat):
    server = MockServer(Script(ttft_ms=15, itl_ms=5, tokens_per_event=3))
    result = await send(server, requests(6, every_ms=4, max_tokens=10), chat=chat)
    seen = {arrival.request_id: arrival for arrival in server.arrivals}
    assert len(seen) == 6
    for record in result.records:
        arrival = seen[record.request_id]
        assert record.status == "ok"
        assert record.intended_ns <= record.sent_ns <= arrival.arrived_ns <= record.headers_ns
        stamps = token_stamps(record)
        assert len(stamps) == len(arrival.sent_ns) == 4
        assert all(sent <= got for sent, got in zip(arrival.sent_ns, stamps, strict=True))
        assert stamps == sorted(stamps)
        assert (record.first_token_ns, record.last_token_ns) == (stamps[0], stamps[-1])
        assert record.last_token_ns <= record.close_ns
        # The script's delays are lower bounds that the server kept on its own clock.
        assert record.first_token_ns - record.sent_ns >= 15_000_000
        assert record.last_token_ns - record.sent_ns >= (15 + 3 * 5) * 1_000_000
        assert (record.output_tokens, record.output_tokens_source, record.first_event_tokens) == (
            10,
            "token_ids",
            3,
        )
        assert (record.prompt_tokens, record.cached_tokens) == (3, 0)


async def test_a_role_event_and_a_late_usage_move_nothing():
    record, arrival = await send_one(Script(ttft_ms=40, usage_delay_ms=60), chat=True, max_tokens=2)
    kinds = [c.kind for c in record.chunks]
    assert kinds == ["role", "content", "content", "usage", "done"]
    assert record.first_token_ns - record.sent_ns >= 40_000_000
    assert record.first_token_ns >= arrival.sent_ns[0]
    # The usage event left 60 ms after the last token: e2el ends with the token.
    assert record.chunks[3].recv_ns >= arrival.written_ns[-1] + 60_000_000
    assert record.last_token_ns == record.chunks[2].recv_ns


EVENTS = [
    {"choices": [{"index": 0, "text": ""}]},
    {"choices": [{"index": 0, "text": "é\u2028🙂", "token_ids": [5, 6]}]},
    {"choices": [{"index": 0, "text": "", "token_ids": [7]}]},
    {"choices": [{"index": 0, "text": "x" * 3000, "token_ids": [8, 9, 10], "finish_reason": "stop"}]},
    {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 6}},
]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("split", [1, 2, 3, 7, 64, None])
async def test_bytes_in_any_pieces_give_the_same_record(newline, split):
    raw = "".join(f": c{newline}data: {json.dumps(e, ensure_ascii=False)}{newline * 2}" for e in EVENTS)
    record, _ = await send_one(Script(raw=raw + f"data: [DONE]{newline * 2}", split=split))
    assert record.status == "ok"
    assert [c.kind for c in record.chunks] == ["empty", "content", "content", "content", "usage", "done"]
    assert [c.n_tokens for c in record.chunks] == [0, 2, 1, 3, 0, 0]
    assert (record.output_tokens, record.prompt_tokens, record.finish_reason) == (6, 11, "stop")


@pytest.mark.parametrize(
    ("script", "status", "error_class", "tokens"),
    [
        (Script(status=500), "failed", "http_5xx", 0),
        (Script(status=404), "failed", "http_4xx", 0),
        (Script(status=429), "failed", "http_429", 0),
        (Script(error_after=2), "failed", "stream_error", 2),
        (Script(error_after=0), "failed", "stream_error", 0),
        (Script(cut_after=0), "failed", "truncated", 0),
        (Script(cut_after=2), "failed", "truncated", 2),
        (Script(done=False, finish_reason=False), "failed", "truncated", 4),
        (Script(done=False), "ok", None, 4),
        (Script(finish_reason=False), "ok", None, 4),
        (Script(output_tokens=0), "failed", "empty", 0),
        (Script(output_tokens=1), "ok", None, 1),
        (Script(raw='data: {"choices": [{"te'), "failed", "truncated", 0),
        (Script(raw="data: hello\n\n"), "failed", "parse", 0),
        (Script(raw=""), "failed", "truncated", 0),
    ],
)
async def test_what_became_of_it(script, status, error_class, tokens):
    record, _ = await send_one(script)
    assert (record.status, record.error_class, record.output_tokens) == (status, error_class, tokens)
    assert record.close_ns >= record.sent_ns
    assert (record.error is None) == (status == "ok")


@pytest.mark.parametrize(
    ("hang_after", "deadlines", "error_class"),
    [
        (0, Deadlines(first_token_s=0.4), "timeout_first_token"),
        (0, Deadlines(idle_s=0.4), "timeout_idle"),
        (2, Deadlines(idle_s=0.4), "timeout_idle"),
        (2, Deadlines(first_token_s=30, total_s=0.6, idle_s=None), "timeout_total"),
    ],
)
async def test_deadlines(hang_after, deadlines, error_class):
    record, arrival = await send_one(Script(hang_after=hang_after), deadlines=deadlines)
    assert (record.status, record.error_class) == ("failed", error_class)
    assert record.output_tokens == hang_after
    limits = {"timeout_first_token": 0.4, "timeout_idle": 0.4, "timeout_total": 0.6}
    assert record.close_ns - record.sent_ns >= limits[error_class] * 1e9
    assert arrival.outcome == "gone"  # the server was told


async def test_nobody_listens():
    async with open_session({}, Deadlines()) as session:
        result = await play(LoadPlan(requests(2), "http://127.0.0.1:9/v1/completions"), session)
    assert [(r.status, r.error_class) for r in result.records] == [("failed", "connect")] * 2


async def test_counts_do_not_need_the_servers_token_ids():
    record, _ = await send_one(Script(token_ids=False, tokens_per_event=2), max_tokens=9)
    assert (record.output_tokens, record.output_tokens_source) == (9, "usage")
    assert [c.n_tokens for c in record.chunks if c.n_tokens] == [2, 2, 2, 2, 1]
    record, _ = await send_one(Script(token_ids=False, usage=False, tokens_per_event=2), max_tokens=9)
    assert (record.output_tokens, record.output_tokens_source) == (5, "chunks")


async def test_one_failure_harms_no_other():
    def script(body):
        return Script(cut_after=1) if body["user"] == "bad" else Script()

    server = MockServer(script)
    mixed = [request for i in range(4) for request in requests(1, user="bad" if i % 2 else "good")]
    async with running(server) as url, open_session({}, Deadlines()) as session:
        result = await play(LoadPlan(mixed, f"{url}/v1/completions"), session)
    assert sorted(r.status for r in result.records) == ["failed", "failed", "ok", "ok"]


async def test_more_streams_than_a_connection_pool_holds_by_default():
    # aiohttp's own limit is 100. Nobody answers, so all must be in flight together.
    server = MockServer(Script(hang_after=0))
    async with running(server) as url, open_session({}, Deadlines()) as session:
        task = asyncio.create_task(play(LoadPlan(requests(150), f"{url}/v1/completions"), session))
        while len(server.arrivals) < 150:
            await asyncio.sleep(0.01)
        task.cancel()
        result = await task
    assert {r.status for r in result.records} == {"cancelled"}
    assert len({a.request_id for a in server.arrivals}) == 150
