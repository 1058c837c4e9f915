"""An executor that believes nothing: it keeps the contents of every KV slot and checks each plan against
them.

The "KV" of a position is a digest of everything before it, as in a real model: a slot that holds the
right token of the wrong prompt is wrong. The next token is a function of all tokens known, so a lost,
doubled or stale token changes the rest of the output.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from engine.executor.base import Executor
from engine.messages import EngineCoreRequest, FinishReason, TokenLogprobs
from engine.plan import NewRequest, StepPlan, StepResult

VOCAB_SIZE = 13
EOS = 12


class OracleError(AssertionError):
    """A plan is wrong."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise OracleError(message)


def next_token(tokens: list[int], seed: int | None) -> int:
    """The model: what follows ``tokens``."""
    return zlib.crc32(repr((tokens, seed)).encode()) % VOCAB_SIZE


def solo(request: EngineCoreRequest, max_total_tokens: int) -> tuple[list[int], FinishReason, int | None]:
    """Output of a request that is alone in the world: tokens, finish reason, stop token."""
    tokens, params = list(request.prompt_token_ids), request.params
    limit = (
        max_total_tokens
        if params.max_tokens is None
        else min(max_total_tokens, len(tokens) + params.max_tokens)
    )
    output: list[int] = []
    while True:
        token = next_token(tokens, params.seed)
        tokens.append(token)
        output.append(token)
        if len(output) < params.min_tokens:
            continue
        if token in request.eos_token_ids and not params.ignore_eos:
            return output, FinishReason.STOP, None
        if token in params.stop_token_ids:
            return output, FinishReason.STOP, token
        if len(tokens) >= limit:
            return output, FinishReason.LENGTH, None


@dataclass
class Row:
    """One request in the batch."""

    tokens: list[int]
    num_prompt_tokens: int
    seed: int | None
    num_computed: int
    blocks: list[int]
    prompt_logprobs: bool
    kv: list[int] = field(default_factory=list)
    """What the slots of positions 0, 1, … must hold."""

    def kv_at(self, position: int) -> int:
        while len(self.kv) <= position:
            previous = self.kv[-1] if self.kv else 0
            self.kv.append(zlib.crc32(repr((previous, self.tokens[len(self.kv)])).encode()))
        return self.kv[position]


