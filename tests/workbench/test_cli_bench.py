"""``workbench bench`` end to end against the mock server, through the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest

from tests.workbench.conftest import WORKBENCH, environment
from workbench.runstore import RunStore
from workloads import DEFAULT_SWEEP_PRESET, load_workload

FAST = ("--num-warmups", "2", "--no-progress")
NOBODY = ("--base-url", "http://127.0.0.1:9")


def last_json(done) -> dict:
    lines = done.stdout.splitlines()
    assert len(lines) == 1  # exactly one object, everything else on stderr
    return json.loads(lines[0])


def test_a_run_and_its_bundle(start_mock, cli, tmp_path):
    mock = start_mock("--ttft-ms", "20", "--itl-ms", "2")
    done = cli(
        "bench",
        "--base-url",
        mock.url,
        "--request-rate",
        "40",
        "--num-prompts",
        "16",
        "--goodput",
        "ttft:5000 itl:5000",
        "--seed",
        "3",
        "--tag",
        "x",
        "--json",
        *FAST,
    )
    shown = last_json(done)
    counts = shown["metrics"]["counts"]
    assert (counts["offered"], counts["ok"], counts["failed"]) == (16, 16, 0)
    assert counts["output_tokens"] == 12 * 192 + 4 * 16  # three chats to one document, by largest remainder
    assert shown["metrics"]["goodput"]["ratio"] == 1
    assert shown["metrics"]["latency"]["ttft"]["p50"] >= 20
    assert set(shown) == {"run", "valid", "metrics"}

    run = RunStore(tmp_path / "runs").open(shown["run"])
    assert run.metrics() == shown["metrics"]
    manifest = run.manifest
    assert (manifest.status, manifest.seed, manifest.tags) == ("complete", 3, ["x"])
    assert manifest.target.kind == "attach"
    assert manifest.target.model == "mock"
    assert len(manifest.clock) == 2
    assert manifest.load["features"] == {"return_token_ids": True, "ignore_eos": True, "stream_usage": True}
    requests = run.table("requests")
    assert requests["phase"].tolist() == ["warmup"] * 2 + ["measure"] * 16
    log = {row["request_id"]: row for row in mock.log()}
    for row in requests.itertuples():
        seen = log[row.request_id]
        assert row.sent_ns <= seen["arrived_ns"]
        assert row.first_token_ns >= seen["sent_ns"][0]
        assert row.prompt_tokens == seen["prompt_tokens"]
        assert row.output_tokens == row.max_tokens == len(seen["sent_ns"])
    chunks = run.table("chunks")
    assert chunks.groupby("request_id")["n_tokens"].sum().to_dict() == dict(
        zip(requests["request_id"], requests["output_tokens"], strict=True)
    )
    assert manifest.tables["telemetry_cpu"].rows == len(run.table("telemetry_cpu"))


def test_calibration_gives_the_rate(start_mock, cli, tmp_path):
    mock = start_mock("--ttft-ms", "20", "--itl-ms", "0", "--slots", "2")
    done = cli("bench", "--base-url", mock.url, "--num-prompts", "6", "--json", *FAST)
    rate = last_json(done)["metrics"]["load"]["requested_rate"]
    infos = RunStore(tmp_path / "runs").list()
    assert [info.tags for info in infos] == [("calibration",), ()]
    # Two slots of 20 ms serve at most 100/s; the rate is the workload's share of what was seen.
    share = load_workload(DEFAULT_SWEEP_PRESET).arrivals.utilisation
    assert rate == float(f"{share * infos[0].metrics['request_s']:.3g}")
    assert rate <= 100 * share


def test_chat_closed_loop_and_vllm_result(start_mock, cli, tmp_path):
    mock = start_mock("--ttft-ms", "5", "--itl-ms", "1")
    cli(
        "bench",
        "--base-url",
        f"{mock.url}/v1/",
        "--endpoint",
        "chat",
        "--max-concurrency",
        "2",
        "--num-prompts",
        "8",
        "--random-input-len",
        "12",
        "--random-output-len",
        "5",
        "--save-result",
        "--save-detailed",
        "--result-filename",
        "r.json",
        *FAST,
    )
    result = json.loads((tmp_path / "r.json").read_text())
    assert (result["backend"], result["completed"], result["failed"]) == ("openai-chat", 8, 0)
    assert result["request_rate"] == "inf"
    assert result["max_concurrency"] == 2
    assert result["max_concurrent_requests"] == 2
    assert result["output_lens"] == [5] * 8
    assert [len(gaps) for gaps in result["itls"]] == [4] * 8
    assert all(
        0 < ttft <= latency for ttft, latency in zip(result["ttfts"], result["latencies"], strict=True)
    )
    assert result["mean_itl_ms"] == pytest.approx(
        1e3 * sum(map(sum, result["itls"])) / sum(map(len, result["itls"]))
    )
    run = RunStore(tmp_path / "runs").open(result["workbench"]["run"])
    assert run.manifest.load["arrivals"] == "closed"


def test_a_strict_server_gets_no_field_it_refuses(start_mock, cli, tmp_path):
    mock = start_mock("--script", '{"refuse": ["return_token_ids", "ignore_eos"]}')
    shown = last_json(
        cli(
            "bench",
            "--base-url",
            mock.url,
            "--random-input-len",
            "8",
            "--random-output-len",
            "4",
            "--num-prompts",
            "3",
            "--json",
            *FAST,
        )
    )
    assert shown["metrics"]["counts"]["ok"] == 3
    run = RunStore(tmp_path / "runs").open(shown["run"])
    assert run.manifest.load["features"] == {
        "return_token_ids": False,
        "ignore_eos": False,
        "stream_usage": True,
    }
    assert set(run.table("requests")["output_tokens_source"]) == {"usage"}


def test_failures_make_the_run_invalid_and_are_counted(start_mock, cli):
    mock = start_mock("--script", '{"cut_after": 3}')
    arguments = ("--random-input-len", "8", "--random-output-len", "8", "--num-prompts", "5")
    done = cli("bench", "--base-url", mock.url, *arguments, "--json", *FAST, check=False)
    shown = last_json(done)
    assert done.returncode == 1  # nothing was served
    assert shown["valid"] is False
    assert shown["metrics"]["counts"]["errors"] == {"truncated": 5}
    assert "INVALID" in done.stderr
    assert "first truncated: " in done.stderr
    assert "latency, ms" not in done.stderr  # there is none


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_a_readable_partial_bundle(start_mock, cli, tmp_path, number):
    mock = start_mock("--ttft-ms", "1", "--itl-ms", "20")
    command = [
        *WORKBENCH,
        "bench",
        "--base-url",
        mock.url,
        "--request-rate",
        "20",
        "--num-prompts",
        "2000",
        "--random-input-len",
        "8",
        "--random-output-len",
        "4",
        "--json",
        *FAST,
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
        cwd=tmp_path,
    )
    while sum(row["outcome"] == "ok" for row in mock.log()) < 8:
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    shown = json.loads(out)
    assert shown["valid"] is False
    assert "interrupted before its end" in shown["metrics"]["validity"]["reasons"]
    run = RunStore(tmp_path / "runs").open(shown["run"])
    assert run.manifest.status == "interrupted"
    assert (run.table("requests")["status"] == "ok").sum() >= 3
    assert shown["metrics"]["counts"]["ok"] >= 1


def test_ctrl_c_while_it_waits_is_one_line(tmp_path):
    command = [*WORKBENCH, "bench", *NOBODY, "--dataset-name", "random"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(tmp_path))
    assert process.stderr.readline().startswith("waiting for http://127.0.0.1:9 (Connection refused)")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "error: interrupted\n")
    (run,) = RunStore(tmp_path / "runs").list()
    assert (run.status, run.error) == ("interrupted", "interrupted")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--base-url", "http://127.0.0.1:9", "--request-rate", "1", "--ready-check-timeout-sec", "0.3"),
            "base-url=",
        ),
        (("--base-url", "127.0.0.1:9", "--request-rate", "1"), "base-url="),
        (("--base-url", "http://127.0.0.1:x", "--request-rate", "1"), "base-url="),
        (("--goodput", "ttft:fast"), "goodput="),
        (("--workload", "nope"), "workload="),
        (("--request-rate", "-1"), "request-rate="),
        (("--max-num-batched-tokens", "0"), "max_num_batched_tokens="),
        (("--max-num-seqs", "many"), "max-num-seqs"),
        (("--no-such-flag",), "--no-such-flag"),
        (("--max-concurrency", "2", "--goodput", "ttft_sched:5"), "goodput="),
        (("--model", "/no/such/folder", "--request-rate", "1"), "/no/such/folder"),
        (("--tokenizer", "/no/such/folder", "--request-rate", "1"), "tokenizer='/no/such/folder'"),
        (("--num-threads", "100000", "--request-rate", "1"), "num_threads=100000: "),
        ((*NOBODY, "--num-prompts", "9" * 20), "num-prompts=" + "9" * 20),
        ((*NOBODY, "--result-filename", "x.json"), "result-filename='x.json': only with --save-result"),
        # Known before anything waits for the server.
        ((*NOBODY, "--dataset-name", "custom", "--dataset-path", "/no/such/file"), "/no/such/file"),
        ((*NOBODY, "--dataset-name", "sharegpt", "--dataset-path", "/no/such/file"), "/no/such/file"),
        ((*NOBODY, "--tokenizer-path", "/no/such/file"), "tokenizer-path="),
        ((*NOBODY, "--dataset-name", "random", "--duration", "5"), "duration="),
        ((*NOBODY, "--save-result", "--result-dir", "/proc/nowhere"), "result-dir="),
        ((*NOBODY, "--dataset-name", "random", "--think-time", "5"), "think-time="),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(cli, arguments, words):
    done = cli("bench", *arguments, *FAST, "--json", check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert words in line


def test_runs_and_compare(start_mock, cli, tmp_path):
    mock = start_mock("--ttft-ms", "2", "--itl-ms", "1")
    ids = []
    for length in ("4", "8"):
        shown = last_json(
            cli(
                "bench",
                "--base-url",
                mock.url,
                "--random-input-len",
                "8",
                "--random-output-len",
                length,
                "--num-prompts",
                "4",
                "--json",
                *FAST,
            )
        )
        ids.append(shown["run"])
    listed = json.loads(cli("runs", "list", "--json").stdout)["runs"]
    assert [row["id"] for row in listed] == ids
    assert listed[0]["metrics"]["ok"] == 4
    assert ids[0] in cli("runs", "list").stdout
    assert "ttft" in cli("runs", "show", ids[0]).stdout
    stored = json.loads(cli("runs", "show", ids[1], "--json").stdout)
    assert stored["manifest"]["status"] == "complete"

    compared = json.loads(cli("compare", *ids, "--json").stdout)
    (other,) = compared["runs"]
    assert compared["baseline"] == ids[0]
    p50s = [row["metrics"]["e2el_p50"] for row in listed]
    assert other["ratios"]["e2el_p50"]["point"] == pytest.approx(p50s[1] / p50s[0])
    assert list(other["differences"]) == ["workload"]
    assert ids[1] in cli("compare", *ids).stdout
    assert "runs=" in cli("compare", ids[0], check=False).stderr

    cli("runs", "rm", ids[0])
    assert not (tmp_path / "runs" / ids[0]).exists()
    assert cli("runs", "show", ids[0], check=False).returncode == 2


def test_the_command_itself(cli):
    helped = cli("--help")
    for command in ("bench", "compare", "runs", "mock-server"):
        assert command in helped.stdout
    assert cli("--version").stdout.startswith("workbench ")
    assert cli(check=False).returncode == 2
    unknown = cli("nope", check=False)
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    for flag in ("--random-input-len", "--max-num-batched-tokens", "--goodput", "--enable-prefix-caching"):
        assert flag in cli("bench", "--help").stdout
    script = cli("mock-server", "--script", '{"nope": 1}', check=False)
    assert (script.returncode, script.stderr.count("\n")) == (2, 1)
