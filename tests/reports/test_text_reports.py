"""Markdown, CSV, names of metrics, and configuration diffs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import plotly.graph_objects as go
import pytest

from experiments.models import SweepResult
from reports.config_diff import ABSENT, by_level, differences, flatten
from reports.markdown import escape, run_markdown, sweep_markdown
from reports.metric_names import change, metric_name, number, with_unit
from reports.pairing import block_ratios
from reports.render import Figure
from reports.series import run_csv, sweep_csv, to_csv
from tests.reports.store_factory import HOSTILE
from workbench.runstore import Run, RunStore


def test_sweep_markdown_has_a_row_per_level_and_every_claim(sweep_dir: Path, sweep: SweepResult) -> None:
    text = sweep_markdown(sweep_dir)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(sweep.levels)
    assert len({row.count(" | ") for row in rows}) == 1
    assert "**64**" in text
    assert "only this setting differs (24 runs compared)" in text
    assert "**did not hold**" in text
    assert f"```sh\n{sweep.reproduce}\n```" in text


def test_markdown_of_hostile_text_has_no_markup(store_dir: Path) -> None:
    text = run_markdown(RunStore(store_dir).open("run-hostile"))
    outside = text.split("```")[0]
    assert "<img" not in outside.replace("\\<", "")
    assert escape("@all ![x](http://e) <b>\n# h") == "@\u200ball \\!\\[x\\](http://e) \\<b\\> \\# h"
    assert HOSTILE in text.split("```")[1]


def test_an_invalid_run_warns_first(store_dir: Path) -> None:
    text = run_markdown(RunStore(store_dir).open("run-invalid"))
    assert text.index("Not valid") < text.index("TTFT p50")


def test_csv_holds_every_dot_and_interval(sweep_dir: Path, sweep: SweepResult) -> None:
    rows = list(csv.DictReader(io.StringIO(sweep_csv(sweep_dir))))
    dots = [
        float(r["x"])
        for r in rows
        if r["figure"] == "response" and r["panel"] == "itl_p99" and r["series"] == "64: blocks"
    ]
    assert dots == [d.ratio for d in block_ratios(sweep, "itl_p99")["64"]]
    ends = {
        (r["y"], float(r["x_low"]), float(r["x_high"]))
        for r in rows
        if r["x_low"] and r["panel"] == "itl_p99"
    }
    for level in sweep.levels:
        ratio = level.ratio["itl_p99"]
        if level.value != sweep.baseline:
            match = [e for e in ends if e[0] == str(level.value)]
            assert match[0][1:] == pytest.approx((ratio.low, ratio.high))
    assert {r["figure"] for r in rows} == {"response", "levels", "pareto", "noise"}


def test_run_csv_names_every_figure(run_a: Run) -> None:
    rows = list(csv.DictReader(io.StringIO(run_csv(run_a))))
    assert {r["figure"] for r in rows} == {
        *("latency", "tail", "ttft-split", "timeline", "throughput"),
        *("phases", "step-cost", "decode-cost", "telemetry"),
    }  # all but the missed objectives: this run met them


def test_csv_cells_are_no_formulas_and_missing_is_empty() -> None:
    figure = go.Figure(go.Scatter(x=["=HYPERLINK(1)", "b"], y=[float("nan"), None], name="+cmd"))
    rows = list(csv.DictReader(io.StringIO(to_csv([Figure("fig-x", "t", "c", figure)]))))
    assert [r["x"] for r in rows] == ["'=HYPERLINK(1)", "b"]
    assert {r["series"] for r in rows} == {"'+cmd"}
    assert [r["y"] for r in rows] == ["", ""]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0.0, "0"),
        (0.1234, "0.123"),
        (4.567, "4.57"),
        (45.67, "45.7"),
        (456.7, "457"),
        (45678.9, "45,679"),
        (7, "7"),
        (-3.14159, "-3.14"),
    ],
)
def test_numbers_have_three_digits_and_missing_is_a_dash(value: float | None, text: str) -> None:
    assert number(value) == text


def test_changes_are_signed_percent_and_zero_has_no_sign() -> None:
    assert [change(r) for r in (1.08, 0.655, 1.0, 0.99999, 2.5, None, float("inf"))] == [
        "+8.0 %",
        "−34.5 %",
        "0.0 %",
        "0.0 %",
        "+150 %",
        "–",
        "–",
    ]


def test_metrics_have_labels_units_and_a_better_side() -> None:
    assert metric_name("ttft_p50").axis == "TTFT p50 (ms)"
    assert metric_name("chat/itl_p99").label == "chat: ITL p99"
    assert metric_name("itl_p99").lower_is_better is True
    assert metric_name("output_tok_s").lower_is_better is False
    assert metric_name("something_else").lower_is_better is None
    assert with_unit("goodput_ratio", 0.955) == "95.5 %"
    assert with_unit("output_tok_s", None) == "–"


def test_differences_tell_types_apart_and_put_ports_last() -> None:
    found = differences(
        {"a": {"x": 1, "n": {"y": True}, "port": 1}, "b": {"x": "1", "n": {"y": 1}, "port": 2, "z": None}}
    )
    assert [(d.key, d.per_run) for d in found] == [("n.y", False), ("z", False), ("port", True)]
    assert found[1].values == {"a": ABSENT, "b": "null"}
    assert flatten({"a": {"b": [1, 2]}, "c": {}}) == {"a.b": "[1, 2]", "c": "{}"}


def test_levels_differ_only_where_their_runs_do() -> None:
    same, other = {"chunk": 64, "port": 1}, {"chunk": 128, "port": 2}
    found = by_level({"64": [same, {**same, "port": 3}], "128": [other]})
    assert [(d.key, json.dumps(d.values)) for d in found] == [
        ("chunk", '{"64": "64", "128": "128"}'),
        ("port", '{"64": "1, 3", "128": "2"}'),
    ]
