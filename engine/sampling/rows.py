"""State of the rows of the persistent batch: plain columns for what every row has, one object for rows
with special wishes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.sampling.constraints import Constraints
from engine.sampling.noise import seed_key
from engine.sampling.penalties import Penalties
from engine.sampling_params import SamplingParams

MIN_TEMPERATURE = 0.01
"""Temperatures between greedy and this are raised to it, as vLLM does: below, logits overflow and nothing
changes.
"""

NO_LOGPROBS = -2


class RowStates:
    """Sampling state by row index, ``max_rows`` rows. A row is a request in the batch; the executor moves
    rows about.

    Columns (numpy, one entry a row) serve the vectorised path. ``constraints``, ``penalties`` and ``output``
    are None for rows that ask for nothing of the kind, and cost nothing then.
    """

    def __init__(self, vocab_size: int, max_rows: int) -> None:
        self._vocab_size = vocab_size
        self.greedy: npt.NDArray[np.bool_] = np.ones(max_rows, dtype=np.bool_)
        self.truncated: npt.NDArray[np.bool_] = np.zeros(max_rows, dtype=np.bool_)
        self.special: npt.NDArray[np.bool_] = np.zeros(max_rows, dtype=np.bool_)
        self.temperature: npt.NDArray[np.float32] = np.ones(max_rows, dtype=np.float32)
        self.top_k: npt.NDArray[np.int64] = np.full(max_rows, vocab_size, dtype=np.int64)
        self.top_p: npt.NDArray[np.float64] = np.ones(max_rows, dtype=np.float64)
        self.min_p: npt.NDArray[np.float64] = np.zeros(max_rows, dtype=np.float64)
        self.seed_keys: npt.NDArray[np.uint64] = np.zeros(max_rows, dtype=np.uint64)
        self.positions: npt.NDArray[np.int64] = np.zeros(max_rows, dtype=np.int64)
        self.num_logprobs: npt.NDArray[np.int64] = np.full(max_rows, NO_LOGPROBS, dtype=np.int64)
        self.constraints: list[Constraints | None] = [None] * max_rows
        self.penalties: list[Penalties | None] = [None] * max_rows

    @property
    def _columns(self) -> tuple[npt.NDArray[np.generic], ...]:
        return (
            self.greedy, self.truncated, self.special, self.temperature, self.top_k, self.top_p, self.min_p,
            self.seed_keys, self.positions, self.num_logprobs,
        )  # fmt: skip

    def add(
        self,
        row: int,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
        eos_token_ids: Sequence[int],
    ) -> None:
        """Fill ``row``. ``output_token_ids`` is not empty when a request comes back after a preemption."""
        vocab = self._vocab_size
        self.greedy[row] = params.greedy
        self.temperature[row] = 1.0 if params.greedy else max(params.temperature, MIN_TEMPERATURE)
        self.top_k[row] = min(params.top_k, vocab) if params.top_k > 0 else vocab
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.truncated[row] = self.top_k[row] < vocab or params.top_p < 1.0
        self.seed_keys[row] = seed_key(params.seed or 0)
        self.positions[row] = len(prompt_token_ids) + len(output_token_ids)
        self.num_logprobs[row] = NO_LOGPROBS if params.logprobs is None else params.logprobs
        constraints = Constraints.create(params, output_token_ids, eos_token_ids, vocab)
        penalties = Penalties.create(params, prompt_token_ids, output_token_ids)
        self.constraints[row] = constraints
        self.penalties[row] = penalties
        self.special[row] = constraints is not None or penalties is not None

    def move(self, src: int, dst: int) -> None:
        """Row ``src`` becomes row ``dst``; what ``dst`` held is lost, ``src`` becomes free."""
        if src == dst:
            return
        for column in self._columns:
            column[dst] = column[src]
        self.constraints[dst] = self.constraints[src]
        self.penalties[dst] = self.penalties[src]
        self.remove(src)

    def remove(self, row: int) -> None:
        """Free ``row``: its state can't reach whoever gets the row next."""
        self.special[row] = False
        self.constraints[row] = None
        self.penalties[row] = None

    def record(self, rows: npt.NDArray[np.int64], token_ids: Sequence[int]) -> None:
        """Note one sampled token a row."""
        self.positions[rows] += 1
        for place in np.flatnonzero(self.special[rows]).tolist():
            row, token = int(rows[place]), token_ids[place]
            if (constraints := self.constraints[row]) is not None:
                constraints.record(token)
            if (penalties := self.penalties[row]) is not None:
                penalties.record(token)
