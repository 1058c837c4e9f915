"""What a sweep is asked to do: fixed before the first run, stored in ``schedule.json``, and checked on
resume."""

from __future__ import annotations

import re
import shlex
from typing import Any, Literal

from pydantic import Field

from engine.errors import InvalidInputError
from experiments.design import level_text
from experiments.factors import FactorExpectation, Side
from experiments.models import Frozen
from experiments.stats import RANK_BLOCKS
from experiments.targets import BUILTIN, TargetChoice

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


class Load(Frozen):
    """The traffic of every run of a sweep: the same for all levels."""

    request_rate: float | None
    """Requests per second, Poisson; None: all at once."""
    num_prompts: int


class AcrossSpec(Frozen):
    """An axis along which the winner is compared with the baseline again."""

    axis: Literal["rate", "workload"]
    values: list[Any]
    workloads: dict[str, dict[str, Any]] = Field(default={})
    """The workloads whole, by name."""
    pairs: int = 3


class SweepSpec(Frozen):
    """A pre-registered question. Nothing here changes once the sweep has started."""

    question: str
    factor: str
    field: str
    levels: list[Any]
    """In order, the baseline among them."""
    baseline: Any
    primary_metric: str
    hypothesis: list[FactorExpectation]
    changes_output: bool = False
    delta: float = 0.05
    alpha: float = 0.05
    slo: str = ""
    workload: str
    workload_spec: dict[str, Any] = Field(default={})
    """The workload whole, so that a resumed sweep never sees an edited file."""
    request_rate: float | None = None
    """None: calibrated to ``utilisation`` of the baseline's capacity."""
    all_at_once: bool = False
    """The workload has no rate: every request is sent at the start."""
    num_prompts: int | None = None
    """None: as many as fill a run's share of the budget."""
    utilisation: float = 0.7
    blocks: int
    """Most blocks; the budget may stop earlier."""
    budget_s: float | None = None
    confirm_blocks: int = 3
    """Pairs that measure the winner again on fresh seeds; 0: none."""
    pilot_pairs: int = 0
    """Pairs of the baseline with itself before the first block."""
    across: AcrossSpec | None = None
    search: Literal["levels", "tpe"] = "levels"
    """levels: each in every block; tpe: Optuna's sampler proposes those of the next block."""
    search_range: tuple[float, float] | tuple[int, int] | None = None
    storage: str | None = None
    """Of Optuna's study: an RDB URL; None: a journal file in the sweep's folder."""
    retries: int = 1
    seed: int = 0
    model: str
    side: Side = "engine"
    """Of the factor: what its levels are set on."""
    target: TargetChoice = TargetChoice()
    ready_timeout_s: float = 120.0
    engine: dict[str, Any] = Field(default={})
    """Engine settings of all levels."""
    fixed: dict[str, Any] = Field(default={})
    """Of those, the ones that the factor fixes."""

    @property
    def runs_per_block(self) -> int:
        return len(self.levels) + 1

    def residual_degrees(self, blocks: int) -> int | None:
        """Degrees of freedom of the block design's residual; None where ranks take over."""
        if blocks >= RANK_BLOCKS:
            return None
        return blocks * self.runs_per_block - blocks - len(self.levels) + 1

    def reproduce(self, load: Load | None) -> str:
        """The command line that repeats this sweep, with the rate and length that were calibrated."""
        words = [
            *("workbench", "sweep", "--param", self.factor),
            *("--values", ",".join(map(level_text, self.levels)), "--baseline", level_text(self.baseline)),
            *("--blocks", str(self.blocks), "--metric", self.primary_metric, "--delta", f"{self.delta:.4g}"),
            *("--workload", self.workload, "--seed", str(self.seed), "--model", self.model),
        ]
        words += [*self._target_words(), *self._design_words()]
        if self.slo:
            words += ["--slo", self.slo]
        if self.budget_s is not None:
            words += ["--budget", f"{self.budget_s:g}s"]
        if load is not None:
            if load.request_rate is not None:
                words += ["--request-rate", f"{load.request_rate:.4g}"]
            words += ["--num-prompts", str(load.num_prompts)]
        for name, value in self.engine.items():
            if name == "model" or (name in self.fixed and self.fixed[name] == value):
                continue
            flag = "--" + name.replace("_", "-")
            if isinstance(value, bool):
                words.append(flag if value else "--no-" + name.replace("_", "-"))
            elif value is not None:
                words += [flag, str(value)]
        return shlex.join(words)

    def _design_words(self) -> list[str]:
        words = ["--confirm", str(self.confirm_blocks)]
        if self.search != "levels":
            words += ["--search", self.search]
        if self.across is not None:
            words += ["--across", f"{self.across.axis}={','.join(map(level_text, self.across.values))}"]
        return words

    def _target_words(self) -> list[str]:
        target, words = self.target, []
        if target.kind == "command" and target.name == "command":
            words = ["--target-command", target.command]
        elif target.name != BUILTIN:
            words = ["--target", target.name]
        if target.extra:
            words += ["--target-args", target.extra]
        return words


def parse_duration(text: str) -> float:
    """Seconds of ``90``, ``90s``, ``9m``, ``1h30m``.

    Raises:
        InvalidInputError: not a duration, or not more than zero.
    """
    word = text.strip().lower()
    match = _DURATION.fullmatch(word)
    seconds = 0.0
    if match is not None and word:
        hours, minutes, rest = (float(part) if part else 0.0 for part in match.groups())
        seconds = 3600.0 * hours + 60.0 * minutes + rest
    if seconds <= 0:
        raise InvalidInputError("budget", text, "a duration such as 90s, 9m or 1h30m")
    return seconds


def parse_share(name: str, text: str) -> float:
    """A share of ``5%`` or ``0.05``, more than 0 and less than 1.

    Raises:
        InvalidInputError: anything else.
    """
    word = text.strip()
    try:
        value = float(word[:-1]) / 100.0 if word.endswith("%") else float(word)
    except ValueError:
        value = 0.0
    if not 0.0 < value < 1.0:
        raise InvalidInputError(name, text, "a share such as 5% or 0.05, more than 0 and less than 1")
    return value


def parse_rate(text: str) -> float:
    """Requests per second, fractions allowed.

    Raises:
        InvalidInputError: not a positive number.
    """
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0.0 < rate < float("inf"):
        raise InvalidInputError("request-rate", text, "requests per second, more than 0")
    return rate
