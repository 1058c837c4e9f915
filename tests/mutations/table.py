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
    Mutation(
        "the null block is given out",
        "engine/kv/block_pool.py",
        "FreeBlockQueue(self.blocks[1:])",
        "FreeBlockQueue(self.blocks)",
    ),
    Mutation(
        "a shared block is freed with its first holder",
        "engine/kv/block_pool.py",
        "            if block.ref_cnt == 0:\n                if block.block_hash is None:",
        "            if block.ref_cnt >= 0:\n                block.ref_cnt = 0\n"
        "                if block.block_hash is None:",
    ),
    Mutation(
        "a request's blocks are reused from the head of their chain",
        "engine/kv/manager.py",
        "self.pool.release(reversed(table))",
        "self.pool.release(table)",
    ),
    Mutation(
        "prompt logprobs are asked of cached positions",
        "engine/request.py",
        "return self.params.prompt_logprobs is not None",
        "return False",
    ),
    Mutation(
        "a token sampled for an aborted request is delivered",
        "engine/scheduler/scheduler.py",
        "            if request.status is RequestStatus.FINISHED:\n                continue",
        "            if request.status is RequestStatus.WAITING:\n                continue",
    ),
    Mutation(
        "a long prompt starves those who decode",
        "engine/scheduler/running_pass.py",
        "draft.budget - decodes_behind)",
        "draft.budget)",
    ),
    Mutation(
        "the best running request is preempted instead of the last",
        "engine/scheduler/running_pass.py",
        "victim = state.running[-1]",
        "victim = state.running[0]",
    ),
    Mutation(
        "prompts that run half-way lose the blocks that were promised to them",
        "engine/scheduler/admission.py",
        "set_aside = self._watermark_blocks + promised if num_others else 0",
        "set_aside = self._watermark_blocks if num_others else 0",
    ),
    Mutation(
        "a lone request waits for blocks that nobody will ever free",
        "engine/scheduler/admission.py",
        "set_aside = self._watermark_blocks + promised if num_others else 0",
        "set_aside = self._watermark_blocks + promised + 1",
    ),
    Mutation(
        "a token in flight is computed twice (placeholders not counted)",
        "engine/scheduler/running_pass.py",
        "return request.num_tokens + placeholders - request.num_computed_tokens",
        "return request.num_tokens + 1 - request.num_computed_tokens",
    ),
    Mutation(
        "the sequences of one request share their noise",
        "engine/frontend/processor.py",
        "seed = ((params.seed or 0) + index + 2**63)",
        "seed = ((params.seed or 0) + 2**63)",
    ),
    Mutation(
        "penalties fall on the row of a neighbour",
        "engine/sampling/penalties.py",
        "penalties.ids + place * vocab_size for place, penalties in penalised",
        "penalties.ids + i * vocab_size for i, (_, penalties) in enumerate(penalised)",
    ),
    Mutation(
        "logprobs are taken behind the penalties",
        "engine/sampling/sampler.py",
        "        token_ids = self._choose(logits, index)\n",
        "        raw = raw if raw is None else logits[torch.from_numpy(wants_logprobs)]\n"
        "        token_ids = self._choose(logits, index)\n",
    ),
    Mutation(
        "top_p drops the token that crosses it",
        "engine/sampling/draw.py",
        "    before = functional.pad(cdf[:, :-1], (1, 0))",
        "    before = cdf",
    ),
    Mutation(
        "top_p of a wide row keeps one token too many",
        "engine/sampling/draw.py",
        "    count = 1 + int(np.searchsorted(cdf[:-1], limit))",
        "    count = min(len(falling), 2 + int(np.searchsorted(cdf[:-1], limit)))",
    ),
    Mutation(
        "half a character is shown",
        "engine/frontend/detokenizer.py",
        "return self._decoder.decode(self._tokenizer.token_bytes(token_id))",
        'return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")',
    ),
    Mutation(
        "a client that leaves is not told to the core",
        "engine/frontend/async_llm.py",
        "            if core_ids := self._outputs.remove(live):\n"
        "                self._client.abort(core_ids)\n            if self._outputs",
        "            self._outputs.remove(live)\n            if self._outputs",
    ),
    Mutation(
        "an inner id is used again",
        "engine/frontend/processor.py",
        'request_id=f"{request_id}#{number}" + (',
        'request_id=f"{request_id}" + (',
    ),
)
