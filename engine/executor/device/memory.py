"""How much of a device's memory is left for the KV cache: measured by running the largest step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.executor.device.executor import DeviceSettings
from engine.executor.device.runtime import DeviceRuntime
from engine.executor.device.sampler import sample_on_device
from engine.executor.kv_sizing import Room
from engine.models.backend import ForwardBatch, ModelBackend


def device_room(
    runtime: DeviceRuntime, backend: ModelBackend, settings: DeviceSettings, utilization: float
) -> Room:
    """What ``utilization`` of the device's memory leaves for the KV cache.

    Taken off: what others hold (other processes, the CUDA context, NCCL's buffers), weights with the peak of
    a step of ``max_num_batched_tokens`` tokens, and once more the peak of the largest decode step where
    graphs are captured, whose memory is their own. The steps run on the null block alone.
    """
    backend.allocate_kv(1)
    weights = _peak(runtime, backend, settings, [])
    step = _peak(runtime, backend, settings, _even_lengths(settings))
    captured = max(settings.capture_sizes, default=0)
    graph = _peak(runtime, backend, settings, [1] * captured) - weights if captured else 0
    now = runtime.memory()
    others = now.total - now.free - now.reserved
    left = int(now.total * utilization) - others - step - max(graph, 0)
    available = now.total - others - step - max(graph, 0)
    return Room(max(left, 0), max(available, 0), "gpu_memory_utilization", utilization)


def _even_lengths(settings: DeviceSettings) -> list[int]:
    """``max_num_batched_tokens`` tokens over as many requests as there may be."""
    tokens = min(settings.max_num_batched_tokens, settings.max_num_seqs * settings.max_model_len)
    requests = min(settings.max_num_seqs, tokens)
    return [tokens // requests + (i < tokens % requests) for i in range(requests)]


@torch.inference_mode()
def _peak(
    runtime: DeviceRuntime, backend: ModelBackend, settings: DeviceSettings, lengths: Sequence[int]
) -> int:
    """Most bytes that tensors take while prompts of ``lengths`` are computed and sampled."""
    runtime.reset_peak()
    if lengths:
        logits = backend.forward(_prompts(runtime.device, lengths, settings.block_size))
        rows = logits.shape[0]
        ones = torch.ones(rows, dtype=torch.float32, device=runtime.device)
        inputs = {
            "noise": ones.double() / 2,
            "temperature": ones,
            "top_k": ones.int(),
            "top_p": ones / 2,
            "min_p": ones / 2,
            "greedy": ones.to(torch.uint8),
        }
        sample_on_device(logits, inputs, all_greedy=False, any_cut=True)
    return runtime.memory().peak


def _prompts(device: torch.device, lengths: Sequence[int], block_size: int) -> ForwardBatch:
    """Prompts whose every block is the null block."""
    size = torch.tensor(lengths, dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in lengths])
    ends = size.cumsum(0)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), ends]).to(torch.int32)
    return ForwardBatch(
        input_ids=torch.zeros_like(positions).to(device),
        positions=positions.to(device),
        query_start_loc=starts.to(device),
        seq_lens=size.to(device),
        block_table=torch.zeros(
            len(lengths), -(-max(lengths) // block_size), dtype=torch.int32, device=device
        ),
        slot_mapping=(positions % block_size).to(device),
        logits_indices=(ends - 1).to(device),
        max_query_len=max(lengths),
        max_seq_len=max(lengths),
    )
