"""Bugs that other engines have had, planted one at a time: where, what, and which tests should notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutation:
    """Replace ``old`` (which must stand in ``path`` exactly once) by ``new``."""

    name: str
    path: str
    old: str
    new: str


MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "a block is findable before its KV is written",
        "engine/scheduler/admission.py",
        "        self._count(request, +1)\n\n    def _count",
        "        self._kv.cache_blocks(request, hit.num_tokens + num_tokens)\n"
        "        self._count(request, +1)\n\n    def _count",
    ),
    Mutation(
        "a victim keeps its share of the step under construction",
        "engine/scheduler/state.py",
        "            draft.undo(request)\n",
        "",
    ),
    Mutation(
        "a fully cached prompt computes nothing (last block rule dropped)",
        "engine/kv/manager.py",
        "max_blocks = (request.num_tokens - 1) // self.block_size",
        "max_blocks = request.num_tokens // self.block_size",
    ),
    Mutation(
        "KV is written one slot too far",
        "engine/executor/input_batch.py",
        "slots = slots * self.block_size + positions % self.block_size",
        "slots = slots * self.block_size + (positions + 1) % self.block_size",
    ),
    Mutation(
        "requests share one seed",
        "engine/sampling/noise.py",
        "raw = np.array([seed & _MASK_64], dtype=np.uint64)",
        "raw = np.array([7], dtype=np.uint64)",
    ),
    Mutation(
        "noise depends on how often a request was drawn for, not on its position",
        "engine/sampling/rows.py",
        "self.positions[row] = len(prompt_token_ids) + len(output_token_ids)",
        "self.positions[row] = len(prompt_token_ids)",
    ),
    Mutation(
        "penalties forget the output of a resumed request",
        "engine/sampling/penalties.py",
        "for token in output_token_ids:",
        "for token in ():",
    ),
    Mutation(
        "the repetition penalty overlooks the prompt",
        "engine/sampling/penalties.py",
        "seen = sorted(set(prompt_token_ids)) if repetition != 1.0 else []",
        "seen: list[int] = []",
    ),
    Mutation(
        "blocks are released twice",
        "engine/kv/manager.py",
        "table = self.tables.pop(request.request_id, None)",
        "table = self.tables.get(request.request_id)",
    ),
    Mutation(
        "a stop string's first character is shown too early (hold-back off by one)",
        "engine/frontend/stop.py",
        "max(matcher.depth for matcher in self._matchers)",
        "max(0, max(matcher.depth for matcher in self._matchers) - 1)",
    ),
    Mutation(
        "idle hits are not counted as free blocks used up",
        "engine/kv/manager.py",
        " - self.pool.count_free(hit.blocks)",
        "",
    ),
    Mutation(
        "KV of a step that a preemption overtook becomes findable",
        "engine/scheduler/scheduler.py",
        "if share.epoch == request.num_preemptions:",
        "if request.status is RequestStatus.RUNNING:",
    ),
    Mutation(
        "a preempted request keeps its progress",
        "engine/scheduler/state.py",
        "        request.num_computed_tokens = 0\n",
        "",
    ),
    Mutation(
        "a length limit wins over an eos on the same token",
        "engine/scheduler/stop.py",
        "    if token_id in request.eos_token_ids:",
        "    if request.num_tokens >= request.max_total_tokens:\n        return FinishReason.LENGTH, None\n"
        "    if token_id in request.eos_token_ids:",
    ),
    Mutation(
        "min_tokens does not hold stop tokens back",
        "engine/scheduler/stop.py",
        "if num_output < request.params.min_tokens:",
        "if num_output < 0:",
    ),
    Mutation(
        "cache_salt is not part of a block's identity",
        "engine/kv/manager.py",
        'keys = () if request.cache_salt is None else (ExtraKey("cache_salt", request.cache_salt),)',
        "keys: tuple[ExtraKey, ...] = ()",
    ),
    Mutation(
        "a resumed request is sent without its output",
        "engine/scheduler/emit.py",
        "token_ids=list(request.all_token_ids) if resumed else request.prompt_token_ids,",
        "token_ids=request.prompt_token_ids,",
    ),
    Mutation(
        "a stop string may begin in text that min_tokens protects",
        "engine/frontend/sequence.py",
        "self._num_tokens > self._params.min_tokens",
        "True",
    ),
)
