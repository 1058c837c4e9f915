"""What ``bench`` shows when it is done."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from workbench.metrics.flat import LATENCIES
from workbench.runstore import Run

_COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")


_PIPE_WIDTH = 160
"""Of output that goes to a file or a pipe, where nobody wraps lines."""


def make_console(stderr: bool = False) -> Console:
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=_PIPE_WIDTH)


def summary_view(run: Run) -> Group:
    """Load, latency, throughput, goodput and validity of a stored run."""
    metrics = run.metrics("window", "latency", "throughput", "counts", "load")
    if metrics is None:
        return Group(Text(f"run {run.id}: {run.manifest.status}, no metrics"))
    parts: list[Any] = [_headline(run, metrics)]
    if any(summary["n"] for summary in metrics["latency"].values()):
        parts.append(_latency_table(metrics["latency"], "latency, ms"))
    groups = metrics.get("groups") or {}
    if len(groups) > 1:
        parts += [_latency_table(part["latency"], f"{name}, ms", brief=True) for name, part in groups.items()]
    parts += [text for text in (_steady(metrics), _workload_notes(run)) if text is not None]
    return Group(*parts, *_footer(metrics), *_first_errors(run, metrics))


def _headline(run: Run, metrics: dict[str, Any]) -> Text:
    counts, load, rates = metrics["counts"], metrics["load"], metrics["throughput"]
    offered = f", offered {load['offered_rate']:.2f}/s" if load.get("offered_rate") else ""
    lag = load.get("lag_p99_ms")
    return Text(
        f"{run.manifest.workload.get('name')} on {run.manifest.target.model} ({run.manifest.target.kind}): "
        f"{load['loop']} loop{offered}, "
        f"{counts['ok']} ok, {counts['failed']} failed, {counts['cancelled']} cancelled "
        f"in {metrics['window']['duration_s']:.1f} s\n"
        f"output {_show(rates['output_tok_s'])} tok/s, total {_show(rates['total_tok_s'])} tok/s, "
        f"{_show(rates['request_s'])} requests/s, peak concurrency {load['peak_concurrency']}, "
        f"dispatch lag p99 {_show(lag)} ms{_cached(counts)}"
    )


def _cached(counts: dict[str, Any]) -> str:
    """Prompt tokens that the server took from its prefix cache: said whenever there are any."""
    cached, read = counts.get("cached_tokens"), counts.get("input_tokens")
    if not cached or not read:
        return ""
    return f", {cached} of {read} prompt tokens from the prefix cache ({cached / read:.0%})"


def _latency_table(latency: dict[str, Any], title: str, brief: bool = False) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for column in (*_COLUMNS, "n", "95 % of p50"):
        table.add_column(column, justify="right")
    for name in LATENCIES:
        summary = latency[name]
        if not summary["n"] or (brief and name not in ("ttft", "itl", "tpot", "e2el")):
            continue
        low, high = summary["ci"].get("p50", (None, None))
        interval = "" if low is None else f"{_show(low)} … {_show(high)}"
        cells = [_show(summary[c]) + ("?" if c == "p99" and summary["p99_flagged"] else "") for c in _COLUMNS]
        table.add_row(name, *cells, str(summary["n"]), interval)
    return table


def _steady(metrics: dict[str, Any]) -> Text | None:
    """The window without ramp and drain, or why there is none."""
    steady = metrics.get("steady")
    if not steady:
        return None
    if not steady["found"]:
        return Text(f"no steady window: {steady['reason']}", style="dim")
    rates, latency = steady["throughput"], steady["latency"]
    low, high = rates["output_tok_s_ci"]
    return Text(
        f"steady for {steady['window']['duration_s']:.1f} s of {metrics['window']['duration_s']:.1f} s "
        f"({steady['requests']} requests): output {_show(rates['output_tok_s'])} tok/s "
        f"[{_show(low)}, {_show(high)}], {_show(rates['request_s'])} requests/s, "
        f"{steady['mean_concurrency']:.1f} in flight, ttft p50 {_show(latency['ttft']['p50'])} ms, "
        f"itl p50 {_show(latency['itl']['p50'])} ms"
    )


def _workload_notes(run: Run) -> Text | None:
    """Rows of a trace that were dropped or cut, conversations left out."""
    notes = run.manifest.load.get("workload_notes")
    if not isinstance(notes, dict):
        return None
    trace = notes.get("trace")
    flat = {**notes, **(trace if isinstance(trace, dict) else {})}
    shown = ", ".join(f"{k} {v}" for k, v in flat.items() if k not in ("trace", "file_sha256"))
    return Text(f"workload: {shown}") if shown else None


def _footer(metrics: dict[str, Any]) -> list[Text]:
    lines = []
    if any(s["p99_flagged"] and s["n"] for s in metrics["latency"].values()):
        lines.append(Text("? fewer than ten values lie beyond this p99", style="dim"))
    goodput = metrics.get("goodput")
    if goodput is not None and goodput["offered"]:
        missed = ", ".join(f"{key} {count}" for key, count in goodput["missed_by"].items() if count)
        lines.append(
            Text(
                f"goodput {goodput['slo']}: {goodput['good']} of {goodput['offered']} offered "
                f"({goodput['ratio']:.0%}), {_show(goodput['good_s'])}/s"
                + (f"; missed by: {missed}" if missed else "")
                + (f"; {goodput['vacuous']} without the measured value" if goodput["vacuous"] else "")
            )
        )
    reasons = metrics["validity"]["reasons"]
    lines.append(
        Text("valid", style="green") if not reasons else Text("INVALID: " + "; ".join(reasons), style="red")
    )
    return lines


def _first_errors(run: Run, metrics: dict[str, Any]) -> list[Text]:
    """The first error of each class, in the server's own words."""
    if not metrics["counts"].get("errors"):
        return []
    table = run.arrow("requests")
    if table is None:
        return []
    found: dict[str, str] = {}
    for row in table.select(["phase", "status", "error_class", "error"]).to_pylist():
        if row["phase"] == "measure" and row["status"] == "failed":
            found.setdefault(row["error_class"] or "unknown", row["error"] or "")
    return [Text(f"first {name}: {error}", style="dim") for name, error in found.items() if error]


def _show(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
