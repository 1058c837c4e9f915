"""Random paged layouts for the attention kernels, and what float64 says they should give."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.kernels.triton.platform import interpreted

DEVICE = "cpu" if interpreted() else "cuda"
"""Without a GPU the kernels run in Triton's interpreter; with one, the same tests run on it."""

UNTOUCHED = 2.0**15
"""Fills outputs beforehand: what a kernel must leave alone, and what no attention can give."""

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
SHAPES = [
    ((1, 1), 64, 16, F32),
    ((4, 2), 80, 32, F32),
    ((3, 1), 96, 16, BF16),
    ((4, 1), 128, 64, F16),
    ((5, 1), 256, 16, F32),
    ((6, 1), 64, 128, BF16),
    ((7, 1), 8, 2, F32),
    ((16, 2), 64, 16, F32),
]
"""(query heads, KV heads), head size, block size and type: groups of 1 to 8, every head size."""

HIGHEST_CODE = 0x7E
"""Poison of an fp8 cache: 448, the largest value (the software decoder knows no NaN)."""


@dataclass(frozen=True)
class Layout:
    """``requests`` are (context, new tokens); context 0: a padding row, new tokens 0: an empty one."""

    requests: tuple[tuple[int, int], ...]
    heads: tuple[int, int]
    head_size: int
    block_size: int
    dtype: torch.dtype = torch.float32
    window: int = 0
    fp8: bool = False
    seed: int = 0


class AttentionCase:
    """Inputs on :data:`DEVICE`, every slot that no context covers poisoned, blocks scattered."""

    def __init__(self, layout: Layout, device: str = DEVICE) -> None:
        self.layout = layout
        random = torch.Generator().manual_seed(layout.seed)
        num_heads, kv_heads = layout.heads
        size, block_size = layout.head_size, layout.block_size
        needed = [-(-context // block_size) for context, _ in layout.requests]
        order = (torch.randperm(sum(needed), generator=random) + 1).tolist()
        shape = (sum(needed) + 1, kv_heads, block_size, size)
        if layout.fp8:
            caches = [torch.full(shape, HIGHEST_CODE, dtype=torch.uint8) for _ in range(2)]
            self.scales = [torch.rand(kv_heads, generator=random) + 0.5 for _ in range(2)]
        else:
            caches = [torch.full(shape, float("nan"), dtype=layout.dtype) for _ in range(2)]
            self.scales = [torch.ones(kv_heads), torch.ones(kv_heads)]
        table = torch.zeros(len(needed), max([1, *needed]) + 1, dtype=torch.int32)
        self.contexts: list[list[torch.Tensor]] = []
        for row, ((context, _), count) in enumerate(zip(layout.requests, needed, strict=True)):
            blocks = [order.pop() for _ in range(count)]
            table[row, :count] = torch.tensor(blocks, dtype=torch.int32)
            positions = torch.arange(context)
            where = (
                torch.tensor(blocks)[positions // block_size] if blocks else positions,
                positions % block_size,
            )
            held = []
            for cache, scale in zip(caches, self.scales, strict=True):
                values = torch.randn(context, kv_heads, size, generator=random)
                stored = (
                    values.to(torch.float8_e4m3fn).view(torch.uint8)
                    if layout.fp8
                    else values.to(layout.dtype)
                )
                cache[where[0], :, where[1]] = stored
                read = stored.view(torch.float8_e4m3fn) if layout.fp8 else stored
                held.append(read.double() * scale.double()[None, :, None])
            self.contexts.append(held)
        starts = torch.tensor([0, *[new for _, new in layout.requests]]).cumsum(0)
        # Queries are a view into something wider, as in a fused projection.
        projection = torch.randn(int(starts[-1]), (num_heads + 3) * size, generator=random).to(layout.dtype)
        self.query = projection.to(device)[:, : num_heads * size].view(-1, num_heads, size)
        self.key_cache, self.value_cache = (cache.to(device) for cache in caches)
        self.k_scale, self.v_scale = (scale.to(device) for scale in self.scales)
        self.block_table = table.to(device)
        self.seq_lens = torch.tensor([c for c, _ in layout.requests], dtype=torch.int32, device=device)
        self.query_start_loc = starts.int().to(device)
        self.out = torch.full(self.query.shape, UNTOUCHED, dtype=layout.dtype, device=device)

    def wanted(self) -> torch.Tensor:
        """float64 [T, h, D]; rows without context are 0."""
        window = self.layout.window
        rows = []
        starts = self.query_start_loc.tolist()
        for (context, new), (keys, values), begin in zip(
            self.layout.requests, self.contexts, starts[:-1], strict=True
        ):
            query = self.query[begin : begin + new].double().cpu()
            if context == 0:
                rows.append(torch.zeros_like(query))
                continue
            group = query.shape[1] // keys.shape[1]
            keys, values = (t.repeat_interleave(group, dim=1) for t in (keys, values))
            scores = torch.einsum("qhd,khd->hqk", query, keys) / query.shape[2] ** 0.5
            distance = torch.arange(context - new, context)[:, None] - torch.arange(context)
            hidden = (distance < 0) | ((distance >= window) if window else False)
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            rows.append(torch.einsum("hqk,khd->qhd", weights, values))
        return torch.cat(rows)

    def rows_of(self, kind: str) -> torch.Tensor:
        """bool [T]: rows of requests with ``"one"`` query token, or ``"more"``."""
        flags = [[(new == 1) == (kind == "one")] * new for _, new in self.layout.requests]
        return torch.tensor([flag for flags_of_row in flags for flag in flags_of_row], dtype=torch.bool)


TOLERANCE = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Absolute, for attention outputs of size one: half types round weights and outputs."""


def assert_attends(case: AttentionCase, written: torch.Tensor) -> None:
    """``case.out`` is right in the rows ``written`` (bool [T]) and untouched in all others."""
    out = case.out.cpu()
    untouched = torch.tensor(UNTOUCHED, dtype=case.layout.dtype)
    assert (out[~written] == untouched).all()
    found = out[written].double()
    assert torch.isfinite(found).all()
    difference = (found - case.wanted()[written]).abs()
    assert difference.numel() == 0 or difference.max().item() < TOLERANCE[case.layout.dtype]
