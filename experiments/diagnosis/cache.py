"""Family 4: wrong or missing results with a cache on, against the same requests with it off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import fisher_exact

from experiments.diagnosis.bundle import RunBundle
from experiments.diagnosis.models import Effect, Evidence, Family, Finding, Rival, abstain
from experiments.diagnosis.next_step import sweep_line

FAMILY = Family.CACHE_CORRECTNESS
ALPHA = 0.01
MIN_HITS = 5

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tally:
    """Requests that were compared, and those of them that came out differently."""

    compared: int
    different: list[str]

    @property
    def rate(self) -> float:
        return len(self.different) / self.compared if self.compared else 0.0


def diagnose_cache(bundle: RunBundle, references: Sequence[RunBundle]) -> Finding:
    """Verdict of the family.

    Args:
        bundle: the run with the cache on.
        references: runs of the same requests with the cache off. A second one measures how often outputs
            differ with no cache at all; requests of ``bundle`` that hit nothing do so in any case.
    """
    if not bundle.setting("enable_prefix_caching", False):
        return abstain(FAMILY, "the prefix cache is off in this run")
    off = [one for one in references if one.setting("enable_prefix_caching") is False]
    if not off:
        manifest = bundle.manifest
        flags = f"--seed {manifest.seed} --nonce {manifest.nonce} --no-enable-prefix-caching"
        return abstain(
            FAMILY,
            "nothing to compare with: name a run of the same requests with the cache off (--against; this "
            f"run's command with {flags} makes one)",
        )
    same = [one for one in off if _same_requests(bundle, one)]
    if not same:
        return abstain(
            FAMILY, "the runs have different requests (workload, seed or nonce), so outputs can't be compared"
        )
    reference = {row["index"]: row for row in same[0].rows}
    hits = [row for row in bundle.rows if (row["cached_tokens"] or 0) > 0]
    if len(hits) < MIN_HITS:
        return abstain(
            FAMILY, f"insufficient load: {len(hits)} requests hit the cache (at least {MIN_HITS} are needed)"
        )
    treated = _differing(hits, reference)
    natural = _differing([row for row in bundle.rows if not row["cached_tokens"]], reference)
    for other in same[1:]:
        again = _differing(other.rows, reference)
        natural = Tally(natural.compared + again.compared, natural.different + again.different)
    missing = _missing(hits, reference)
    lost = _missing([row for row in bundle.rows if not row["cached_tokens"]], reference)
    wrong_p, missing_p = _p_value(treated, natural), _p_value(missing, lost)
    evidence = [
        _evidence("differ from the cache-off run", treated, natural, wrong_p),
        _evidence("are missing or cut that the cache-off run has", missing, lost, missing_p),
    ]
    if min(wrong_p, missing_p) >= ALPHA:
        return abstain(
            FAMILY,
            f"outputs with cache hits differ as often as without ({treated.rate:.1%} and "
            f"{natural.rate:.1%}): no corruption in sight",
            evidence,
        )
    cause, worse, base = (
        ("wrong_results", treated, natural) if wrong_p <= missing_p else ("missing_results", missing, lost)
    )
    what = "differs" if cause == "wrong_results" else "is missing or cut"
    return Finding(
        family=FAMILY,
        verdict="finding",
        cause=cause,
        claim=f"With the prefix cache on, the output of {worse.rate:.0%} of the requests that hit it "
        f"{what}; without a "
        f"hit it is {base.rate:.1%}.",
        effect=Effect(name=cause, value=float(len(worse.different)), unit="requests", share=worse.rate),
        evidence=evidence,
        rivals=_rivals(natural, bundle, same),
        confidence="high" if min(wrong_p, missing_p) < 1e-4 and base.compared >= MIN_HITS else "medium",
        next=sweep_line(bundle, "enable_prefix_caching", [True, False], "ttft_p50"),
    )


def _same_requests(one: RunBundle, other: RunBundle) -> bool:
    a, b = one.manifest, other.manifest
    content = a.nonce == b.nonce or bool(a.workload.get("reuse_content"))
    return a.workload_sha256 == b.workload_sha256 and a.seed == b.seed and content


def _good(row: Row) -> bool:
    return row["status"] == "ok" and row["output_sha256"] is not None


def _differing(rows: Sequence[Row], reference: Mapping[int, Row]) -> Tally:
    pairs = [(row, reference[row["index"]]) for row in rows if row["index"] in reference]
    whole = [(row, ref) for row, ref in pairs if _good(row) and _good(ref)]
    # A shorter output is counted as missing, not as wrong.
    whole = [(row, ref) for row, ref in whole if (row["output_tokens"] or 0) >= (ref["output_tokens"] or 0)]
    return Tally(
        len(whole), [row["request_id"] for row, ref in whole if row["output_sha256"] != ref["output_sha256"]]
    )


def _missing(rows: Sequence[Row], reference: Mapping[int, Row]) -> Tally:
    whole = [(row, reference[row["index"]]) for row in rows if row["index"] in reference]
    whole = [(row, ref) for row, ref in whole if _good(ref)]
    lost = [
        r["request_id"]
        for r, ref in whole
        if not _good(r) or (r["output_tokens"] or 0) < (ref["output_tokens"] or 0)
    ]
    return Tally(len(whole), lost)


def _p_value(treated: Tally, natural: Tally) -> float:
    """One-sided Fisher test: more often with hits than without. With nothing to compare a single difference
    counts against one observed in as many (the rule of three at its mildest).
    """
    if not treated.different:
        return 1.0
    table = np.array(
        [
            [len(treated.different), treated.compared - len(treated.different)],
            [len(natural.different), natural.compared - len(natural.different)],
        ]
    )
    return float(fisher_exact(table, alternative="greater")[1])


def _evidence(what: str, treated: Tally, natural: Tally, p: float) -> Evidence:
    rows: list[int | str] = list(treated.different[:20])
    text = (
        f"{len(treated.different)} of {treated.compared} outputs with a cache hit {what}; without a hit "
        f"{len(natural.different)} of {natural.compared} (one-sided p = {p:.2g})"
    )
    return Evidence(text=text, value=treated.rate, unit="share", table="requests", rows=rows)


def _rivals(natural: Tally, bundle: RunBundle, same: Sequence[RunBundle]) -> list[Rival]:
    temperature = float(bundle.manifest.workload.get("temperature", 0.0) or 0.0)
    return [
        Rival(
            name="natural divergence",
            ruled_out=natural.compared >= MIN_HITS,
            why=f"{len(natural.different)} of {natural.compared} comparisons without a hit differ "
            f"({len(same)} cache-off run{'s' if len(same) > 1 else ''})",
        ),
        Rival(name="other requests", ruled_out=True, why="workload, seed and content are the same"),
        Rival(name="random sampling", ruled_out=temperature == 0.0, why=f"temperature {temperature:g}"),
    ]
