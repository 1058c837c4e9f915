"""What one request produces when it has the machine to itself: one forward for the prompt, then one a token.

No scheduler, no paging decisions, no neighbours, no cache: blocks 1, 2, 3 ... in order. The differential
test's oracle.
"""

from __future__ import annotations

import torch

from engine.messages import FinishReason, TokenLogprobs
from engine.models.backend import ForwardBatch, ModelBackend
from engine.sampling.sampler import Sampler
from engine.sampling_params import SamplingParams
from tests.differential.scenario import EOS, MAX_MODEL_LEN


class Solo:
    """Runs requests alone on ``backend``, which must be nobody else's (its KV cache is taken over)."""

    def __init__(self, backend: ModelBackend, block_size: int) -> None:
        self._backend = backend
        self._block_size = block_size
        self._num_blocks = -(-MAX_MODEL_LEN // block_size)
        backend.allocate_kv(self._num_blocks + 1)

    def run(
        self, prompt: tuple[int, ...], params: SamplingParams
    ) -> tuple[list[int], FinishReason, list[TokenLogprobs | None]]:
        """(output tokens, finish reason, logprobs) by the rules of ``docs/semantics.md``."""
        sampler = Sampler(self._backend.vocab_size, 1)
        sampler.add_row(0, params, list(prompt), [], [EOS])
        tokens, computed = list(prompt), 0
        output: list[int] = []
        logprobs: list[TokenLogprobs | None] = []
        while True:
            logits = self._forward(tokens, computed)
            computed = len(tokens)
            sampled = sampler.sample(logits, [0])
            tokens.append(sampled.token_ids[0])
            output.append(sampled.token_ids[0])
            logprobs.append(sampled.logprobs[0])
            reason = self._finish(output, len(tokens), params)
            if reason is not None:
                return output, reason, logprobs

    def _finish(self, output: list[int], num_tokens: int, params: SamplingParams) -> FinishReason | None:
        if len(output) >= params.min_tokens:
            if output[-1] == EOS and not params.ignore_eos:
                return FinishReason.STOP
            if output[-1] in params.stop_token_ids:
                return FinishReason.STOP
        if num_tokens >= MAX_MODEL_LEN or len(output) >= (params.max_tokens or MAX_MODEL_LEN):
            return FinishReason.LENGTH
        return None

    def _forward(self, tokens: list[int], computed: int) -> torch.Tensor:
        positions = torch.arange(computed, len(tokens))
        return self._backend.forward(
            ForwardBatch(
                input_ids=torch.tensor(tokens[computed:]),
                positions=positions,
                query_start_loc=torch.tensor([0, len(positions)], dtype=torch.int32),
                seq_lens=torch.tensor([len(tokens)], dtype=torch.int32),
                block_table=torch.arange(1, self._num_blocks + 1, dtype=torch.int32)[None],
                slot_mapping=positions + self._block_size,
                logits_indices=torch.tensor([len(positions) - 1]),
                max_query_len=len(positions),
                max_seq_len=len(tokens),
            )
        )
