"""What the page of a sweep says, as plain data for its template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from experiments.conclusion import effect_text
from experiments.models import Ratio, SweepResult
from reports.facts import Tile, fact_list, setting
from reports.figures import across, noise, pareto
from reports.figures import sweep as sweep_figures
from reports.figures.sweep import ratio_text, sweep_metrics
from reports.metric_names import change, metric_name, share
from reports.pairing import level_key, ordered_levels
from reports.render import Figure
from reports.sweeps import manifests, prove_factor

SECTIONS: tuple[tuple[str, str], ...] = (
    ("answer", "Answer"),
    ("question", "Hypothesis"),
    ("baseline", "Changed factor"),
    ("result", "Result"),
    ("boundary", "Boundary"),
    ("correctness", "Correctness"),
    ("noise", "Noise"),
    ("validity", "Validity"),
    ("environment", "Environment"),
    ("reproduce", "Reproduce"),
)


def sweep_context(folder: Path, sweep: SweepResult) -> dict[str, Any]:
    """Everything ``sweep.html.j2`` prints."""
    metrics = sweep_metrics(sweep)
    levels = ordered_levels(sweep)
    return {
        "sweep": sweep,
        "model": setting(sweep.target.get("model") or sweep.engine.get("model") or "unknown model"),
        "sections": SECTIONS,
        "metrics": metrics,
        "levels": levels,
        "level_names": [level_key(level.value) for level in levels],
        "tiles": tiles(sweep),
        "flagged": any(ratio.flagged for level in levels for ratio in level.ratio.values()),
        "figures": sweep_figures_of(sweep),
        "proof": prove_factor(sweep, manifests(folder, sweep)),
        "boundary": _boundary(sweep),
        "confirmation": _confirmation(sweep, metrics),
        "noise": noise_facts(sweep),
        "lost": [cell for cell in sweep.cells if cell.state not in ("DONE", "SKIPPED")],
        "environment": _environment(sweep),
        "echo": fact_list(sweep.target.get("echo") or {}),
        "cells": sweep.cells,
    }


def tiles(sweep: SweepResult) -> list[Tile]:
    """The figures at the top: choice, effect, confirmation, noise floor, size."""
    name = metric_name(sweep.primary_metric)
    best = next((lv for lv in sweep.levels if sweep.best is not None and lv.value == sweep.best), None)
    found = [
        Tile(
            f"Best {sweep.factor}",
            level_key(sweep.best) if best else "no single one",
            f"baseline {level_key(sweep.baseline)}",
        )
    ]
    if best:
        ratio = best.ratio.get(sweep.primary_metric)
        if best.value != sweep.baseline and ratio:
            found.append(Tile(f"{name.label} against baseline", change(ratio.point), interval(ratio)))
    if sweep.confirmation:
        again = sweep.confirmation.ratio.get(sweep.primary_metric)
        if again:
            found.append(
                Tile(
                    "Again, on fresh seeds",
                    change(again.point),
                    f"{sweep.confirmation.verdict.lower()}, {interval(again)}",
                )
            )
    found.append(Tile("A/A: baseline against itself", change(sweep.aa.point), interval(sweep.aa)))
    found.append(
        Tile(
            "Smallest detectable effect",
            share(sweep.mde) if sweep.mde is None or sweep.mde <= 1.0 else "none below 2x",
            f"effect of interest {100 * sweep.delta:g} %",
        )
    )
    done = sum(cell.state == "DONE" for cell in sweep.cells)
    blocks = len({cell.block for cell in sweep.cells if cell.phase == "sweep"})
    found.append(
        Tile("Runs", f"{done} of {len(sweep.cells)}", f"{blocks} blocks, {len(sweep.levels)} levels")
    )
    return found


def interval(ratio: Ratio) -> str:
    """The 95 % interval in words, or why there is none."""
    if ratio.low is None or ratio.high is None:
        return ratio.reason or "no interval"
    return f"95 % interval {change(ratio.low)} to {change(ratio.high)}"


def sweep_figures_of(sweep: SweepResult) -> dict[str, Figure]:
    """The figures of a sweep's page by name."""
    return {
        "response": Figure(
            "fig-response",
            f"Change of each metric against the baseline, per {sweep.factor}",
            "Dots are blocks, the bar is the 95 % interval over blocks, the symbol its point estimate. "
            "Dashed lines: the effect of interest. Grey band: A/A interval of the primary metric, what no "
            "change looks like.",
            sweep_figures.response(sweep),
        ),
        "levels": Figure(
            "fig-levels",
            f"Measured values per {sweep.factor}",
            "Absolute values: grey dots are runs, the line joins the medians.",
            sweep_figures.levels(sweep, sweep_metrics(sweep)),
        ),
        "pareto": Figure(
            "fig-pareto",
            "Time to first token against throughput",
            "Upper left is better. The dotted line joins the levels that no other level beats on both.",
            pareto.pareto(sweep),
        ),
        "across": Figure(
            "fig-across",
            f"The gain along {sweep.across_axis}" if sweep.across_axis else "The gain along another setting",
            "The winner against the baseline at each value, with the 95 % interval over blocks; dashed: the "
            "effect of interest. Where the interval leaves it, the gain holds; beyond, it vanishes or "
            "reverses.",
            across.along_axis(sweep),
        ),
        "noise": Figure(
            "fig-noise",
            "A/A and drift",
            "Left: the two baselines of each block against each other. Right: every run in the order it ran; "
            "a slope of the baseline would be drift of the machine.",
            noise.aa_and_drift(sweep),
        ),
    }


