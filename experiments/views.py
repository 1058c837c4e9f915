"""What the terminal shows: a factor explained, a plan, the progress of a sweep, its table and its
conclusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from experiments.calibrate import MIN_BLOCKS
from experiments.conclusion import change_text, effect_text
from experiments.design import level_text, same_level
from experiments.factors import Factor
from experiments.metric_info import HEADLINE, metric_info
from experiments.models import Cell, Level, Ratio, SweepResult, Verdict
from experiments.phases import TYPICAL_SD
from experiments.spec import SweepSpec
from experiments.stats import minimum_detectable_effect

STYLES = {
    Verdict.BETTER: "bold green",
    Verdict.WORSE: "red",
    Verdict.EQUIVALENT: "cyan",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.FAILED: "bold red",
    Verdict.BASELINE: "dim",
}
_ARROWS = {"up": "↑", "down": "↓", "none": "="}
_HELD = {True: ("held", "green"), False: ("did not hold", "red"), None: ("the data can't tell", "yellow")}


def factor_table(factors: Mapping[str, Factor]) -> Table:
    """All factors, one a line."""
    table = Table(title="Factors of workbench sweep", title_justify="left", box=None, pad_edge=False)
    for column in ("factor", "what it is", "levels", "default", "judged by"):
        table.add_column(column, overflow="fold")
    for factor in factors.values():
        levels = " ".join(map(level_text, factor.levels))
        table.add_row(
            Text(factor.name, "bold"), factor.title, levels, level_text(factor.baseline), factor.primary
        )
    return table


def factor_panel(factor: Factor) -> Panel:
    """One factor explained."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column(overflow="fold")
    facts.add_row("sets", f"{factor.field} ({factor.type_name}), default {level_text(factor.baseline)}")
    facts.add_row("levels", ", ".join(map(level_text, factor.levels)))
    facts.add_row("vLLM", factor.vllm or "no such setting")
    facts.add_row("SGLang", factor.sglang or "no such setting")
    facts.add_row("judged by", f"{factor.primary} on the workload {factor.workload}")
    if factor.fixed:
        settings = ", ".join(f"{name}={value}" for name, value in factor.fixed.items())
        facts.add_row("fixed for all levels", f"{settings}: {factor.why_fixed}")
    if factor.changes_output:
        facts.add_row("outputs", "other tokens are expected")
    lines: list[RenderableType] = [
        Text(factor.mechanism),
        Text(),
        facts,
        Text(),
        Text("A larger value should:", "bold"),
    ]
    lines += [Text(f"  {_ARROWS[e.direction]} {e.metric}: {e.text}") for e in factor.expect]
    return Panel(Group(*lines), title=f"[bold]{factor.name}[/bold] · {factor.title}", title_align="left")


def factor_json(factor: Factor) -> dict[str, Any]:
    return {
        **factor.model_dump(mode="json"), "type": factor.type_name, "baseline": factor.baseline,
    }  # fmt: skip


def plan_json(spec: SweepSpec, cells: Sequence[Cell], run_s: float) -> dict[str, Any]:
    """``--plan --json``: the question, the schedule and what it would cost."""
    planned = planned_runs(spec, run_s)
    return {
        "plan": True,
        **spec.model_dump(mode="json"),
        "runs": len(cells),
        "run_s": round(run_s, 1),
        "blocks_in_budget": planned.blocks,
        "estimate_s": round(planned.total * run_s, 1),
        "mde": plan_mde(spec, planned.blocks),
        "schedule": [
            cell.model_dump(
                mode="json", include={"block", "position", "level", "baseline_copy", "seed", "nonce"}
            )
            for cell in cells
        ],
    }


@dataclass(frozen=True)
class PlannedRuns:
    """Runs that a plan expects, by what they are for. ``pairs``: on fresh seeds; ``along``: on the axis."""

    pilot: int
    blocks: int
    per_block: int
    pairs: int
    along: int

    @property
    def total(self) -> int:
        return self.pilot + self.blocks * self.per_block + 2 * self.pairs + self.along

    @property
    def text(self) -> str:
        parts = [f"{self.pilot} runs of the pilot"] if self.pilot else []
        parts.append(f"{self.blocks} blocks × {self.per_block} runs")
        parts += [f"{self.pairs} pairs on fresh seeds"] if self.pairs else []
        parts += [f"{self.along} runs along the axis"] if self.along else []
        return " + ".join(parts)


def planned_runs(spec: SweepSpec, run_s: float) -> PlannedRuns:
    """What the budget holds at ``run_s`` a run, if there is a winner. One block always completes."""
    pilot, pairs = 2 * spec.pilot_pairs, spec.confirm_blocks
    along = 2 * spec.across.pairs * len(spec.across.values) if spec.across else 0
    blocks = spec.blocks
    if spec.budget_s is not None:
        runs = spec.budget_s / run_s - pilot
        blocks = min(blocks, int((runs - 2 * pairs - along) / spec.runs_per_block))
        if blocks < MIN_BLOCKS:
            blocks = max(1, min(spec.blocks, int(runs / spec.runs_per_block)))
            return PlannedRuns(pilot, blocks, spec.runs_per_block, 0, 0)
    return PlannedRuns(pilot, blocks, spec.runs_per_block, pairs if blocks >= MIN_BLOCKS else 0, along)


def plan_mde(spec: SweepSpec, blocks: int) -> float | None:
    """Smallest effect seen 9 times in 10, were the noise that of a quiet shared 2-core machine."""
    return minimum_detectable_effect(
        TYPICAL_SD,
        blocks,
        alpha=spec.alpha,
        comparisons=max(1, len(spec.levels) - 1),
        degrees=spec.residual_degrees(blocks),
    )


