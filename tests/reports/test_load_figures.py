"""Figures over load and time parts: numbers against hand-made points, and what an empty one says."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pyarrow.parquet as pq
import pytest

from experiments.models import AcrossPoint, Ratio, SweepResult, Verdict
from reports.figures import across, frontier, latency, rates, split, style
from reports.figures import steps as step_figures
from reports.rate_points import COLUMNS, points_of_runs, points_of_sweep
from reports.roofline import Roofline, roofline_of
from reports.run_data import RunData
from reports.run_view import Tables
from reports.time_split import time_split
from tests.reports.store_factory import write_run
from workbench.errors import RunCorruptError
from workbench.runstore import Run, RunStore
from workbench.timeline.split import PARTS


def points(**columns: list[object]) -> pd.DataFrame:
    """Rows with all columns of ``rate_points``; what isn't given is as in a valid open-loop run."""
    count = len(next(iter(columns.values())))
    given = {"label": [f"p{i}" for i in range(count)], "series": ["a"] * count, "loop": ["open"] * count}
    given |= {"valid": [True] * count, "p99_flagged": [False] * count}
    return pd.DataFrame({name: (given | columns).get(name, [math.nan] * count) for name in COLUMNS})


def named(figure: go.Figure, start: str) -> go.Scatter:
    return next(trace for trace in figure.data if (trace.name or "").startswith(start))


def test_the_frontier_holds_what_no_other_point_beats() -> None:
    frame = points(interactivity=[10, 20, 30, 15, math.nan], throughput=[300, 250, 100, 200, 500])
    figure = frontier.throughput_interactivity(frame, {"itl": 50.0})
    front = named(figure, "frontier")
    assert list(zip(front.x, front.y, strict=True)) == [(10, 300), (20, 250), (30, 100)]
    assert named(figure, "a ").name == "a (n = 4)"
    assert named(figure, "1 without").name == "1 without throughput or TPOT left out"
    assert [shape.x0 for shape in figure.layout.shapes] == [20.0, 20.0]  # 1000 / 50 ms: where shading begins


def test_interactivity_is_the_inverse_of_the_median_tpot(run_a: Run) -> None:
    metrics = run_a.metrics()
    assert metrics is not None
    row = points_of_runs({"a": metrics}).iloc[0]
    tpot = metrics["latency"]["tpot"]
    assert row["interactivity"] == pytest.approx(1000 / tpot["p50"])
    assert row["interactivity_low"] == pytest.approx(1000 / tpot["ci"]["p50"][1])
    assert row["offered"] == metrics["load"]["requested_rate"]
    assert row["ttft_p99"] == metrics["latency"]["ttft"]["p99"]


def test_open_and_closed_loops_never_share_a_line() -> None:
    frame = points(
        loop=["open", "closed", "open"], offered=[2.0, 1.0, 1.0], achieved=[1.9, 1.0, 1.0],
        ttft_p50=[20.0, 5.0, 10.0], ttft_p99=[40.0, 6.0, 30.0], p99_flagged=[True, False, False],
    )  # fmt: skip
    figure = rates.percentiles(frame, "ttft")
    line = next(t for t in figure.data if t.name == "p50, open loop (n = 2 runs)")
    assert list(zip(line.x, line.y, strict=True)) == [(1.0, 10.0), (2.0, 20.0)]
    assert any(t.name == "p50, closed loop (n = 1 runs)" for t in figure.data)
    tail = next(t for t in figure.data if t.name == "p99, open loop (n = 2 runs)")
    assert tuple(tail.marker.symbol) == ("square", "square-open")
    assert figure.layout.yaxis.title.text == "TTFT (ms, log scale)"


def test_goodput_marks_the_knee_and_invalid_runs() -> None:
    frame = points(offered=[1.0, 2.0], goodput_ratio=[1.0, 0.4], valid=[True, False])
    figure = rates.goodput(frame, (1.5, 1.4, 1.7))
    assert named(figure, "open loop, not valid").y == (0.4,)
    assert {shape.x0 for shape in figure.layout.shapes} == {1.4, 1.5}
    assert named(figure, "capacity").name == "capacity 1.5 [1.4, 1.7] requests/s"


