"""Who held how many KV blocks in a step, as far as a trace can tell.

The trace has counters of the pool and every prefill chunk, not the block tables. A request's computed tokens
follow from its events, and so does the number of blocks it held; which ones, and which of them were shared,
does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from reports.figures.block_pool import Held

_NOW = 1e-9


@dataclass(frozen=True)
class HeldBlocks:
    """Requests by the blocks they held, most first; the rest follows from the step's own counter."""

    held: list[Held]
    unexplained: int
    """Blocks in use that no request accounts for."""
    shared: int
    """Blocks that must be in more than one block table: the tables hold so many more than are in use."""

    @property
    def total(self) -> int:
        return sum(h.blocks for h in self.held)


def held_blocks(events: pd.DataFrame, steps: pd.DataFrame, index: int, block_size: int) -> HeldBlocks:
    """Look at row ``index`` of ``steps``, while that step ran.

    Args:
        events: as from ``RunData.events``. block_size: tokens in a block.
    """
    step = steps.iloc[index]
    start, step_id = float(step["start_s"]), int(step["step_id"])
    planned = start + float(step["schedule_ms"] or 0.0) / 1e3 + _NOW
    position = pd.Series(range(len(steps)), index=steps["step_id"])
    chunks = events[(events["kind"] == "scheduled") & events["step_id"].isin(steps["step_id"][: index + 1])]
    last = chunks.drop_duplicates("core_id", keep="last").set_index("core_id")
    before = events[(events["t_s"] <= planned) & (events["step_id"].isna() | (events["step_id"] < step_id))]
    gone = before[before["kind"].isin(["finished", "preempted"])].drop_duplicates("core_id", keep="last")
    since = gone.set_index("core_id")["t_s"].reindex(last.index)
    alive = last[~(since > last["t_s"]).fillna(False)]
    held = []
    for row in alive.to_dict("records"):
        decoded = index - int(position[int(row["step_id"])])
        tokens = int(row["value"] or 0) + int(row["tokens"] or 0) + decoded
        held.append(Held(str(row["request_id"]), -(-tokens // block_size)))
    held.sort(key=lambda h: (-h.blocks, h.request))
    used = 0 if pd.isna(step["kv_used"]) else int(step["kv_used"])
    total = sum(h.blocks for h in held)
    return HeldBlocks(held, max(0, used - total), max(0, total - used))
