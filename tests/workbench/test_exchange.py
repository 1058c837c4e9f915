"""Other tools' formats, both ways: what comes back is what was measured, and what a format lacks stays
unknown."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from engine.errors import InvalidInputError
from tests.workbench.tables import ORIGIN_NS, Book
from workbench.exchange.files import export_run, import_file
from workbench.exchange.vllm import parse_percentiles, vllm_result
from workbench.manifest import ClockPair, TargetInfo
from workbench.metrics import flat
from workbench.metrics.compute import compute_metrics
from workbench.records import CHUNKS_SCHEMA_VERSION, REQUESTS_SCHEMA_VERSION
from workbench.runstore import Run, RunStore
from workbench.slo import parse_slo

VLLM_KEYS = """
date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency
duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput
output_throughput total_token_throughput input_lens output_lens ttfts itls latencies start_times queue_times
generated_texts errors max_output_tokens_per_s max_concurrent_requests rtfx
mean_ttft_ms median_ttft_ms std_ttft_ms p99_ttft_ms mean_tpot_ms median_tpot_ms std_tpot_ms p99_tpot_ms
mean_itl_ms median_itl_ms std_itl_ms p99_itl_ms mean_e2el_ms median_e2el_ms std_e2el_ms p99_e2el_ms
""".split()  # noqa: SIM905 - one key a line would hide the list


@pytest.fixture
def store(tmp_path) -> RunStore:
    return RunStore(tmp_path / "runs")


@pytest.fixture
def run(store) -> Run:
    """Six requests due every 100 ms: two tokens in the first event of each, one fails, one is cancelled."""
    book = Book()
    for i in range(6):
        at, held = 100.0 * i, 3.0 * (i == 2)
        events = [(at + 20 + i + held, 2), (at + 30 + i + held, 1), (at + 45 + 2 * i + held, 3)]
        if i == 4:
            book.add(at, [(at + 20, 1)], status="failed", error_class="truncated")
        elif i == 5:
            book.add(at, [], status="cancelled", error_class="cancelled", close=at + 50)
        else:
            book.add(at + held, events, intended=at, cached_tokens=4)
    requests, chunks = book.tables()
    clock = [ClockPair(monotonic_ns=ORIGIN_NS, wall_ns=1_700_000_000_000_000_000)]
    writer = store.create(
        target=TargetInfo(kind="attach", base_url="http://h:1", model="m/small"),
        load={"endpoint": "completions", "rate": 10.0, "arrivals": "constant"},
        clock=clock,
        name="probe",
    )
    writer.write_table("requests", requests, REQUESTS_SCHEMA_VERSION)
    writer.write_table("chunks", chunks, CHUNKS_SCHEMA_VERSION)
    writer.write_metrics(
        compute_metrics(
            requests, chunks, start_ns=ORIGIN_NS, loop="open", requested_rate=10.0, slo=parse_slo("ttft:22")
        )
    )
    return writer.finish("complete")


def values_of(run: Run) -> dict[str, float | None]:
    return flat(run.metrics())


LATENCIES = ("ttft_p50", "ttft_mean", "e2el_p50", "e2el_p99", "tpot_p50")


def test_the_result_has_every_key_of_vllm_in_its_units(run):
    result = vllm_result(run, detailed=True)
    assert set(VLLM_KEYS) <= set(result)
    assert (result["completed"], result["failed"], result["num_prompts"]) == (4, 2, 6)
    assert result["ttfts"] == pytest.approx([0.020, 0.021, 0.022, 0.023, 0, 0])
    assert result["output_lens"] == [6, 6, 6, 6, 0, 0]
    assert result["itls"][3] == pytest.approx([0.010, 0.018])
    assert result["queue_times"][2] == pytest.approx(0.003)
    assert result["mean_ttft_ms"] == pytest.approx(21.5)
    assert result["mean_e2el_including_client_queue_ms"] == pytest.approx(result["mean_e2el_ms"] + 0.75)
    assert [bool(error) for error in result["errors"]] == [False] * 4 + [True] * 2
    assert result["workbench"]["goodput"]["good"] == 3
    # All 24 tokens of successes came within one second.
    assert result["max_output_tokens_per_s"] == 24


def test_percentiles_of_the_users_choice(run):
    result = vllm_result(run, percentiles=(50, 99.9, 25))
    assert result["p25_ttft_ms"] == pytest.approx(20.75)
    assert result["p99.9_ttft_ms"] == pytest.approx(22.997)
    assert result["p50_itl_ms"] == pytest.approx(result["median_itl_ms"])
    assert "p99_ttft_ms" not in result
    assert parse_percentiles("50,99.9") == (50.0, 99.9)
    for text in ("", "a", "101", "50;60"):
        with pytest.raises(InvalidInputError, match="metric-percentiles"):
            parse_percentiles(text)


@pytest.mark.parametrize("format", ["vllm", "guidellm", "aiperf", "csv"])
def test_there_and_back(run, store, tmp_path, format):
    back = import_file(
        export_run(run, format, tmp_path / f"out.{'csv' if format == 'csv' else 'json'}"), store
    )
    before, after = values_of(run), values_of(back)
    for name in LATENCIES:
        if name == "tpot_p50" and format in ("vllm", "guidellm"):
            continue  # these do not tell how many tokens the first event held
        # GuideLLM's stamps are wall-clock seconds as floats: a quarter of a microsecond is their grain.
        assert after[name] == pytest.approx(before[name], abs=0.001), name
    assert after["ok"] == 4
    assert after["offered"] == 6
    assert after["output_tokens"] == before["output_tokens"] - 1  # that of the failed request
    assert "imported" in back.manifest.tags
    assert any(note.startswith("imported from") for note in back.manifest.notes)
    knows_events = format in ("vllm", "aiperf")
    assert (back.arrow("chunks") is not None) == knows_events
    if knows_events:
        assert after["icl_p50"] == pytest.approx(before["icl_p50"], rel=1e-6)
        assert after["stall_p50"] == pytest.approx(before["stall_p50"], rel=1e-6)
    else:
        assert after["icl_p50"] is after["itl_p50"] is after["stall_p50"] is None
    if format != "aiperf":
        assert after["ttft_sched_mean"] == pytest.approx(before["ttft_sched_mean"], abs=0.001)


def test_a_summary_without_requests(store, tmp_path):
    path = tmp_path / "r.json"
    result = {
        "backend": "vllm", "model_id": "m", "num_prompts": 10, "request_rate": "inf", "max_concurrency": 4,
        "duration": 2.0, "completed": 9, "total_input_tokens": 90, "total_output_tokens": 180,
        "request_throughput": 4.5, "request_goodput:": 3.0, "output_throughput": 90.0,
        "total_token_throughput": 135.0, "mean_ttft_ms": 12.0, "median_ttft_ms": 11.0, "std_ttft_ms": 1.0,
        "p99_ttft_ms": 20.0, "mean_itl_ms": 5.0, "median_itl_ms": 4.0, "std_itl_ms": 1.0, "p99_itl_ms": 9.0,
    }  # fmt: skip
    path.write_text(json.dumps(result))
    run = import_file(path, store)
    values = values_of(run)
    assert (values["ttft_p50"], values["ttft_p99"], values["icl_p50"]) == (11.0, 20.0, 4.0)
    assert values["itl_p50"] is None  # its ITL is our ICL
    assert values["ttft_p90"] is None
    assert (values["goodput_s"], values["request_s"], values["output_tok_s"]) == (3.0, 4.5, 90.0)
    assert run.metrics()["validity"]["valid"] is False
    assert run.metrics()["load"]["loop"] == "closed"
    assert store.list()[-1].error is None


def test_guidellm_distributions_have_their_own_definitions(run, tmp_path):
    report = json.loads(export_run(run, "guidellm", tmp_path / "g.json").read_text())
    benchmark = report["benchmarks"][0]
    metrics = benchmark["metrics"]
    assert benchmark["scheduler_metrics"]["requests_made"] == {
        "successful": 4, "errored": 1, "incomplete": 1, "total": 6,
    }  # fmt: skip
    assert metrics["request_latency"]["successful"]["mean"] == pytest.approx(0.048)  # seconds
    # Latency over all six tokens, the first included.
    assert metrics["time_per_output_token_ms"]["successful"]["mean"] == pytest.approx(8.0)
    assert metrics["inter_token_latency_ms"]["successful"]["mean"] == pytest.approx((25 + 26 + 27 + 28) / 16)
    assert metrics["time_to_first_token_ms"]["successful"]["percentiles"]["p50"] == pytest.approx(21.5)
    started = benchmark["requests"]["successful"][0]["info"]["timings"]["request_start"]
    assert started == pytest.approx(1_700_000_000)


def test_aiperf_leaves_a_record_each_and_a_summary(run, tmp_path):
    folder = export_run(run, "aiperf", tmp_path / "aiperf")
    records = [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]
    assert len(records) == 6
    assert records[0]["metrics"]["inter_chunk_latency"]["value"] == pytest.approx([10, 15])
    assert records[4]["error"]["type"] == "truncated"
    assert records[5]["metadata"]["was_cancelled"]
    summary = json.loads((folder / "profile_export_aiperf.json").read_text())
    assert summary["inter_token_latency"]["avg"] == pytest.approx((25 + 26 + 27 + 28) / 16)
    assert summary["good_request_count"]["avg"] == 3


def test_a_bundle_is_the_whole_run(run, store, tmp_path):
    path = export_run(run, "bundle", tmp_path / "b.tar.gz")
    other = RunStore(tmp_path / "elsewhere")
    back = import_file(path, other)
    assert back.id == run.id
    assert back.manifest == run.manifest
    assert back.metrics() == run.metrics()
    assert back.arrow("chunks").equals(run.arrow("chunks"))
    with pytest.raises(InvalidInputError, match="does not hold yet"):
        import_file(path, other)


def _tar(path: Path, names: dict[str, bytes], kind: bytes = tarfile.REGTYPE) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in names.items():
            member = tarfile.TarInfo(name)
            member.size, member.type, member.linkname = len(data), kind, "/etc/passwd"
            archive.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        ({"../evil": b"x"}, tarfile.REGTYPE),
        ({"a/../../evil": b"x"}, tarfile.REGTYPE),
        ({"/etc/evil": b"x"}, tarfile.REGTYPE),
        ({"a/manifest.json": b""}, tarfile.SYMTYPE),
        ({"a/b/c": b"x"}, tarfile.REGTYPE),
        ({"a/metrics.json": b"{}"}, tarfile.REGTYPE),
        ({"a/manifest.json": b"{}"}, tarfile.REGTYPE),
        ({"a/manifest.json": b"not json"}, tarfile.REGTYPE),
    ],
)
def test_a_hostile_bundle_writes_nothing(tmp_path, names, kind):
    store = RunStore(tmp_path / "runs")
    with pytest.raises(InvalidInputError, match="bundle of a run"):
        import_file(_tar(tmp_path / "x.tar.gz", names, kind), store)
    assert store.list() == []
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "x.tar.gz"]


def test_a_run_id_is_no_path(run, store, tmp_path):
    manifest = {**run.manifest.model_dump(mode="json"), "id": "../outside"}
    path = _tar(tmp_path / "x.tar.gz", {"a/manifest.json": json.dumps(manifest).encode()})
    with pytest.raises(InvalidInputError, match="folder's name"):
        import_file(path, RunStore(tmp_path / "other"))
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "{}"),
        ("a.json", "[1]"),
        ("a.json", "nonsense"),
        ("a.json", '{"benchmarks": []}'),
        ("a.json", '{"duration": "x", "completed": 1}'),
        ("a.jsonl", ""),
        ("a.jsonl", '{"metadata": {}}'),
        ("a.csv", "x,y\n1,2\n"),
        ("a.tar.gz", "no archive"),
    ],
)
def test_what_is_no_result_is_one_line(tmp_path, store, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        import_file(path, store)
    assert "\n" not in str(caught.value)
    assert not [info for info in store.list() if info.status == "complete"]


def test_exports_need_metrics(store, tmp_path):
    empty = store.create(target=TargetInfo(kind="attach")).finish("failed", "x")
    for format in ("aiperf", "csv", "guidellm", "vllm"):
        with pytest.raises(InvalidInputError, match="a run with metrics"):
            export_run(empty, format, tmp_path / format)