class OracleExecutor(Executor):
    """Checks that every position is computed exactly once and in order, that whoever writes a block owns
    it alone, and that each context read holds exactly the KV of the request's own tokens.
    """

    def __init__(
        self, num_kv_blocks: int, block_size: int, max_num_batched_tokens: int, max_num_seqs: int
    ) -> None:
        self._num_kv_blocks = num_kv_blocks
        self._block_size = block_size
        self._budget = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._slots: dict[tuple[int, int], int] = {}
        self._last_step_id = -1
        self.rows: dict[str, Row] = {}
        self.plans: list[StepPlan] = []
        self.num_hit_tokens = 0

    @property
    def num_kv_blocks(self) -> int:
        return self._num_kv_blocks

    def reset(self) -> None:
        self.rows.clear()

    def shutdown(self) -> None:
        self.rows.clear()

    def execute(self, plan: StepPlan) -> StepResult:
        require(plan.step_id > self._last_step_id, "steps are out of order")
        self._last_step_id = plan.step_id
        self.plans.append(plan)
        for request_id in plan.finished_request_ids:
            self.rows.pop(request_id, None)
        for request_id in plan.preempted_request_ids:
            require(request_id in self.rows, f"{request_id} is preempted but not in the batch")
            del self.rows[request_id]
        for new in plan.new_requests:
            self._enter(new, plan)
        self._add_blocks(plan)
        require(len(self.rows) <= self._max_num_seqs, "too many requests in the batch")
        require(plan.total_num_scheduled_tokens <= self._budget, "the token budget is exceeded")
        require(plan.num_scheduled_tokens.keys() == plan.num_computed_tokens.keys(), "marks are missing")
        for request_id, num_tokens in plan.num_scheduled_tokens.items():
            self._compute(request_id, num_tokens, plan)
        return self._sample(plan)

    def _enter(self, new: NewRequest, plan: StepPlan) -> None:
        require(new.request_id not in self.rows, f"{new.request_id} enters twice")
        require(new.request_id in plan.num_scheduled_tokens, f"{new.request_id} enters without tokens")
        row = Row(
            list(new.token_ids),
            new.num_prompt_tokens,
            new.params.seed,
            new.num_computed_tokens,
            list(new.block_ids),
            new.params.prompt_logprobs is not None,
        )
        require(row.num_computed < len(row.tokens), f"{new.request_id} has nothing to compute")
        require(row.num_computed % self._block_size == 0, f"{new.request_id}: a hit of half a block")
        require(
            not (row.prompt_logprobs and row.num_computed), f"{new.request_id}: logprobs of cached positions"
        )
        # Before anything of this step is written: a hit must not wait for a neighbour's write.
        self._check_context(new.request_id, row, row.num_computed)
        self._check_unowned(new.request_id, row.blocks[row.num_computed // self._block_size :])
        self.rows[new.request_id] = row
        self.num_hit_tokens += row.num_computed

    def _add_blocks(self, plan: StepPlan) -> None:
        for request_id, block_ids in plan.new_block_ids.items():
            require(request_id in self.rows and bool(block_ids), f"{request_id}: blocks for nobody, or none")
            self._check_unowned(request_id, block_ids)
            self.rows[request_id].blocks += block_ids

    def _check_unowned(self, request_id: str, block_ids: list[int]) -> None:
        for block_id in block_ids:
            require(0 < block_id < self._num_kv_blocks, f"{request_id}: block {block_id} does not exist")
            for owner, row in self.rows.items():
                require(block_id not in row.blocks, f"{request_id}: block {block_id} belongs to {owner}")

    def _check_context(self, request_id: str, row: Row, num_tokens: int) -> None:
        for position in range(num_tokens):
            slot = (row.blocks[position // self._block_size], position % self._block_size)
            require(
                self._slots.get(slot) == row.kv_at(position), f"{request_id}: wrong KV at position {position}"
            )

    def _compute(self, request_id: str, num_tokens: int, plan: StepPlan) -> None:
        row = self.rows[request_id]
        start, end = row.num_computed, row.num_computed + num_tokens
        require(num_tokens > 0, f"{request_id}: no tokens")
        require(plan.num_computed_tokens[request_id] == start, f"{request_id}: the computed mark is wrong")
        require(end <= len(row.tokens), f"{request_id}: tokens that are not known")
        require(
            len(row.blocks) == -(-end // self._block_size),
            f"{request_id}: {len(row.blocks)} blocks for {end}",
        )
        for position in range(start, end):
            block_id = row.blocks[position // self._block_size]
            for other, other_row in self.rows.items():
                require(
                    other == request_id or block_id not in other_row.blocks,
                    f"{request_id} writes into block {block_id}, which {other} holds, too",
                )
            self._slots[block_id, position % self._block_size] = row.kv_at(position)
        row.num_computed = end
        self._check_context(request_id, row, end)
        require(
            (request_id in plan.samples) == (end == len(row.tokens)),
            f"{request_id}: samples at the wrong time",
        )

    def _sample(self, plan: StepPlan) -> StepResult:
        in_batch_order = [name for name in plan.num_scheduled_tokens if name in set(plan.samples)]
        require(list(plan.samples) == in_batch_order, "samples are not in batch order")
        result = StepResult(plan.step_id, {})
        for request_id in plan.samples:
            row = self.rows[request_id]
            token = next_token(row.tokens, row.seed)
            if row.prompt_logprobs:
                result.prompt_logprobs[request_id] = [None, *_logprobs(row)]
            row.tokens.append(token)
            result.sampled_token_ids[request_id] = token
            result.logprobs[request_id] = TokenLogprobs([token], [-1.0], 1)
        return result


def _logprobs(row: Row) -> list[TokenLogprobs]:
    return [TokenLogprobs([token], [-2.0], 1) for token in row.tokens[1 : row.num_prompt_tokens]]
