"""Statistics of one factor: paired log ratios over blocks, intervals, four verdicts, the smallest effect to
be seen.

The sample is always one number a block: ln(level / baseline of the same block), the baseline being the mean
of its runs' logarithms. Requests inside a run depend on each other and are never resampled. Nothing here
knows of files, runs or factors.

Method: below 10 blocks Student's t on the logarithms, with the residual variance of the whole block design
(levels and blocks taken out) where a level's own spread over so few blocks is smaller; from 10 blocks on the
Hodges-Lehmann estimate with the exact Wilcoxon signed-rank interval, which a spike in one block cannot move
far. (Abedi and Brecht, ICPE 2017, for the design; Fisher's analysis of randomised blocks for the residual;
Schuirmann 1987 for the two one-sided tests of equivalence; Holm 1979 for several levels.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from experiments.models import Verdict

Floats = NDArray[np.float64]

RANK_BLOCKS = 10
"""From this many blocks on, ranks instead of t."""
_ZERO = 1e-12


@dataclass(frozen=True)
class LogInterval:
    """Estimate and interval of a mean log ratio; ``p`` tests "no change", two-sided."""

    point: float
    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Spread:
    """Variance of the numbers of a sample as known from elsewhere, and its degrees of freedom."""

    variance: float
    degrees: int

    def times(self, factor: float) -> Spread:
        """Of a combination of runs whose squared weights add up to ``factor``."""
        return Spread(self.variance * factor, self.degrees)


def residual_spread(runs: Sequence[tuple[int, str, float]]) -> Spread | None:
    """Variance of one run's log about (its block + its level): the residual of the block design.

    A level's own spread over two or three blocks is hardly known; the residual is shared by all runs of the
    sweep. None without repeats.

    Args:
        runs: per run its block, its level (as text) and the log of its metric.
    """
    blocks = {block: i for i, block in enumerate(sorted({run[0] for run in runs}))}
    levels = {level: i for i, level in enumerate(sorted({run[1] for run in runs}))}
    design = np.zeros((len(runs), len(blocks) + len(levels)))
    logs = np.array([run[2] for run in runs])
    for row, (block, level, _log) in enumerate(runs):
        design[row, blocks[block]] = design[row, len(blocks) + levels[level]] = 1.0
    if not runs:
        return None
    fit, _, rank, _ = np.linalg.lstsq(design, logs, rcond=None)
    degrees = len(runs) - int(rank)
    if degrees < 1:
        return None
    return Spread(float(((logs - design @ fit) ** 2).sum()) / degrees, degrees)


def interval(
    logs: Sequence[float] | Floats, confidence: float = 0.95, known: Spread | None = None
) -> LogInterval | None:
    """Estimate, interval and p-value of the log ratios of ``logs`` (one a block); None below two blocks.

    Args:
        known: spread of such log ratios from the whole design; used below :data:`RANK_BLOCKS` blocks where it
            is larger than the sample's own. Never the smaller of the two: a level that is noisier than the
            rest keeps its own noise.
    """
    x = np.asarray(logs, dtype=np.float64)
    if x.size < 2:
        return None
    x = np.where(
        np.abs(x) < _ZERO, 0.0, x
    )  # equal runs differ by rounding, which ranks would take for an effect
    if x.size >= RANK_BLOCKS:
        return _rank_interval(x, confidence)
    mean = float(x.mean())
    variance, degrees = float(x.var(ddof=1)), x.size - 1
    if known is not None and known.degrees > degrees:
        variance, degrees = max(variance, known.variance), known.degrees
    error = math.sqrt(variance / x.size)
    if error <= _ZERO:  # a deterministic target repeats itself to the last digit
        return LogInterval(mean, mean, mean, 1.0 if mean == 0.0 else 0.0)
    half = _t_quantile(0.5 + confidence / 2, degrees) * error
    p = 2.0 * float(special.stdtr(degrees, -abs(mean) / error))
    return LogInterval(mean, mean - half, mean + half, p)


@lru_cache(maxsize=256)
def _t_quantile(p: float, degrees: int) -> float:
    return float(stats.t.ppf(p, degrees))


def _rank_interval(x: Floats, confidence: float) -> LogInterval:
    """Hodges-Lehmann and its exact signed-rank interval: order statistics of the Walsh averages."""
    n = x.size
    rows, columns = np.triu_indices(n)
    walsh = np.sort((x[rows] + x[columns]) / 2.0)
    cumulative = _signed_rank_cdf(n)
    tail = (1.0 - confidence) / 2.0
    cut = int(np.searchsorted(cumulative, tail, side="right"))  # P(W <= cut - 1) <= tail
    low, high = (walsh[cut - 1], walsh[-cut]) if cut else (-math.inf, math.inf)
    positive = float((walsh > 0).sum()) + 0.5 * float((walsh == 0).sum())
    smaller = min(positive, walsh.size - positive)
    p = min(1.0, 2.0 * float(cumulative[math.floor(smaller)]))
    return LogInterval(float(np.median(walsh)), float(low), float(high), p)


@lru_cache(maxsize=64)
def _signed_rank_cdf(n: int) -> Floats:
    """P(W <= w) of Wilcoxon's signed-rank statistic under "no change", w = 0 .. n(n+1)/2, by dynamic
    programming."""
    ways = np.zeros(n * (n + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, n + 1):
        shifted = np.zeros_like(ways)
        shifted[rank:] = ways[:-rank]
        ways = (ways + shifted) / 2.0
    cumulative: Floats = np.cumsum(ways)
    return cumulative


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment: the chance of even one false alarm in the family stays at the level."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [1.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def judge(
    logs: Sequence[float] | Floats,
    *,
    higher_is_better: bool,
    delta: float,
    alpha: float = 0.05,
    p_adjusted: float | None = None,
    known: Spread | None = None,
) -> tuple[Verdict, str]:
    """Verdict of one level and one metric, with its reason.

    BETTER or WORSE: significant (Holm-adjusted) **and** the estimate is at least ``delta`` away from 1.
    EQUIVALENT: the (1 - 2 alpha) interval lies inside 1/(1+delta) .. 1+delta (two one-sided tests).
    INCONCLUSIVE: neither; "not significant" is not "the same".

    Args:
        logs: log ratios to the baseline, one a block.
        higher_is_better: direction of the metric.
        delta: effect of interest, as a share (0.05 = 5 %).
        p_adjusted: p-value after adjustment over the levels; default: this level's own.
        known: see :func:`interval`.
    """
    estimate = interval(logs, 1.0 - alpha, known)
    if estimate is None:
        count = len(logs)
        return (
            Verdict.INCONCLUSIVE,
            "no block with both" if count == 0 else "one block has no interval; run more blocks",
        )
    p = estimate.p if p_adjusted is None else p_adjusted
    margin = math.log1p(delta)
    if p <= alpha and abs(estimate.point) >= margin:
        better = (estimate.point > 0) == higher_is_better
        return (
            Verdict.BETTER if better else Verdict.WORSE
        ), f"p = {p:.2g} over levels, effect at least {delta:.0%}"
    inner = interval(logs, 1.0 - 2.0 * alpha, known)
    if inner is not None and -margin < inner.low and inner.high < margin:
        return Verdict.EQUIVALENT, f"{1 - 2 * alpha:.0%} interval inside ±{delta:.0%}"
    if p <= alpha:
        return Verdict.INCONCLUSIVE, f"there is a difference, but it may be smaller than {delta:.0%}"
    return Verdict.INCONCLUSIVE, f"p = {p:.2g}: the runs differ too much to tell"


def minimum_detectable_effect(
    sd: float,
    blocks: int,
    *,
    alpha: float = 0.05,
    power: float = 0.9,
    comparisons: int = 1,
    degrees: int | None = None,
) -> float | None:
    """Smallest true effect (a share) that ``blocks`` blocks show as significant with probability ``power``.

    Args:
        sd: standard deviation of a level's log ratio between blocks.
        comparisons: levels compared with the baseline (Bonferroni, the worst case of Holm).
        degrees: of freedom of ``sd``; default: those of one level's sample.

    Solved with the noncentral t distribution. None below two blocks.
    """
    if blocks < 2 or not math.isfinite(sd):
        return None
    if sd <= _ZERO:
        return 0.0
    degrees = max(degrees or 0, blocks - 1)
    critical = float(stats.t.isf(alpha / comparisons / 2, degrees))

    def shortfall(shift: float) -> float:
        return float(stats.nct.sf(critical, degrees, shift)) - power

    upper = critical + 4.0
    while shortfall(upper) < 0:
        upper *= 2.0
        if upper > 1e4:
            return None
    shift = float(optimize.brentq(shortfall, 0.0, upper))
    return math.expm1(shift * sd / math.sqrt(blocks))


def pooled_sd(samples: Sequence[Sequence[float]]) -> float:
    """Standard deviation between blocks, pooled over levels (each about its own mean); nan without
    repeats."""
    squares, degrees = 0.0, 0
    for sample in samples:
        if len(sample) >= 2:
            squares += float(np.var(sample, ddof=1)) * (len(sample) - 1)
            degrees += len(sample) - 1
    return math.sqrt(squares / degrees) if degrees else math.nan


@dataclass(frozen=True)
class Trend:
    """Log-linear trend over a run order: change from first to last as a log, and its p-value."""

    total: float
    p: float


def trend(positions: Sequence[float], logs: Sequence[float]) -> Trend | None:
    """Least-squares line of ``logs`` over ``positions`` (the baseline's drift); None below three points."""
    if len(positions) < 3 or len(set(positions)) < 2:
        return None
    fit = stats.linregress(positions, logs)
    p = float(fit.pvalue)
    return Trend(float(fit.slope) * (max(positions) - min(positions)), 1.0 if math.isnan(p) else p)


def within_block_slopes(ranks: Sequence[float], rows: Sequence[Sequence[float]]) -> list[float]:
    """One number a block: the least-squares slope of the logs over the levels' ranks (a monotone-trend
    contrast).

    Args:
        ranks: place of each level in ascending order.
        rows: per block, the log of the metric at each level.
    """
    x = np.asarray(ranks, dtype=np.float64)
    centred = x - x.mean()
    scale = float((centred**2).sum())
    if scale == 0:
        return []
    return [float((centred * np.asarray(row)).sum()) / scale for row in rows]
