"""Which part of each tensor a rank holds, after Megatron-LM (Shoeybi et al. 2019) and as vLLM cuts them.

Column-parallel (rows of the [out, in] matrix are cut): q, k, v, gate, up. Row-parallel (columns are cut, the
partial sums are added over ranks): o, down. Vocabulary-parallel: embedding and head. Norms are whole.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.errors import InvalidInputError
from engine.models.config import ModelConfig

MAX_SIZE = 64
_COLUMN = ("q_proj", "gate_proj", "up_proj")
_KEY_VALUE = ("k_proj", "v_proj")
_ROW = ("o_proj.weight", "down_proj.weight")
_VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True, slots=True)
class Shard:
    """Rank ``rank`` of ``size``; size 1 is the whole model."""

    rank: int = 0
    size: int = 1

    def local_config(self, config: ModelConfig) -> ModelConfig:
        """``config`` as this rank's layers see it. ``vocab_size`` stays the model's: logits are gathered.

        With fewer KV heads than ranks each rank holds one, and neighbours hold the same.
        """
        if self.size == 1:
            return config
        return dataclasses.replace(
            config,
            num_heads=config.num_heads // self.size,
            num_kv_heads=max(1, config.num_kv_heads // self.size),
            intermediate_size=config.intermediate_size // self.size,
        )

    def vocabulary_rows(self, vocab_size: int) -> int:
        """Rows of embedding and head that each rank holds; the last ones may be padding."""
        return -(-vocab_size // self.size)

    def cut(self, name: str, tensor: torch.Tensor, config: ModelConfig) -> torch.Tensor:
        """This rank's part of ``tensor``, which bears Hugging Face's ``name`` and is whole.

        Args:
            config: the whole model's.
        """
        if self.size == 1:
            return tensor
        if name in _VOCABULARY:
            rows = self.vocabulary_rows(config.vocab_size)
            part = tensor[self.rank * rows : (self.rank + 1) * rows]
            return F.pad(part, (0, 0, 0, rows - part.shape[0]))
        if name.endswith(_ROW):
            return tensor.chunk(self.size, dim=1)[self.rank]
        projection = name.split(".")[-2]
        if projection in _COLUMN:
            return tensor.chunk(self.size, dim=0)[self.rank]
        if projection in _KEY_VALUE:
            heads = config.num_kv_heads
            first = self.rank * heads // self.size
            count = max(1, heads // self.size)
            return tensor[first * config.head_size : (first + count) * config.head_size]
        return tensor


def check_divisible(config: ModelConfig, size: int) -> None:
    """Refuse a ``tensor_parallel_size`` that does not divide the model.

    Raises:
        InvalidInputError: names what does not divide, and the sizes that are possible.
    """
    obstacle = _obstacle(config, size)
    if obstacle is None:
        return
    possible = [str(n) for n in range(1, MAX_SIZE + 1) if _obstacle(config, n) is None]
    raise InvalidInputError(
        "tensor_parallel_size", size, f"{obstacle}; possible for this model: {', '.join(possible)}"
    )


def _obstacle(config: ModelConfig, size: int) -> str | None:
    if config.num_heads % size:
        return f"the model's {config.num_heads} attention heads can't be divided by it"
    if config.num_kv_heads % size and size % config.num_kv_heads:
        return f"the model's {config.num_kv_heads} KV heads can neither be divided nor replicated evenly"
    if config.intermediate_size % size:
        return f"the model's intermediate size {config.intermediate_size} can't be divided by it"
    return None
