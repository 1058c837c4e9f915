"""Figures of a run: numbers against the tables, size limits, and what an empty one says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from reports.figures import compare, latency, strips, style, telemetry, timeline, xray
from reports.figures import steps as step_figures
from reports.lifecycle import DECODE, Span
from reports.run_data import RunData
from reports.run_view import Tables
from reports.xray import step_view
from workbench.runstore import Run


def test_ecdf_reaches_the_share_of_samples_below_each_value(tables_a: Tables) -> None:
    samples = latency.latencies(tables_a.requests, tables_a.gaps)
    figure = latency.ecdf({"a": samples}, {"ttft": 600.0})
    ttft = figure.data[0]
    values = samples["ttft"]["ms"].to_numpy()
    for x, y in zip(ttft.x, ttft.y, strict=True):
        assert y == pytest.approx(100 * np.mean(values <= x))
    assert ttft.name == f"a (n = {len(values)})"
    assert [s.x0 for s in figure.layout.shapes] == [600.0]
    assert figure.layout.xaxis.title.text == "ms"


def test_itl_is_weighted_by_tokens() -> None:
    gaps = pd.DataFrame({"itl_ms": [10.0, 20.0], "tokens": [3, 1], "t_s": [0.0, 1.0]})
    figure = latency.ecdf({"a": latency.latencies(None, gaps)})
    assert list(figure.data[0].x) == [10.0, 20.0]
    assert list(figure.data[0].y) == [75.0, 100.0]


def test_gantt_bars_are_the_spans(tables_a: Tables) -> None:
    spans, source = tables_a.spans()
    figure = timeline.timeline(spans, tables_a.requests, tables_a.steps, source=source)
    decode = next(t for t in figure.data if t.name.startswith(f"{DECODE} (n"))
    expected = [s for s in spans if s.phase == DECODE]
    assert list(decode.base) == [s.start_s for s in expected]
    np.testing.assert_allclose(np.add(decode.base, decode.x), [s.end_s for s in expected])
    assert figure.layout.xaxis.matches is not None or figure.layout.xaxis5.matches is not None


def test_a_window_leaves_out_what_is_not_in_it(tables_a: Tables) -> None:
    spans, _ = tables_a.spans()
    figure = timeline.timeline(spans, tables_a.requests, tables_a.steps, (1.0, 1.5))
    for trace in figure.data:
        if isinstance(trace, go.Bar):
            assert max(trace.base) <= 1.5
    assert style.is_empty(timeline.timeline(spans, None, None, (90.0, 91.0)))


def test_no_trace_holds_more_points_than_the_limit() -> None:
    count = 60_000
    steps = pd.DataFrame(
        {
            "step_id": range(count),
            "start_s": np.arange(count) * 0.01,
            "end_s": np.arange(count) * 0.01 + 0.009,
            "step_ms": np.linspace(1, 9, count),
            "prefill_tokens": np.arange(count) % 3,
            "decode_tokens": 4,
            "decode_sum_sk": np.arange(count),
            "num_running": 4,
            "num_waiting": np.arange(count) % 7,
            "admission_stop": np.where(np.arange(count) % 2, "queue_empty", "token_budget"),
            "kv_used": np.arange(count) % 100,
            "kv_free": 5,
            "kv_cached": 3,
            "num_preempted": 0,
            "preempted_tokens": 0,
        }
    )
    spans = [Span(f"r{i}", DECODE, i * 0.01, i * 0.01 + 1) for i in range(50_000)]
    for figure in (
        timeline.timeline(spans, None, steps),
        step_figures.step_cost(steps),
        step_figures.decode_cost(steps),
    ):
        assert all(len(trace.x) <= style.MAX_POINTS for trace in figure.data)
    reduced, note = strips.reduce_steps(steps)
    assert reduced["kv_used"].max() == steps["kv_used"].max()
    assert "mean" in note


def test_the_slowest_step_is_drawn_however_many_there_are() -> None:
    steps = pd.DataFrame({"step_id": range(30_000), "prefill_tokens": 0, "decode_tokens": 1, "step_ms": 1.0})
    steps.loc[12_345, "step_ms"] = 777.0
    figure = step_figures.step_cost(steps)
    assert max(figure.data[0].y) == 777.0
    assert "n = 30,000" in figure.data[0].name


def test_phases_are_means_and_add_up(tables_a: Tables) -> None:
    assert tables_a.steps is not None
    figure = step_figures.step_phases(tables_a.steps)
    only = tables_a.steps[tables_a.steps["prefill_tokens"] == 0]
    assert sum(trace.x[0] for trace in figure.data) == pytest.approx(only["step_ms"].mean())


def test_decode_fit_finds_a_planted_slope() -> None:
    context = np.linspace(100, 5_000, 50)
    steps = pd.DataFrame(
        {"step_id": range(50), "prefill_tokens": 0, "decode_tokens": 2, "decode_sum_sk": context}
    )
    figure = step_figures.decode_cost(steps.assign(step_ms=3.0 + 0.002 * context))
    assert figure.data[1].name == "fit: 3.00 ms + 2.000 ms per 1,000 tokens"


def test_throughput_is_tokens_over_bucket_width(data_a: RunData, tables_a: Tables) -> None:
    tokens = data_a.tokens_over_time(0.5)
    assert tokens is not None
    figure = step_figures.throughput(tokens, 0.5, tables_a.requests)
    assert sum(figure.data[0].y) * 0.5 == pytest.approx(tokens["tokens"].sum())
    assert figure.data[1].y[-1] == 0
    assert max(figure.data[1].y) <= len(tables_a.requests)  # type: ignore[arg-type]


def test_telemetry_names_what_could_not_be_sampled(tables_a: Tables) -> None:
    assert tables_a.telemetry is not None
    assert telemetry.unavailable(tables_a.telemetry) == "package_watts (no_permission)"
    figure = telemetry.telemetry(tables_a.telemetry)
    assert [figure.layout[f"yaxis{i}"].title.text for i in ("", 2, 3)] == ["MHz", "%", "MiB"]
    lost = tables_a.telemetry[tables_a.telemetry["name"] == "package_watts"]
    assert "no_permission" in telemetry.telemetry(lost).layout.annotations[0].text


def test_xray_bars_hold_the_step(run_a: Run, tables_a: Tables) -> None:
    assert tables_a.steps is not None
    spans, _ = tables_a.spans()
    index = int(tables_a.steps["prefill_tokens"].astype(int).idxmax())
    view = step_view(tables_a.steps, spans, index)
    budget = xray.budget(view, 300)
    assert sum(trace.x[0] for trace in budget.data) == 300
    pool = xray.kv_pool(view)
    assert [t.x[0] for t in pool.data] == [view.step[k] for k in ("kv_used", "kv_cached", "kv_free")]
    around = xray.around(tables_a.steps, index)
    assert {s.x0 for s in around.layout.shapes} == {tables_a.steps["start_s"].iloc[index]}


def test_compare_draws_the_stored_intervals(run_a: Run) -> None:
    metrics = run_a.metrics()
    assert metrics is not None
    figure = compare.metrics({"a": metrics, "b": metrics}, ("ttft_p50", "output_tok_s"))
    mark = figure.data[0]
    low, high = metrics["latency"]["ttft"]["ci"]["p50"]
    assert mark.x[0] - mark.error_x.arrayminus[0] == pytest.approx(low)
    assert mark.x[0] + mark.error_x.array[0] == pytest.approx(high)
    assert style.is_empty(compare.metrics({}))


@pytest.mark.parametrize(
    "figure",
    [
        latency.ecdf({}),
        timeline.timeline([], None, None),
        step_figures.step_cost(None),
        step_figures.decode_cost(None),
        step_figures.step_phases(None),
        step_figures.throughput(None, 1.0),
        telemetry.telemetry(None),
    ],
)
def test_an_empty_figure_says_why(figure: go.Figure) -> None:
    assert style.is_empty(figure)
    assert len(figure.layout.annotations[0].text) > 20


def test_text_from_a_bundle_stays_text() -> None:
    spans = [Span("<a href='javascript:alert(1)'>x</a>", DECODE, 0.0, 1.0)]
    figure = timeline.timeline(spans, None, None)
    assert "<a" not in str(figure.to_dict())


def test_themes_change_the_page_and_not_the_data(tables_a: Tables) -> None:
    figure = step_figures.step_cost(tables_a.steps)
    dark = style.themed(figure, style.DARK)
    assert dark.layout.template.layout.font.color == style.DARK.text
    assert figure.layout.template.layout.font.color == style.LIGHT.text
    assert dark.data == figure.data