def _boundary(sweep: SweepResult) -> list[tuple[str, str]]:
    groups: list[tuple[str, Iterable[Any]]]
    if sweep.boundary:
        b = sweep.boundary
        groups = [
            ("better", b.better),
            ("equivalent", b.equivalent),
            ("worse", b.worse),
            ("inconclusive", b.unknown),
        ]
    else:
        words = ("BETTER", "EQUIVALENT", "WORSE", "INCONCLUSIVE")
        levels = ordered_levels(sweep)
        groups = [(w.lower(), [lv.value for lv in levels if lv.verdict == w]) for w in words]
    facts = [(f"Levels {word}", ", ".join(map(level_key, values)) or "none") for word, values in groups]
    conditions = sweep.boundary.conditions if sweep.boundary else {}
    return facts + fact_list(conditions)


def _confirmation(sweep: SweepResult, metrics: list[str]) -> list[tuple[str, str]]:
    if sweep.confirmation is None:
        return []
    ratios = sweep.confirmation.ratio
    return [(metric_name(m).label, ratio_text(ratios[m])) for m in metrics if m in ratios]


def noise_facts(sweep: SweepResult) -> list[tuple[str, str]]:
    """A/A, smallest detectable effect, drift and contaminated blocks as label and text."""
    facts = [
        ("A/A", f"{ratio_text(sweep.aa)}, n = {sweep.aa.n_blocks} blocks. {sweep.aa.reason}".rstrip()),
        (
            "Detectable",
            effect_text(sweep.mde),
        ),
    ]
    if sweep.drift:
        facts.append(("Drift", sweep.drift.text))
    blocks = ", ".join(map(str, sweep.contaminated_blocks)) or "none"
    facts.append(("Contaminated blocks", blocks))
    return facts


def _environment(sweep: SweepResult) -> list[tuple[str, list[tuple[str, str]]]]:
    parts: tuple[tuple[str, Mapping[str, Any]], ...] = (
        ("Machine", sweep.machine),
        ("Target", {key: value for key, value in sweep.target.items() if key != "echo"}),
        ("Engine settings, the same on all levels", sweep.engine),
        ("Fixed by the factor", sweep.fixed),
        ("Workload", sweep.workload),
        ("Calibration", sweep.calibration),
        ("Design", sweep.design),
    )
    return [(title, fact_list(part)) for title, part in parts]