def test_a_gain_is_followed_along_an_axis(sweep: SweepResult) -> None:
    def ratio(point: float | None, verdict: Verdict) -> dict[str, Ratio]:
        ends = (None, None) if point is None else (point * 0.9, point * 1.1)
        return {"itl_p99": Ratio(point=point, low=ends[0], high=ends[1], n_blocks=4, verdict=verdict)}

    found = [
        AcrossPoint(value=v, ratio=ratio(p, word), runs=[], verdict=word)
        for v, p, word in (
            (4, 0.7, Verdict.BETTER),
            (16, 1.3, Verdict.WORSE),
            (64, None, Verdict.INCONCLUSIVE),
        )
    ]
    figure = across.along_axis(sweep.model_copy(update={"across": found, "across_axis": "max_num_seqs"}))
    assert [(t.x, t.y) for t in figure.data] == [(("4",), (0.7,)), (("16",), (1.3,))]
    assert figure.layout.xaxis.title.text == "max_num_seqs"
    assert "not followed" in across.along_axis(sweep).layout.annotations[0].text


def test_the_tail_is_what_the_distribution_leaves(tables_a: Tables) -> None:
    samples = latency.latencies(tables_a.requests, tables_a.gaps)
    whole, tail = (draw({"a": samples}) for draw in (latency.ecdf, latency.ccdf))
    for below, above in zip(whole.data, tail.data, strict=True):
        np.testing.assert_allclose(np.add(below.y[:-1], above.y), 100)
        assert list(below.x[:-1]) == list(above.x)
    assert tail.layout.yaxis.type == "log"


def test_merged_gaps_keep_shares_and_the_longest(tmp_path: Path) -> None:
    write_run(tmp_path, "long", count=160)
    run = RunStore(tmp_path).open("long")
    tables = Tables.read(RunData.of(run.path, run.manifest))
    assert tables.gaps is not None
    raw = run.table("chunks")
    assert raw is not None
    gaps = raw.sort_values(["request_id", "recv_ns"]).groupby("request_id")["recv_ns"].diff().dropna()
    values = np.sort(gaps.astype(float).to_numpy() / 1e6)
    assert tables.gaps["gaps"].sum() == len(values) > 2_500
    assert len(tables.gaps) < 2_100
    figure = latency.ecdf({"a": latency.latencies(tables.requests, tables.gaps)})
    itl = next(t for t in figure.data if t.meta == "itl")
    assert itl.name == f"a (n = {len(values):,})"
    for x, y in zip(itl.x[::40], itl.y[::40], strict=True):
        assert y == pytest.approx(100 * np.mean(values <= x + 1e-9))
    longest = np.unique(values[-500:])
    np.testing.assert_allclose(itl.x[-len(longest) :], longest)


def test_ttft_parts_sum_to_the_ttft(run_a: Run) -> None:
    frame = time_split(run_a)
    assert frame is not None
    parts = frame[[f"ttft_{part}_ns" for part in PARTS]].sum(axis=1)
    assert list(parts) == list(frame["ttft_ns"])
    figure = split.ttft_split(frame)
    shown = sum(np.asarray(trace.x, dtype=float) for trace in figure.data)
    ordered = frame.sort_values("ttft_ns")["ttft_ns"].astype(float).to_numpy() / 1e6
    half = len(ordered) // 2
    assert shown[0] == pytest.approx(ordered[:half].mean())
    assert frame["stall_ms"].max() == pytest.approx(run_a.metrics()["latency"]["stall"]["max"])


def test_a_sample_of_requests_keeps_the_slowest(run_a: Run) -> None:
    whole, part = time_split(run_a), time_split(run_a, limit=7)
    assert whole is not None
    assert part is not None
    assert len(part) == 7
    assert part.attrs["total"] == len(whole)
    assert part["ttft_ns"].max() == whole["ttft_ns"].max()
    assert "7 of 40 requests" in split.ttft_split(part).layout.xaxis.title.text


