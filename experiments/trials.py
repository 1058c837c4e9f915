"""The same ledger as an Optuna study: one trial a run, in a journal file that optuna-dashboard opens.

    optuna-dashboard runs/SWEEP/optuna.journal

The schedule is the sweep's own. Optuna is told what to run (``enqueue_trial``), asked for the trial, and
told the result; its sampler is pinned and never consulted, so a change of Optuna's defaults can't change a
study.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import InvalidInputError
from experiments.cells import CellOutcome
from experiments.design import level_text
from experiments.metric_info import metric_info, response
from experiments.models import Cell

if TYPE_CHECKING:
    import optuna

JOURNAL = "optuna.journal"


class Trials:
    """Study ``sweep_id`` in ``folder/optuna.journal``; made when absent, continued when there."""

    def __init__(
        self,
        folder: Path,
        sweep_id: str,
        factor: str,
        levels: Sequence[Any] | tuple[float, float],
        metric: str,
        seed: int,
        storage: str | None = None,
    ) -> None:
        """
        Args:
            levels: of the design; a pair of numbers: the range that a search looks for them in.
            storage: an RDB URL (``sqlite:///sweeps.db``, ``postgresql://...``); None: the journal file.

        Raises:
            InvalidInputError: the storage can't be opened.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._metric = metric
        self._factor = factor
        self._space: optuna.distributions.BaseDistribution
        if isinstance(levels, tuple):
            self._space = optuna.distributions.FloatDistribution(float(levels[0]), float(levels[1]))
        else:
            self._space = optuna.distributions.CategoricalDistribution([level_text(v) for v in levels])
        info = metric_info(metric)
        self._study = optuna.create_study(
            study_name=sweep_id,
            storage=_open_storage(folder, storage),
            sampler=optuna.samplers.RandomSampler(seed=seed),
            pruner=optuna.pruners.NopPruner(),
            direction="maximize" if info is not None and info.higher_is_better else "minimize",
            load_if_exists=True,
        )
        self._study.set_user_attr("metric", metric)
        for trial in self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            # Left by a crash: nobody else will ever finish it, and a dashboard would show it as running for
            # good.
            self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)

    def start(self, cell: Cell, attempt: int) -> optuna.Trial:
        """Open a trial for one attempt at a cell."""
        attributes = {
            "phase": cell.phase, "block": cell.block, "position": cell.position, "baseline_copy":
            cell.baseline_copy, "seed": cell.seed, "nonce": cell.nonce, "attempt": attempt,
        }  # fmt: skip
        self._study.enqueue_trial(
            {self._factor: self._value(cell.level)}, user_attrs=attributes, skip_if_exists=False
        )
        return self._study.ask({self._factor: self._space})

    def _value(self, level: Any) -> Any:
        import optuna

        is_number = isinstance(self._space, optuna.distributions.FloatDistribution)
        return float(level) if is_number else level_text(level)

    def finish(self, trial: optuna.Trial, outcome: CellOutcome) -> None:
        """Close a trial: COMPLETE with the metric of a run that counts, else FAIL with the reason."""
        import optuna

        trial.set_user_attr("state", outcome.state)
        trial.set_user_attr("run", outcome.run)
        trial.set_user_attr("reason", outcome.reason)
        trial.set_user_attr("metrics", {k: v for k, v in outcome.metrics.items() if v is not None})
        value = response(self._metric, outcome.metrics) if outcome.state == "DONE" else None
        if value is None:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, value)


def _open_storage(folder: Path, url: str | None) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(folder / JOURNAL))) if url is None else open_database(url)


def open_database(url: str) -> Any:
    """Optuna's storage at ``url``.

    Raises:
        InvalidInputError: it can't be opened.
    """
    from optuna.storages import RDBStorage

    try:
        return RDBStorage(url)
    except Exception as error:
        # SQLAlchemy and its drivers raise their own kinds; to the user all of them are a storage that can't
        # be used.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InvalidInputError("storage", url, f"a database URL that can be opened ({reason})") from None
