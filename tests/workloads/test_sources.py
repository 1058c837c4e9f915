"""Text files, the user's own lines, conversations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from workloads import (
    Arrivals,
    JsonlSource,
    SessionsSource,
    ShareGptSource,
    SonnetSource,
    WorkloadError,
    WorkloadSpec,
    build,
    build_all,
    load_workload,
)

HERE = Path(__file__).parent / "data"


def words(texts):
    """A tokenizer whose tokens are words."""
    return [len(text.split()) for text in texts]


def made(source, *, nonce="n", kind="burst", count_tokens=words, reuse=False, **more):
    arrivals = Arrivals(kind=kind, max_concurrency=2 if kind == "closed" else None)
    spec = WorkloadSpec(source=source, arrivals=arrivals, reuse_content=reuse)
    return build_all(spec, seed=more.pop("seed", 0), nonce=nonce, count_tokens=count_tokens, **more)


def sharegpt(**more):
    return ShareGptSource(path=str(HERE / "sharegpt.json"), **more)


def test_sharegpt_takes_first_exchanges_and_says_what_it_left_out():
    result = made(sharegpt(), nonce="")
    assert result.notes["conversations_in_file"] == 5
    assert result.notes["dropped_no_exchange"] == 1  # begins with the assistant
    assert result.notes["dropped_by_length"] == 1  # "Hi" is under four tokens
    assert result.notes["asked_for_more_than_there_are"] == 100
    assert result.notes["token_counts"] == "tokenizer"
    lengths = {r.prompt.split()[0]: r.max_tokens for r in result.requests}
    assert lengths == {"Please": 20, "Name": 8, "Write": 8}
    assert {r.max_tokens for r in made(sharegpt(output_tokens=7)).requests} == {7}


def test_sharegpt_order_is_the_seeds_and_the_tag_the_nonces():
    first, second = (made(sharegpt(), nonce=n).requests for n in ("a", "b"))
    untagged = made(sharegpt(), nonce="a", reuse=True).requests
    for one, other, plain in zip(first, second, untagged, strict=True):
        assert one.prompt != other.prompt
        assert one.prompt.endswith(plain.prompt)
        assert other.prompt.endswith(plain.prompt)
        assert one.prompt[:10] != other.prompt[:10]
    orders = {tuple(r.prompt for r in made(sharegpt(), reuse=True, seed=s).requests) for s in range(10)}
    assert len(orders) > 1


def test_without_a_tokenizer_lengths_are_an_estimate_that_says_so():
    result = made(sharegpt(min_tokens=1), count_tokens=None)
    assert "estimate" in result.notes["token_counts"]


@pytest.mark.parametrize(
    ("text", "message"), [("{}", "list of conversations"), ("[1", "list"), ("[]", "that fit")]
)
def test_bad_conversation_files(tmp_path, text, message):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=message):
        made(ShareGptSource(path=str(path)))


def test_verse_is_never_longer_than_asked_and_shares_its_prefix():
    source = SonnetSource(input_tokens=120, output_tokens=9, prefix_tokens=40)
    requests = made(source, nonce="", num_requests=12).requests
    prompts = [r.prompt for r in requests]
    sizes = words(prompts)
    assert all(100 < size <= 120 for size in sizes)  # a line has at most ten words
    head = prompts[0].split("\n")[:4]
    assert all(p.split("\n")[:4] == head for p in prompts)
    assert len(set(prompts)) == 12
    other = made(source, nonce="x", num_requests=12, reuse=False).requests
    assert not {r.prompt.split("] ", 1)[-1] for r in other} & set(prompts)


def test_the_users_own_lines_in_their_order_or_at_their_times():
    source = JsonlSource(path=str(HERE / "custom.jsonl"), output_tokens=50)
    in_order = made(source, nonce="").requests
    assert [r.group for r in in_order] == ["story", "custom", "custom"]
    assert [r.max_tokens for r in in_order] == [12, 50, 3]
    assert in_order[1].prompt_token_ids.tolist() == [5, 6, 7, 8]
    assert in_order[2].extra_body == {"temperature": 0.0, "top_p": 0.5}
    timed = made(source, nonce="", kind="trace").requests
    assert [r.offset_ns for r in timed] == [0, 500_000_000, 1_000_500_000]
    assert [r.group for r in timed] == ["custom", "story", "custom"]
    assert [r.index for r in timed] == [0, 1, 2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a", "messages": []}', "one of prompt, prompt_token_ids, messages"),
        ('{"output_tokens": 3}', "one of prompt"),
        ('{"promt": "a"}', "promt"),
        ("nonsense", "line 1"),
    ],
)
def test_bad_lines(tmp_path, line, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(line)
    with pytest.raises(WorkloadError, match=message):
        made(JsonlSource(path=str(path)))


SESSIONS = SessionsSource(
    turns=(2, 4),
    first_input_tokens=(20, 40),
    input_tokens=(3, 6),
    output_tokens=5,
    think_s=0.5,
    prefix_tokens=16,
)


def test_sessions_have_turns_in_a_row_and_only_openings_in_the_schedule():
    spec = WorkloadSpec(source=SESSIONS, arrivals=Arrivals(kind="poisson", rate=2.0))
    requests = build(spec, seed=0, nonce="n", num_requests=50)
    assert [r.index for r in requests] == list(range(len(requests)))
    sessions = {}
    for r in requests:
        sessions.setdefault(r.session, []).append(r)
    assert len(sessions) == 50
    assert {len(turns) for turns in sessions.values()} == {2, 3, 4}
    for turns in sessions.values():
        assert [r.turn for r in turns] == list(range(len(turns)))
        assert turns[0].offset_ns is not None
        assert turns[0].think_ns == 0
        assert 20 <= len(turns[0].prompt_token_ids) <= 40
        assert all(r.offset_ns is None and 3 <= len(r.prompt_token_ids) <= 6 for r in turns[1:])
    heads = {tuple(turns[0].prompt_token_ids[:16]) for turns in sessions.values()}
    assert len(heads) == 1
    thoughts = np.array([r.think_ns for r in requests if r.turn]) / 1e9
    # Exponential with mean 0.5 s: six standard errors.
    assert abs(thoughts.mean() - 0.5) < 6 * 0.5 / np.sqrt(len(thoughts))


def test_the_nonce_changes_what_is_said_not_when():
    spec = WorkloadSpec(source=SESSIONS, arrivals=Arrivals(kind="poisson", rate=2.0))
    first, second = (build(spec, seed=0, nonce=n, num_requests=5) for n in ("a", "b"))
    assert [(r.offset_ns, r.think_ns, r.max_tokens) for r in first] == [
        (r.offset_ns, r.think_ns, r.max_tokens) for r in second
    ]
    assert all(
        a.prompt_token_ids.tolist() != b.prompt_token_ids.tolist() for a, b in zip(first, second, strict=True)
    )


def test_the_longest_conversation_must_fit():
    assert SESSIONS.max_total_tokens == 40 + 3 * 6 + 4 * 5
    spec = WorkloadSpec(source=SESSIONS, arrivals=Arrivals(kind="burst"))
    with pytest.raises(WorkloadError, match="78"):
        build(spec, seed=0, nonce="", num_requests=1, max_model_len=77)


def test_popular_prefixes_follow_zipf():
    base = load_workload("shared-prefix").model_dump()
    base["classes"] = [{**base["classes"][0], "prefix_skew": 1.0, "num_prefixes": 4}]
    spec = WorkloadSpec.create(base)
    requests = build(spec, seed=0, nonce="", num_requests=800, rate=1.0)
    counts = sorted(np.unique([r.prompt_token_ids[0] for r in requests], return_counts=True)[1], reverse=True)
    expected = 800 * np.array([1, 1 / 2, 1 / 3, 1 / 4]) / (1 + 1 / 2 + 1 / 3 + 1 / 4)
    assert np.abs(np.array(counts) - expected).max() < 6 * np.sqrt(800 / 4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {
                "source": {"kind": "sonnet", "input_tokens": 9, "output_tokens": 1},
                "classes": [{"input_tokens": 1, "output_tokens": 1}],
            },
            "exactly one",
        ),
        ({}, "exactly one"),
        (
            {
                "source": {"kind": "sonnet", "input_tokens": 9, "output_tokens": 1},
                "arrivals": {"kind": "trace"},
            },
            "with times",
        ),
        ({"source": {"kind": "trace", "format": "azure", "path": "x", "model": "GPT-4"}}, "no such column"),
        (
            {"source": {"kind": "trace", "format": "azure", "path": "x", "start_s": 5, "end_s": 5}},
            "not after",
        ),
        ({"source": {"kind": "poem"}}, "poem"),
    ],
)
def test_specs_that_make_no_sense(fields, message):
    with pytest.raises(WorkloadError, match=message):
        WorkloadSpec.create(fields)


def test_a_path_in_a_file_starts_where_the_file_lies(tmp_path):
    (tmp_path / "lines.jsonl").write_text('{"prompt": "a b c"}')
    (tmp_path / "mine.toml").write_text(
        '[arrivals]\nkind = "burst"\n[source]\nkind = "jsonl"\npath = "lines.jsonl"\n'
    )
    spec = load_workload(str(tmp_path / "mine.toml"))
    assert [r.prompt for r in build(spec, seed=0, nonce="")] == ["a b c"]