def test_a_miss_goes_to_the_part_above_its_median() -> None:
    frame = pd.DataFrame(
        {f"ttft_{part}_ns": [0.0] * 4 for part in PARTS} | {f"{p}_ns": [0.0] * 4 for p in PARTS}
    )
    frame = frame.assign(status="ok", client_lag_ns=0.0, ttft_ms=[10.0, 11.0, 90.0, 80.0])
    frame["ttft_prefill_ns"] = [9e6, 10e6, 12e6, 70e6]
    frame["ttft_queue_ns"] = [1e6, 1e6, 78e6, 10e6]
    assert list(split.attribute(frame, "ttft", 50.0)) == ["queue", "prefill"]
    figure = split.slo_misses(frame, {"ttft": 50.0})
    assert {t.name: t.x for t in figure.data} == {"queue (n = 1)": (1,), "prefill (n = 1)": (1,)}
    frame.loc[2, "ttft_queue_ns"] = math.nan
    assert list(split.attribute(frame, "ttft", 50.0)) == [split.UNKNOWN, "prefill"]


def test_the_roofline_is_bytes_over_bandwidth(run_a: Run) -> None:
    model = {"hidden_size": 8, "intermediate_size": 16, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1}
    model |= {"head_size": 4, "vocab_size": 100}
    weights = 2 * (2 * (8 * (8 + 2 * 4) + 8 * 8 + 3 * 8 * 16) + 100 * 8)
    echo = {"model_config": model, "dtype": "bfloat16", "quantization": "none", "num_kv_blocks": 10}
    echo |= {"block_size": 16, "kv_cache_bytes": 160 * 32}
    manifest = run_a.manifest.model_copy(
        update={
            "target": run_a.manifest.target.model_copy(update={"echo": echo}),
            "machine": {"memory_read_gb_s": 4.0},
        }
    )
    found = roofline_of(manifest)
    assert found is not None
    assert found.at(1000) == pytest.approx((weights + 1000 * 32) / 4e6)
    assert roofline_of(run_a.manifest) is None
    steps = pd.DataFrame(
        {
            "step_id": range(3),
            "prefill_tokens": 0,
            "decode_tokens": 1,
            "decode_sum_sk": [10, 20, 30],
            "step_ms": 1.0,
        }
    )
    figure = step_figures.decode_cost(steps, Roofline(0.5, 0.01, 4.0))
    assert named(figure, "roofline").y == (0.5, 0.5 + 0.01 * 30)


def test_a_sweeps_points_are_its_finished_runs(sweep: SweepResult, store_dir: Path) -> None:
    store = RunStore(store_dir)
    metrics = {run: store.open(run).metrics() for run in sweep.runs}
    frame = points_of_sweep(sweep, metrics)
    assert len(frame) == len(sweep.cells)
    assert set(frame["series"]) == {"64", "128", "256", "512", "1024"}
    assert not style.is_empty(frontier.throughput_interactivity(frame))


@pytest.mark.parametrize(
    "figure",
    [
        frontier.throughput_interactivity(None),
        frontier.throughput_interactivity(points(interactivity=[math.nan])),
        rates.percentiles(None),
        rates.percentiles(points(ttft_p50=[1.0])),
        rates.goodput(None),
        split.ttft_split(None),
        split.slo_misses(None, {"ttft": 1.0}),
        split.slo_misses(pd.DataFrame(), {}),
        latency.ccdf({}),
    ],
)
def test_an_empty_figure_says_why(figure: go.Figure) -> None:
    assert style.is_empty(figure)
    assert len(figure.layout.annotations[0].text) > 20


def test_a_table_without_its_columns_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, "old", count=4)
    path = tmp_path / "old" / "requests.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["released_ns"]), path)
    with pytest.raises(RunCorruptError, match="released_ns is missing"):
        time_split(RunStore(tmp_path).open("old"))
