"""Instruction sets and request layouts for the tests of the native backend."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.kernels.cpu.build import InstructionSet

DTYPES = (torch.float32, torch.bfloat16)


def supported_isas() -> list[InstructionSet]:
    """Instruction sets that this machine can run."""
    features = torch.backends.cpu.get_cpu_capability()
    isas: list[InstructionSet] = ["native", "portable"]
    if features in ("AVX2", "AVX512"):
        isas.append("avx2")
    if features == "AVX512":
        isas.append("avx512")
    if torch.cpu.get_capabilities().get("amx_bf16"):  # native is the matrix unit then: what it replaces too
        isas.append("avx512_bf16")
    return isas


@dataclass(frozen=True)
class Pool:
    """Blocks handed out in a random order, never block 0."""

    order: list[int]
    block_size: int

    @classmethod
    def shuffled(cls, num_blocks: int, block_size: int, seed: int = 0) -> Pool:
        random = torch.Generator().manual_seed(seed)
        return cls((torch.randperm(num_blocks - 1, generator=random) + 1).tolist(), block_size)

    def take(self, num_tokens: int) -> list[int]:
        return [self.order.pop() for _ in range(-(-num_tokens // self.block_size))]


def random_tokens(count: int, vocab_size: int = 101, seed: int = 0) -> list[int]:
    return torch.randint(vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
