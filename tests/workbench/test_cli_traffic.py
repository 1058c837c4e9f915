"""Traffic from the command line: flags to workloads, traces end to end, runs to other tools and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.errors import InvalidInputError
from tests.workbench.test_request_flags import spec_of
from workbench.runstore import RunStore
from workloads import WorkloadError

DATA = Path(__file__).parents[1] / "workloads" / "data"
MOONCAKE = str(DATA / "mooncake.jsonl")


def trace(**more):
    return {"dataset_path": MOONCAKE, **more}


def test_a_trace_is_replayed_at_its_own_times():
    flags = trace(
        trace_speed=2.0, trace_spread="uniform", trace_start=1.0, max_input_len=99, length_policy="scale"
    )
    workload = spec_of(dataset_name="mooncake", traffic=flags).workload
    assert workload.arrivals.kind == "trace"
    assert (workload.source.speed, workload.source.spread, workload.source.start_s) == (2.0, "uniform", 1.0)
    assert (workload.source.max_input_tokens, workload.source.length_policy) == (99, "scale")


def test_concurrency_delays_a_trace_and_a_rate_replaces_its_times():
    limited = spec_of(dataset_name="mooncake", traffic=trace(), max_concurrency=3).workload.arrivals
    assert (limited.kind, limited.max_concurrency) == ("trace", 3)
    rated = spec_of(dataset_name="mooncake", traffic=trace(), request_rate="5")
    assert (rated.workload.arrivals.kind, rated.rate) == ("poisson", 5.0)


@pytest.mark.parametrize(
    ("name", "traffic", "expected"),
    [
        (
            "sharegpt",
            {"dataset_path": "x.json", "sharegpt_output_len": 9},
            {"kind": "sharegpt", "output_tokens": 9},
        ),
        ("custom", {"dataset_path": "x.jsonl"}, {"kind": "jsonl", "output_tokens": 256}),
        ("sonnet", {"sonnet_prefix_len": 10}, {"kind": "sonnet", "prefix_tokens": 10}),
        ("sessions", {"think_time": 0.5, "num_turns": 3}, {"kind": "sessions", "think_s": 0.5}),
    ],
)
def test_sources_by_their_vllm_names(name, traffic, expected):
    source = spec_of(dataset_name=name, traffic=traffic).workload.source
    assert expected.items() <= source.model_dump().items()


def test_prefix_repetition_as_in_vllm():
    traffic = {"prefix_repetition_prefix_len": 8, "prefix_repetition_num_prefixes": 3}
    (only,) = spec_of(dataset_name="prefix_repetition", traffic=traffic).workload.classes
    assert (only.input_tokens.value, only.prefix_tokens, only.num_prefixes, only.output_tokens.value) == (
        264,
        8,
        3,
        128,
    )


def test_stages_and_ramps():
    stages = spec_of(traffic={"stages": "1:30,1-20:60"}).workload.arrivals.stages
    assert [(s.rate, s.last_rate, s.seconds) for s in stages] == [(1, 1, 30), (1, 20, 60)]
    ramp = {"ramp_up_strategy": "exponential", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 8.0}
    spec = spec_of(dataset_name="random", traffic=ramp, duration=20.0, burstiness=float("inf"))
    (only,) = spec.workload.arrivals.stages
    assert (only.shape, only.seconds, spec.workload.arrivals.kind) == ("exponential", 20.0, "constant")


def test_the_clients_own_flags():
    client = {"workers": 2, "retries": 1, "request_cancellation_rate": 0.1, "request_cancellation_delay": 2.0}
    spec = spec_of(client=client)
    assert (spec.workers, spec.retries, spec.cancellation_rate, spec.cancellation_delay_s) == (2, 1, 0.1, 2.0)


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        ({"dataset_name": "mooncake"}, "dataset-path"),
        ({"dataset_name": "chat", "traffic": {"trace_speed": 2.0}}, "trace-speed"),
        ({"dataset_name": "mooncake", "traffic": trace(think_time=1.0)}, "think-time"),
        ({"traffic": {"stages": "fast"}}, "stages"),
        ({"traffic": {"stages": "1:30"}, "request_rate": "3"}, "request-rate"),
        ({"traffic": {"ramp_up_start_rps": 1.0}}, "ramp-up-start-rps"),
        ({"traffic": {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0}}, "ramp-up-end-rps"),
        ({"traffic": {"ramp_up_strategy": "linear", "stages": "1:2"}}, "stages"),
        ({"client": {"workers": 0}}, "workers"),
        ({"client": {"request_cancellation_rate": 1.5}}, "request-cancellation-rate"),
        ({"dataset_name": "mooncake", "traffic": trace(trace_speed=0.0)}, "trace-speed"),
        ({"dataset_name": "mooncake", "traffic": trace(max_input_len=0)}, "max-input-len"),
        ({"dataset_name": "mooncake", "traffic": trace(trace_start=5.0, trace_end=3.0)}, "source.trace"),
        ({"dataset_name": "sessions", "traffic": {"num_turns": 0}}, "num-turns"),
        ({"dataset_name": "sonnet", "traffic": {"sonnet_input_len": 10}}, "source.sonnet"),
    ],
)
def test_refusals_name_the_flag(flags, field):
    with pytest.raises((InvalidInputError, WorkloadError)) as caught:
        spec_of(**flags)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_a_trace_end_to_end_out_to_other_tools_and_back(start_mock, cli, tmp_path):
    mock = start_mock("--ttft-ms", "1", "--itl-ms", "0")
    done = cli(
        "bench", "--base-url", mock.url, "--dataset-name", "mooncake", "--dataset-path", MOONCAKE,
        "--trace-speed", "20", "--max-input-len", "1024", "--max-output-len", "20",
        "--length-policy", "truncate",
        "--num-warmups", "0", "--workers", "2", "--no-progress", "--json",
    )  # fmt: skip
    shown = json.loads(done.stdout.splitlines()[-1])
    assert shown["metrics"]["counts"]["ok"] == 6
    assert shown["metrics"]["client"]["workers"] == 2
    store = RunStore(tmp_path / "runs")
    notes = store.open(shown["run"]).manifest.load["workload_notes"]
    assert notes["trace"] == {"rows_in_file": 6, "truncated_input": 3, "truncated_output": 3, "rows_used": 6}
    assert notes["shared_content"] == "hash_ids"
    assert "truncated_input 3" in done.stderr
    sent = sorted(mock.log(), key=lambda row: row["arrived_ns"])
    assert sorted(row["prompt_tokens"] for row in sent if row["request_id"]) == [
        512,
        513,
        900,
        1024,
        1024,
        1024,
    ]
    for format in ("vllm", "guidellm", "aiperf", "csv"):
        out = tmp_path / f"out-{format}{'.csv' if format == 'csv' else '.json'}"
        assert cli(
            "runs", "export", shown["run"], "--format", format, "--out", str(out)
        ).stdout.strip() == str(out)
        back = json.loads(cli("runs", "import", str(out), "--json").stdout)
        metrics = store.open(back["run"]).metrics()
        assert metrics["counts"]["ok"] == 6
        p50 = shown["metrics"]["latency"]["ttft"]["p50"]
        assert metrics["latency"]["ttft"]["p50"] == pytest.approx(p50, abs=0.001)
        compared = json.loads(cli("compare", shown["run"], back["run"], "--json").stdout)
        assert compared["runs"][0]["ratios"]["ttft_p50"]["point"] == pytest.approx(1, abs=0.01)
    assert cli("runs", "export", shown["run"], "--format", "pdf", check=False).returncode == 2
    assert cli("runs", "import", "nowhere.json", check=False).returncode == 2
