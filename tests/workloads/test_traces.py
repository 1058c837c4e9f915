"""Published traces: units, filters, windows, length policies, and the count of what each of them touched."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from workloads import Arrivals, TraceSource, WorkloadError, WorkloadSpec, build_all
from workloads.traces import read_trace, select
from workloads.traces.select import grid_ns

HERE = Path(__file__).parent / "data"
SHARED = Path(os.environ.get("WORKBENCH_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data")
FILES = {
    "mooncake": HERE / "mooncake.jsonl",
    "azure": HERE / "azure_2023.csv",
    "burstgpt": HERE / "burstgpt.csv",
}


def source(format: str, **more) -> TraceSource:
    return TraceSource(format=format, path=str(FILES[format]), **more)


def built(trace: TraceSource, *, nonce: str = "n", seed: int = 0, **more):
    spec = WorkloadSpec(source=trace, arrivals=Arrivals(kind="trace"))
    return build_all(spec, seed=seed, nonce=nonce, **more)


def shared(name: str) -> str:
    path = SHARED / name
    if not path.is_file():
        pytest.skip(f"{path} is not here (set WORKBENCH_SHARED_DATA to the folder of published traces)")
    return str(path)


def test_mooncake_counts_milliseconds():
    rows = read_trace("mooncake", str(FILES["mooncake"]))
    assert rows.time_ns.tolist() == [0, 0, 3_001_000_000, 3_001_000_000, 6_000_000_000, 8_999_000_000]
    assert rows.blocks.of(3).tolist() == [0, 1, 4]


def test_azure_of_both_years():
    rows = read_trace("azure", str(FILES["azure"]))
    # Seven digits: 100 ns each. The first row is the trace's beginning.
    assert rows.time_ns.tolist() == [0, 52_000_000, 98_159_000, 61_000_000_000]
    assert rows.input_tokens.tolist() == [4808, 3180, 110, 7]
    later = read_trace("azure", str(HERE / "azure_2024.csv"))
    assert later.time_ns.tolist() == [0, 7_405_000, 990_070_000]
    assert later.output_tokens.tolist() == [5, 6, 15]


def test_burstgpt_columns_are_taken_by_name_and_failures_left_out():
    rows = select(read_trace("burstgpt", str(FILES["burstgpt"])), source("burstgpt"))
    assert rows.time_ns.tolist() == [0, 40_000_000_000, 113_000_000_000, 295_000_000_000]
    assert rows.output_tokens.tolist() == [18, 230, 276, 30]
    assert rows.counts == {"rows_in_file": 5, "dropped_failed_or_empty": 1, "rows_used": 4}
    only = select(
        read_trace("burstgpt", str(FILES["burstgpt"])),
        source("burstgpt", model="GPT-4", log_type="Conversation log"),
    )
    assert only.input_tokens.tolist() == [417]
    assert only.counts["dropped_other_model"] == 2
    assert only.counts["dropped_other_log_type"] == 2  # one of them also a failure
    assert only.counts["rows_used"] == 1


def test_a_window_is_rebased():
    rows = select(read_trace("mooncake", str(FILES["mooncake"])), source("mooncake", start_s=3.0, end_s=8.0))
    assert rows.time_ns.tolist() == [1_000_000, 1_000_000, 3_000_000_000]
    assert rows.counts == {"rows_in_file": 6, "dropped_outside_window": 3, "rows_used": 3}


@pytest.mark.parametrize(
    ("policy", "lengths", "counts"),
    [
        ("drop", [900, 512, 513], {"dropped_too_long": 3}),
        ("truncate", [1024, 900, 512, 1024, 513, 1024], {"truncated_input": 3}),
        # One factor, 1024/2048: a block of 512 becomes 256, a last block of 76 tokens 38.
        ("scale", [550, 450, 256, 650, 257, 1024], {"scaled_input": 6}),
    ],
)
def test_length_policies_count_what_they_touch(policy, lengths, counts):
    result = built(source("mooncake", max_input_tokens=1024, length_policy=policy))
    assert [r.num_prompt_tokens for r in result.requests] == lengths
    assert [len(r.prompt_token_ids) for r in result.requests] == lengths
    trace = result.notes["trace"]
    assert {name: trace[name] for name in counts} == counts
    assert trace["rows_used"] == len(lengths)


def test_output_lengths_have_a_policy_too():
    cut = built(source("mooncake", max_output_tokens=50, length_policy="truncate"))
    assert [r.max_tokens for r in cut.requests] == [40, 12, 5, 50, 7, 50]
    assert cut.notes["trace"]["truncated_output"] == 2
    scaled = built(source("mooncake", max_output_tokens=30, length_policy="scale"))
    assert [r.max_tokens for r in scaled.requests] == [4, 1, 1, 6, 1, 30]


@pytest.mark.parametrize("more", [{}, {"max_input_tokens": 1024, "length_policy": "scale"}])
def test_equal_hash_ids_are_equal_content_and_nothing_else_is(more):
    trace = source("mooncake", **more)
    rows = select(read_trace("mooncake", trace.path), trace)
    prompts = [r.prompt_token_ids.tolist() for r in built(trace).requests]
    size = rows.blocks.tokens
    for i, one in enumerate(prompts):
        for j, other in enumerate(prompts):
            same = 0
            for a, b in zip(rows.blocks.of(i), rows.blocks.of(j), strict=False):
                if a != b:
                    break
                same += size
            common = min(same, len(one), len(other))
            assert one[:common] == other[:common]
            # Behind what the ids share, not even one KV block of 16 goes on.
            rest = slice(common, common + 16)
            assert i == j or one[rest] != other[rest] or common in (len(one), len(other))


def test_content_of_a_block_depends_on_its_id_and_the_nonce_only():
    whole = built(source("mooncake")).requests
    window = built(source("mooncake", start_s=3.0)).requests
    assert window[0].prompt_token_ids.tolist() == whole[2].prompt_token_ids.tolist()
    other = built(source("mooncake"), nonce="m").requests
    assert all(
        a.prompt_token_ids[:16].tolist() != b.prompt_token_ids[:16].tolist()
        for a, b in zip(whole, other, strict=True)
    )
    assert [r.offset_ns for r in whole] == [r.offset_ns for r in other]


def test_doubling_the_speed_halves_the_span():
    slow, fast = (built(source("azure", speed=speed)).requests for speed in (1.0, 2.0))
    assert [r.offset_ns for r in fast] == [r.offset_ns // 2 for r in slow]


def test_spreading_stays_inside_the_grid_and_says_which():
    raw = read_trace("mooncake", str(FILES["mooncake"]))
    assert grid_ns(raw) == 2_999_000_000  # stamps 0, 3001, 6000, 8999 ms
    result = built(source("mooncake", spread="uniform"))
    offsets = [r.offset_ns for r in result.requests]
    assert offsets == sorted(offsets)
    assert result.notes["trace"]["spread_grid_ms"] == 2999
    assert len(set(offsets)) == 6
    bins = [at // 3_001_000_000 for at in offsets]
    assert bins.count(0) == 2
    again = built(source("mooncake", spread="uniform"))
    assert offsets == [r.offset_ns for r in again.requests]


def test_rates_of_ones_own_on_the_lengths_of_a_trace():
    spec = WorkloadSpec(source=source("azure"), arrivals=Arrivals(kind="constant", rate=10.0))
    requests = build_all(spec, seed=0, nonce="").requests
    assert [r.offset_ns for r in requests] == [0, 100_000_000, 200_000_000, 300_000_000]
    assert [r.num_prompt_tokens for r in requests] == [4808, 3180, 110, 7]


def test_numbers_cut_from_the_windows_start():
    assert built(source("mooncake"), num_requests=2).notes["trace"]["dropped_beyond_max_rows"] == 4
    short = built(source("mooncake"), duration_s=4.0)
    assert len(short.requests) == 4
    assert short.notes["trace"]["dropped_beyond_duration"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1]}',
            "line 1: 1 hash_ids where",
        ),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1}\n{"timestamp": 1}', "line 2"),
        ("", "at least one row"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, text, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=message):
        read_trace("mooncake", str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TIMESTAMP,ContextTokens\n", "lacks GeneratedTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "line 2: TIMESTAMP='yesterday'"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,1,x\n",
            "line 2: GeneratedTokens='x'",
        ),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,1\n", "line 2: 2 fields"),
    ],
)
def test_a_malformed_table_is_named(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=message):
        read_trace("azure", str(path))


def test_refusals():
    with pytest.raises(WorkloadError, match="one of ChatGPT, GPT-4"):
        select(read_trace("burstgpt", str(FILES["burstgpt"])), source("burstgpt", model="GPT-5"))
    with pytest.raises(WorkloadError, match="a window"):
        select(read_trace("azure", str(FILES["azure"])), source("azure", start_s=1e6))
    with pytest.raises(WorkloadError, match="readable"):
        read_trace("azure", "/nowhere.csv")


def test_the_published_mooncake_conversations():
    path = shared("mooncake_conversation_trace.jsonl")
    start = time.process_time()
    rows = read_trace("mooncake", path)
    assert time.process_time() - start < 1.0
    assert len(rows) == 12_031
    assert round(rows.input_tokens.mean()) == 12_035
    assert (len(rows.blocks.ids), len(np.unique(rows.blocks.ids))) == (288_500, 182_790)
    assert abs(grid_ns(rows) - 3_000_000_000) <= 3_000_000
    trace = TraceSource(
        format="mooncake", path=path, start_s=600, end_s=660, max_input_tokens=4096, max_output_tokens=64,
        length_policy="truncate", spread="uniform",
    )  # fmt: skip
    result = built(trace)
    counts = result.notes["trace"]
    assert counts["dropped_outside_window"] + counts["rows_used"] == 12_031
    assert len(result.requests) == counts["rows_used"] > 100
    assert max(r.num_prompt_tokens for r in result.requests) <= 4096
    assert 0 < counts["truncated_input"] <= counts["rows_used"]
    assert all(0 <= r.offset_ns < 63_003_000_000 for r in result.requests)


def test_the_published_azure_code_trace():
    rows = read_trace("azure", shared("AzureLLMInferenceTrace_code_2023.csv"))
    assert len(rows) == 8_819
    assert round(rows.input_tokens.mean()) == 2_048
    assert rows.input_tokens.max() == 7_437
    gaps = np.diff(rows.time_ns) / 1e9
    assert gaps.std() / gaps.mean() == pytest.approx(13.2, abs=0.1)
    assert (gaps < 0.010).mean() == pytest.approx(0.387, abs=0.001)
