"""A trace in memory: columns, all of one length."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Hash ids of all rows, flat: row i owns ``ids[offsets[i]:offsets[i + 1]]``. An id stands for ``tokens``
    tokens, and equal ids mean equal content up to and with them (prefix-chained)."""

    ids: Ints
    offsets: Ints
    tokens: int

    def of(self, row: int) -> Ints:
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def take(self, rows: Ints) -> Blocks:
        counts = np.diff(self.offsets)[rows]
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
        picked = [self.of(int(row)) for row in rows]
        ids = np.concatenate(picked) if picked else np.zeros(0, np.int64)
        return Blocks(ids, offsets, self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class TraceRows:
    """n rows in order of time. Times are ns after the trace's own beginning."""

    time_ns: Ints
    input_tokens: Ints
    output_tokens: Ints
    blocks: Blocks | None = None
    model: NDArray[np.str_] | None = None
    log_type: NDArray[np.str_] | None = None
    counts: dict[str, int] = field(default_factory=dict)
    """What the reader and each step of the selection touched, in order."""

    def __len__(self) -> int:
        return len(self.time_ns)

    def take(self, rows: Ints) -> TraceRows:
        return TraceRows(
            self.time_ns[rows],
            self.input_tokens[rows],
            self.output_tokens[rows],
            None if self.blocks is None else self.blocks.take(rows),
            None if self.model is None else self.model[rows],
            None if self.log_type is None else self.log_type[rows],
            dict(self.counts),
        )
