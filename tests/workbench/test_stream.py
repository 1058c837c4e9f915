"""Kinds and token counts of streamed events, and where a count comes from."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.load.errors import PARSE, STREAM_ERROR, RequestError
from workbench.load.sse import SseEvent
from workbench.load.stream import StreamState


def feed(*bodies) -> StreamState:
    stream = StreamState()
    for at, body in enumerate(bodies):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        stream.feed(SseEvent(b"", data), at)
    return stream


def text(value: str, **more):
    return {"choices": [{"text": value, **more}]}


def delta(**fields):
    return {"choices": [{"delta": fields}]}


def usage(completion: int, **more):
    return {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": completion, **more}}


def rows(stream: StreamState):
    return [(c.kind, c.n_tokens, c.source) for c in stream.chunks]


def test_role_empty_usage_and_done_never_hold_a_token():
    stream = feed(delta(role="assistant", content=""), text(""), delta(), text("a"), usage(1), b"[DONE]")
    assert stream.resolve() == (1, "usage")
    assert [row[0] for row in rows(stream)] == ["role", "empty", "empty", "content", "usage", "done"]
    assert [row[1] for row in rows(stream)] == [0, 0, 0, 1, 0, 0]
    assert (stream.first_ns, stream.last_ns) == (3, 3)


def test_reasoning_and_tool_arguments_are_generated_tokens():
    call = {"function": {"name": "f", "arguments": "{"}}
    stream = feed(
        delta(reasoning_content="hm"),
        delta(reasoning="so"),
        delta(content="x"),
        delta(tool_calls=[call]),
        delta(tool_calls=[]),
    )
    assert stream.resolve() == (4, "chunks")
    assert [row[0] for row in rows(stream)] == ["reasoning", "reasoning", "content", "tool", "empty"]


def test_token_ids_beat_usage():
    stream = feed(text("ab", token_ids=[1, 2]), text("c", token_ids=[3]), usage(99))
    assert stream.resolve() == (3, "token_ids")
    assert rows(stream)[:2] == [("content", 2, "token_ids"), ("content", 1, "token_ids")]


def test_held_back_text_still_brought_its_tokens():
    # A half character: ids without text; then text that comes without a token of its own.
    stream = feed(text("", token_ids=[7]), text("é", token_ids=[]), text("x", token_ids=[8]))
    assert stream.resolve() == (2, "token_ids")
    assert [c.n_tokens for c in stream.chunks] == [1, 0, 1]
    assert stream.first_ns == 0


def test_usage_in_every_event_counts_by_its_growth():
    events = [{**text(t), "usage": {"completion_tokens": n}} for t, n in (("a", 1), ("bcd", 4), ("e", 5))]
    stream = feed(*events, usage(5))
    assert stream.resolve() == (5, "usage")
    assert [c.n_tokens for c in stream.chunks] == [1, 3, 1, 0]


def test_final_usage_is_shared_out_by_text():
    stream = feed(text("a"), text("bbbbbb"), text("c"), usage(11))
    assert stream.resolve() == (11, "usage")
    assert [c.n_tokens for c in stream.chunks] == [2, 7, 2, 0]


def test_without_any_count_an_event_is_a_token():
    stream = feed(text("a"), text("b c d"))
    assert stream.resolve() == (2, "chunks")
    assert [c.source for c in stream.chunks] == ["chunks", "chunks"]


@given(st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=30), st.integers(0, 80))
def test_shares_add_up_and_the_first_event_always_counts(texts, total):
    stream = feed(*map(text, texts), usage(total))
    assert stream.resolve() == (total, "usage")
    counts = [c.n_tokens for c in stream.chunks[: len(texts)]]
    assert sum(counts) == total
    assert min(counts) >= (1 if total >= len(texts) else 0)
    assert total == 0 or counts[0] >= 1


def test_usage_facts():
    stream = feed(text("a"), usage(1, prompt_tokens_details={"cached_tokens": 4}))
    assert stream.usage.prompt_tokens == 5
    assert stream.usage.prompt_tokens_details.cached_tokens == 4


def test_no_usage_is_not_zero():
    assert feed(text("a")).usage is None


def test_unknown_fields_are_welcome():
    assert feed({**text("a", logprobs=None, stop_reason=3), "id": "x", "created": 1.5}).resolve()[0] == 1


@pytest.mark.parametrize(
    ("body", "error_class", "words"),
    [
        ({"error": {"message": "boom", "code": 500}}, STREAM_ERROR, "boom"),
        ({"error": "boom"}, STREAM_ERROR, "boom"),
        ({"object": "error", "message": "boom"}, STREAM_ERROR, "boom"),
        (b"not json", PARSE, "not json"),
        (b"[]", PARSE, "[]"),
        ({"choices": [{"text": 5}]}, PARSE, "text"),
        (b'{"choices": [{"text": "\xff"}]}', PARSE, "choices"),
    ],
)
def test_bad_events(body, error_class, words):
    with pytest.raises(RequestError) as caught:
        feed(text("a"), body)
    assert caught.value.error_class == error_class
    assert words in str(caught.value)


def test_an_event_named_error_is_one():
    stream = StreamState()
    with pytest.raises(RequestError) as caught:
        stream.feed(SseEvent(b"error", b"oops"), 0)
    assert caught.value.error_class == STREAM_ERROR


def test_the_end_is_done_or_a_finish_reason():
    assert not feed(text("a")).terminated
    assert feed(text("a"), b"[DONE]").terminated
    assert feed(text("a", finish_reason="length")).terminated


def test_outputs_are_told_apart_by_ids_then_by_text():
    ids = feed(text("a", token_ids=[1, 2]), text("b", token_ids=[3]))
    rechunked = feed(text("", token_ids=[1]), text("ab", token_ids=[2, 3]))
    other = feed(text("ab", token_ids=[1, 2, 4]))
    assert ids.sha256() == rechunked.sha256() != other.sha256()
    assert feed(text("a"), text("b")).sha256() == feed(text("ab")).sha256()
