"""What int8 costs in quality: perplexity and greedy agreement on a fixed text, teacher-forced.

    python -m benchmarks.quantization [--model smollm2-135m] [--text FILE] [--json]

The reference is the same model in float32 on the native backend.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from engine.config import EngineConfig
from engine.frontend.tokenizer import load_tokenizer
from engine.kernels.cpu.backend import CpuBackend
from engine.models.backend import ForwardBatch
from engine.models.loader import load_model

BLOCK_SIZE = 16
WINDOW = 512
VARIANTS = (("float32", "none"), ("bfloat16", "none"), ("float32", "int8"), ("bfloat16", "int8"))
DEFAULT_TEXT = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"


@dataclass(frozen=True)
class Quality:
    """Of one variant over all windows of the text."""

    variant: str
    perplexity: float
    agreement: float
    """Share of positions where the most likely token is the reference's."""
    tokens: int


def whole_prompt(token_ids: torch.Tensor) -> ForwardBatch:
    """One request, all tokens at once, logits of every row."""
    length = token_ids.shape[0]
    blocks = torch.arange(1, 1 + -(-length // BLOCK_SIZE), dtype=torch.int32)
    positions = torch.arange(length)
    return ForwardBatch(
        input_ids=token_ids,
        positions=positions,
        query_start_loc=torch.tensor([0, length], dtype=torch.int32),
        seq_lens=torch.tensor([length], dtype=torch.int32),
        block_table=blocks.unsqueeze(0),
        slot_mapping=positions + BLOCK_SIZE,
        logits_indices=positions,
        max_query_len=length,
        max_seq_len=length,
    )


def evaluate(
    variant: str, backend: CpuBackend, windows: list[torch.Tensor], best: list[torch.Tensor] | None
) -> tuple[Quality, list[torch.Tensor]]:
    loss, count, agreed = 0.0, 0, 0
    choices = []
    for i, window in enumerate(windows):
        logits = backend.forward(whole_prompt(window))
        loss += F.cross_entropy(logits[:-1], window[1:], reduction="sum").item()
        choices.append(logits.argmax(-1))
        agreed += int((choices[i] == (best or choices)[i]).sum())
        count += window.shape[0]
    perplexity = float(torch.tensor(loss / (count - len(windows))).exp())
    return Quality(variant, perplexity, agreed / count, count), choices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--text", type=Path, default=DEFAULT_TEXT)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    ids = torch.tensor(load_tokenizer(EngineConfig.create(model=args.model)).encode(args.text.read_text()))
    windows = [w for w in ids.split(WINDOW) if w.shape[0] > 1][: args.windows]
    results, best = [], None
    for dtype, quantization in VARIANTS:
        loaded = load_model(EngineConfig.create(model=args.model, dtype=dtype))
        backend = CpuBackend(loaded.weights, WINDOW, BLOCK_SIZE, quantization)
        backend.allocate_kv(2 + WINDOW // BLOCK_SIZE)
        variant = dtype if quantization == "none" else f"{dtype} {quantization}"
        quality, choices = evaluate(variant, backend, windows, best)
        best = best or choices
        results.append(quality)
        if not args.json:
            print(
                f"{quality.variant:16} perplexity {quality.perplexity:8.3f}   "
                f"agreement {quality.agreement:7.2%}   {quality.tokens} tokens",
                flush=True,
            )
    if args.json:
        print(json.dumps({"model": args.model, "results": [asdict(r) for r in results]}))


if __name__ == "__main__":
    main()