def plan_view(spec: SweepSpec, cells: Sequence[Cell], run_s: float) -> Group:
    """The schedule by block, with its cost."""
    table = Table(box=None, pad_edge=False, title="Schedule (baseline twice a block)", title_justify="left")
    table.add_column("block", justify="right")
    table.add_column("seed", justify="right")
    table.add_column("order")
    for block in sorted({cell.block for cell in cells}):
        mine = [cell for cell in cells if cell.block == block]
        order = Text(" ").join(
            Text(level_text(cell.level), "dim" if same_level(cell.level, spec.baseline) else "bold")
            for cell in mine
        )
        table.add_row(str(block), str(mine[0].seed), order)
    planned = planned_runs(spec, run_s)
    budget = f"budget {spec.budget_s:.0f} s: " if spec.budget_s is not None else ""
    mde = plan_mde(spec, planned.blocks)
    lines: list[RenderableType] = [
        question_text(spec),
        table,
        Text(f"{budget}about {planned.text}, {run_s:.0f} s a run: {planned.total * run_s / 60:.1f} min"),
    ]
    if mde is not None:
        noise = f"{TYPICAL_SD:.0%} between runs (a quiet shared 2-core machine)"
        lines.append(Text(f"with noise of {noise}: {effect_text(mde)}"))
    return Group(*lines)


def question_text(spec: SweepSpec) -> Text:
    """What is asked and held fixed, said before anything runs."""
    text = Text()
    text.append(spec.question + "\n", "bold")
    text.append(f"levels {', '.join(map(level_text, spec.levels))} · baseline {level_text(spec.baseline)}")
    text.append(f" · effect of interest {spec.delta:.0%} · slo {spec.slo or 'none'} · seed {spec.seed}\n")
    if spec.fixed:
        settings = ", ".join(f"{name}={value}" for name, value in spec.fixed.items())
        text.append(f"fixed for all levels, so that each is allowed: {settings}\n", "yellow")
    for line in spec.hypothesis:
        text.append(f"expected {_ARROWS[line.direction]} {line.metric}: {line.text}\n", "dim")
    return text


def result_view(result: SweepResult) -> Group:
    """The end of a sweep: table, hypothesis, A/A, validity, conclusion."""
    lines: list[RenderableType] = [Text(), level_table(result), Text()]
    for line in result.hypothesis:
        word, style = _HELD[line.held]
        lines.append(
            Text.assemble(
                "hypothesis ",
                (f"{_ARROWS[line.direction]} {line.metric}", "bold"),
                f" ({line.text}): ",
                (word, style),
                f"; {line.evidence}",
            )
        )
    lines.append(
        Text(
            f"A/A (baseline against itself, {result.primary_metric}): {change_text(result.aa)} over "
            f"{result.aa.n_blocks} block(s) · {effect_text(result.mde)}"
        )
    )
    same = result.equivalence
    lines.append(Text(f"outputs: {same.identical} of {same.compared} requests identical; {same.note}"))
    if result.drift is not None:
        lines.append(Text(f"drift: {result.drift.text}", "dim"))
    lines += [Text(f"note: {note}", "dim") for note in result.notes]
    if result.boundary is not None:
        lines.append(Text(f"boundary: {result.boundary.text}"))
    if not result.valid:
        lines.append(Text("NOT VALID: " + "; ".join(result.invalid_reasons), "bold red"))
    lines.append(Text(result.conclusion, "bold"))
    if result.report:
        lines.append(Text(f"report: {result.report}"))
    return Group(*lines)


def level_table(result: SweepResult) -> Table:
    """Per level the medians of the headline metrics, the ratio on the primary one, and the verdict."""
    title = f"{result.factor} · {result.workload.get('name', '')} · ratio on {result.primary_metric}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("level", justify="right", style="bold", no_wrap=True)
    columns = [*HEADLINE, *([] if result.primary_metric in HEADLINE else [result.primary_metric])]
    for metric in columns:
        table.add_column(_heading(metric), justify="right", no_wrap=True)
    table.add_column("ratio [95 %]", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for level in result.levels:
        flagged = {name for name, ratio in level.ratio.items() if ratio.flagged}
        cells = [_number(level.medians.get(name), name, name in flagged) for name in columns]
        ratio = level.ratio.get(result.primary_metric)
        table.add_row(
            level_text(level.value), *cells, _ratio(level, ratio),
            Text(level.verdict.value, STYLES[level.verdict]),
        )  # fmt: skip
    if any(
        ratio.flagged for level in result.levels for name, ratio in level.ratio.items() if name in HEADLINE
    ):
        table.caption = "* too few samples a run for a p99 (n × 0.01 < 10): an indication"
        table.caption_justify = "left"
    return table


def _heading(metric: str) -> str:
    """Two short lines, so that the table fits 80 columns: ``itl`` over ``p99 ms``."""
    info = metric_info(metric)
    if info is None or info.unit == "share":
        return metric.removesuffix("_ratio")
    kind, _, statistic = info.label.partition(" ")
    return f"{kind}\n{statistic} {info.unit}" if info.unit == "ms" else f"{kind}\n{info.unit}"


def _number(value: float | None, metric: str, flagged: bool) -> str:
    if value is None:
        return "-"
    if metric == "goodput_ratio":
        return f"{value:.0%}"
    return f"{value:.1f}" + ("*" if flagged else "")


def _ratio(level: Level, ratio: Ratio | None) -> str:
    if level.verdict is Verdict.BASELINE:
        return "1"
    if ratio is None or ratio.point is None:
        return "-"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.point:.2f} [one block]" if ratio.n_blocks == 1 else f"{ratio.point:.2f} [-]"
    return f"{ratio.point:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def stderr_console() -> Console:
    return Console(stderr=True, highlight=False)
