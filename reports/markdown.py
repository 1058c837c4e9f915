"""A sweep or a run as Markdown, short enough for a pull-request comment."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from experiments.models import Level, SweepResult
from reports import run_view
from reports.figures.sweep import sweep_metrics
from reports.findings import load_findings
from reports.metric_names import change, metric_name, number, with_unit
from reports.pairing import level_key, ordered_levels
from reports.sweep_page import noise_facts
from reports.sweeps import load_sweep, manifests, prove_factor
from workbench.errors import RunCorruptError
from workbench.runstore import Run

_MARKS = {
    "BETTER": "🟢 better",
    "WORSE": "🔴 worse",
    "EQUIVALENT": "🔵 equivalent",
    "INCONCLUSIVE": "⚪ inconclusive",
}
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!~@&])")


def escape(value: object) -> str:
    """Text that Markdown prints as it is: no markup, no HTML, no mention, one line."""
    return _SPECIAL.sub(r"\\\1", re.sub(r"\s+", " ", str(value))).replace("\\@", "@\u200b")


def sweep_markdown(folder: Path) -> str:
    """The sweep in ``folder``.

    Raises:
        RunCorruptError: ``sweep.json`` can't be read.
    """
    sweep = load_sweep(folder)
    metrics = sweep_metrics(sweep)
    proof = prove_factor(sweep, manifests(folder, sweep))
    lines = [f"## {escape(sweep.question)}", "", f"**{escape(sweep.conclusion)}**", ""]
    if not sweep.valid:
        lines += [
            "> **Not valid; do not act on these numbers.**",
            *[f"> - {escape(r)}" for r in sweep.invalid_reasons],
            "",
        ]
    lines += _level_table(sweep, metrics)
    lines += ["", "### Hypothesis", ""]
    words = {True: "held", False: "did not hold", None: "can't tell"}
    lines += [
        f"- {escape(metric_name(h.metric).label)} {escape(h.direction)}: {escape(h.text)} "
        f"— **{words[h.held]}**" + (f" ({escape(h.evidence)})" if h.evidence else "")
        for h in sweep.hypothesis
    ] or ["- none was stored"]
    changed = "only this setting differs" if proof.proven else "**not proven** by the engines' echoes"
    e = sweep.equivalence
    lines += [
        "",
        "### How far to trust it",
        "",
        f"- Changed factor: {escape(sweep.field)}; {changed} ({proof.compared} runs compared)",
        f"- Outputs: {e.identical} of {e.compared} identical. {escape(e.note)}",
        *[f"- {label}: {escape(text)}" for label, text in noise_facts(sweep)],
    ]
    if sweep.boundary:
        lines.append(f"- Boundary: {escape(sweep.boundary.text)}")
    if sweep.confirmation:
        again = sweep.confirmation.ratio.get(sweep.primary_metric)
        shown = f"{change(again.point)} [{change(again.low)}, {change(again.high)}]" if again else "–"
        lines.append(f"- Confirmed on fresh seeds: {sweep.confirmation.verdict.lower()}, {shown}")
    return "\n".join([*lines, "", "Reproduce:", "", *_fenced(sweep.reproduce), ""])


def _level_table(sweep: SweepResult, metrics: list[str]) -> list[str]:
    head = [escape(sweep.factor), "runs", *(escape(metric_name(m).label) for m in metrics), "verdict"]
    lines = [_row(head), _row(["---", *["---:"] * (len(head) - 2), "---"])]
    for level in ordered_levels(sweep):
        name = escape(level_key(level.value)) + (" (baseline)" if level.value == sweep.baseline else "")
        if sweep.best is not None and level.value == sweep.best:
            name = f"**{name}**"
        verdict = _MARKS.get(level.verdict, level.verdict.lower())
        lines.append(_row([name, str(len(level.runs)), *(_cell(level, m) for m in metrics), verdict]))
    return lines


def _cell(level: Level, metric: str) -> str:
    value = with_unit(metric, level.medians.get(metric))
    ratio = level.ratio.get(metric)
    if ratio is None or ratio.verdict == "BASELINE" or ratio.point is None:
        return value
    return f"{value}<br>{change(ratio.point)} [{change(ratio.low)}, {change(ratio.high)}]"


def run_markdown(run: Run) -> str:
    """The run's summary, latencies and validity.

    Raises:
        RunCorruptError: ``metrics.json`` can't be read.
    """
    manifest, metrics = run.manifest, run.metrics()
    lines = [
        f"## Run {escape(run_view.display_name(manifest))}",
        "",
        f"{escape(manifest.target.model or 'unknown model')}, {escape(manifest.created)}, {manifest.status}",
        "",
    ]
    validity = (metrics or {}).get("validity") or {}
    if validity.get("valid") is False:
        reasons = validity.get("reasons") or ["no reason was stored"]
        lines += ["> **Not valid; do not act on these numbers.**", *[f"> - {escape(r)}" for r in reasons], ""]
    lines += [
        f"- {escape(t.label)}: **{escape(t.value)}** {escape(t.detail)}".rstrip()
        for t in run_view.tiles(metrics)
    ]
    rows = run_view.latency_table(metrics)
    if rows:
        lines += ["", _row(["ms", "n", *run_view.STATISTICS]), _row(["---", *["---:"] * 6])]
        lines += [
            _row([label, number(s.get("n")), *(number(s.get(k)) for k in run_view.STATISTICS)])
            for label, s in rows
        ]
    lines += _diagnosis(run)
    return "\n".join([*lines, "", "Reproduce:", "", *_fenced(shlex.join(manifest.command)), ""])


def _diagnosis(run: Run) -> list[str]:
    """Findings in short; nothing for a run that was not diagnosed."""
    try:
        found = load_findings(run)
    except RunCorruptError as error:
        return ["", f"> {escape(error)}"]
    if found is None:
        return []
    lines = ["", "### Diagnosis", ""]
    for one in found.findings:
        if one.verdict == "finding":
            lines += [f"**{escape(one.claim)}** Confidence {one.confidence}; {escape(one.effect_text)}.", ""]
            lines += [f"- {escape(evidence.text)}" for evidence in one.evidence]
            lines += [
                f"- {'ruled out' if r.ruled_out else 'not ruled out'}: {escape(f'{r.name}: {r.why}')}"
                for r in one.rivals
            ]
            lines += ["", *_fenced(one.next), ""] if one.next else [""]
    if found.top is None:
        lines += ["No finding: nothing in this run is accused.", ""]
    return lines[:-1]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _fenced(text: str) -> list[str]:
    """A code block whose fence is longer than any run of backticks in ``text``."""
    fence = "`" * max(3, 1 + max((len(found) for found in re.findall(r"`+", text)), default=0))
    return [f"{fence}sh", text, fence]
