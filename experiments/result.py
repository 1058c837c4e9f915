"""Put a sweep's record together from its spec and its ledger. Pure: used for every partial result and for
the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments import analysis
from experiments.calibrate import Calibration
from experiments.conclusion import Choice, boundary_of_gain, choose, conclude
from experiments.control import Contamination, find_contamination
from experiments.design import same_level
from experiments.equivalence import compare_outputs, divergent_levels
from experiments.hypothesis import judge_hypothesis
from experiments.ledger import LedgerState, cell_key
from experiments.models import Boundary, Cell, Confirmation, Equivalence, Level, Ratio, SweepResult, Verdict
from experiments.phases import Across, judge_across, judge_pilot
from experiments.spec import Load, SweepSpec

AA_ALPHA = 0.01
"""Of the test that voids a sweep because its baseline differs from itself: one sound sweep in a hundred."""


def build_result(
    *,
    sweep_id: str,
    created: str,
    status: str,
    spec: SweepSpec,
    schedule: Sequence[Cell],
    state: LedgerState,
    calibration: Calibration | None,
    failures: Mapping[str, str],
    elapsed_s: float,
    trouble: Sequence[str] = (),
) -> SweepResult:
    """The record of a sweep as far as its ledger goes.

    Args:
        status: running | complete | budget | interrupted | failed
        schedule: every planned cell; the ledger's version replaces it where it has one.
        failures: level (as text) to the reason why the target can't run it.
        trouble: what ended the sweep, when something did.
    """
    cells = [state.cells.get(cell_key(cell), cell) for cell in schedule]
    contamination = _contamination(cells)
    contaminated = contamination.blocks
    cells = [c.model_copy(update={"contaminated": True}) if c.block in contaminated else c for c in cells]
    main = [cell for cell in cells if cell.phase == "sweep"]
    levels = analysis.compare_levels(spec, main, failures)
    aa = analysis.aa_ratio(spec, main)
    mde = analysis.detectable_effect(spec, main)
    choice = choose(spec, levels, main)
    confirmed = _confirmation(spec, cells)
    if spec.search == "tpe" and confirmed is not None and confirmed.verdict is Verdict.BETTER:
        # Levels of a search have a run or two each: only the pairs on fresh seeds prove one.
        choice = Choice(confirmed.level, [])
    across = judge_across(spec, cells)
    equivalence = compare_outputs([cell for cell in cells if cell.state == "DONE"], state.outputs)
    done = [cell for cell in main if cell.state == "DONE"]
    blocks_done = len({cell.block for cell in done})
    reasons = [*trouble, *_invalid_reasons(spec, main, aa, equivalence, contaminated)]
    conclusion = conclude(spec, levels, choice, confirmed, mde)
    if across is not None:
        conclusion += " " + across.text
    if reasons:
        conclusion = f"Not valid ({reasons[0]}). For what it is worth: {conclusion}"
    load = calibration.load if calibration else None
    machine = dict(state.context.get("machine", {}))
    return SweepResult(
        id=sweep_id,
        created=created,
        status=status,
        question=spec.question,
        factor=spec.factor,
        field=spec.field,
        baseline=spec.baseline,
        primary_metric=spec.primary_metric,
        delta=spec.delta,
        alpha=spec.alpha,
        slo=spec.slo,
        workload={"name": spec.workload, **spec.workload_spec, **(load.model_dump() if load else {})},
        target=dict(state.context.get("target", {})),
        machine=machine,
        hypothesis=judge_hypothesis(spec, main),
        levels=levels,
        best=choice.best,
        conclusion=conclusion,
        cells=cells,
        aa=aa,
        mde=mde,
        equivalence=equivalence,
        valid=not reasons,
        invalid_reasons=reasons,
        reproduce=spec.reproduce(load),
        report=None,
        runs=[cell.run for cell in cells if cell.run],
        factor_values=spec.levels,
        engine=spec.engine,
        fixed=spec.fixed,
        design={
            "seed": spec.seed,
            "blocks_planned": spec.blocks,
            "blocks_done": blocks_done,
            "runs_per_block": spec.runs_per_block,
            "confirm_blocks": spec.confirm_blocks,
            "budget_s": spec.budget_s,
            "elapsed_s": round(elapsed_s, 3),
        },
        calibration=calibration.model_dump(mode="json") if calibration else {},
        confirmation=confirmed,
        boundary=_boundary(spec, levels, choice, load, machine, across),
        pilot=judge_pilot(spec, cells, spec.blocks),
        across_axis=spec.across.axis if spec.across else "",
        across=across.points if across else [],
        drift=analysis.baseline_drift(spec, main),
        contaminated_blocks=contaminated,
        control_tolerance=contamination.tolerance,
        notes=_notes(spec, cells, state, failures, equivalence, contamination),
    )


def _boundary(
    spec: SweepSpec,
    levels: Sequence[Level],
    choice: Choice,
    load: Load | None,
    machine: dict[str, Any],
    across: Across | None,
) -> Boundary:
    found = boundary_of_gain(spec, levels, choice, load, machine)
    if across is None:
        return found
    text = found.text.replace(" Other rates, lengths and machines were not tested.", "")
    return found.model_copy(update={"text": f"{text} {across.text}"})


def _contamination(cells: Sequence[Cell]) -> Contamination:
    readings: dict[int, list[list[float]]] = {}
    for cell in cells:
        if cell.control_ms:
            readings.setdefault(cell.block, []).append(cell.control_ms)
    return find_contamination(readings)


def _confirmation(spec: SweepSpec, cells: Sequence[Cell]) -> Confirmation | None:
    winners = [c.level for c in cells if c.phase == "confirm" and not same_level(c.level, spec.baseline)]
    return analysis.confirmation(spec, winners[0], cells) if winners else None


def _invalid_reasons(
    spec: SweepSpec,
    cells: Sequence[Cell],
    aa: Ratio,
    equivalence: Equivalence,
    contaminated: Sequence[int],
) -> list[str]:
    reasons = []
    ended = [cell for cell in cells if cell.state in ("DONE", "VOID", "FAILED")]
    blocks = {cell.block for cell in ended if cell.state == "DONE"}
    if len(blocks) < 2:
        reasons.append(
            f"{len(blocks)} block{'' if len(blocks) == 1 else 's'} with results: an interval needs two"
        )
    differs = aa.verdict in (Verdict.BETTER, Verdict.WORSE)
    if differs and aa.p_value is not None and aa.p_value <= AA_ALPHA:
        reasons.append(
            f"the two baselines of a block differ on {spec.primary_metric}: nothing else can be believed"
        )
    if not spec.changes_output:
        for name in divergent_levels(equivalence):
            compared, identical = equivalence.per_level[name]
            reasons.append(
                f"level {name} gave other tokens for {compared - identical} of {compared} requests"
            )
    bad = [block for block in contaminated if block in blocks]
    if len(bad) > len(blocks) / 2:
        reasons.append(f"{len(bad)} of {len(blocks)} blocks contaminated: something else used the machine")
    void = [cell for cell in ended if cell.state == "VOID"]
    if len(void) > len(ended) / 5:
        reasons.append(f"{len(void)} of {len(ended)} runs void, such as: {void[0].reason}")
    return reasons


def _notes(
    spec: SweepSpec,
    cells: Sequence[Cell],
    state: LedgerState,
    failures: Mapping[str, str],
    equivalence: Equivalence,
    contamination: Contamination,
) -> list[str]:
    contaminated = contamination.blocks
    notes = [f"level {name} FAILED: {reason}" for name, reason in failures.items()]
    for entry in state.attempts:
        place = f"block {entry['cell'][1]}, position {entry['cell'][2]}"
        notes.append(f"{place} was repeated ({entry['state']}: {entry['reason']})")
    notes += [
        f"block {cell.block}, position {cell.position} is {cell.state}: {cell.reason}"
        for cell in cells
        if cell.state in ("VOID", "FAILED")
    ]
    if contaminated:
        others = [c for c in cells if c.block not in contaminated and c.phase == "sweep"]
        without = {level.value: level.verdict for level in analysis.compare_levels(spec, others, failures)}
        with_all = {level.value: level.verdict for level in analysis.compare_levels(spec, cells, failures)}
        changed = [str(value) for value, verdict in with_all.items() if without[value] is not verdict]
        which = ", ".join(map(str, contaminated))
        effect = (
            f"without them the verdict changes at {', '.join(changed)}"
            if changed
            else "no verdict depends on them"
        )
        text = f"contaminated: block {which} (the control kernel moved more than "
        text += f"{contamination.tolerance:.0%}, its tolerance here); kept; {effect}"
        notes.append(text)
    if equivalence.compared > equivalence.identical:
        notes.append(equivalence.note)
    return notes
