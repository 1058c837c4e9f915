"""Binds the native library: C structures and signatures, and tensors passed as raw pointers."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, Structure, c_float, c_int, c_int32, c_int64, c_void_p

import torch

from engine.kernels.cpu.build import InstructionSet, build_library

STAGE_NAMES = (
    "embed", "norm", "qkv", "rope", "attention", "merge", "keep rows", "o", "gate_up", "down", "head",
)  # fmt: skip
"""``StageKind`` of model.h."""
ISA_NAMES = {4: "amx_bf16", 3: "avx512_bf16", 2: "avx512", 1: "avx2", 0: "portable"}


class ModelSpec(Structure):
    """``WbModelSpec`` of model.h."""

    _fields_ = (
        ("vocab_size", c_int32),
        ("hidden_size", c_int32),
        ("intermediate_size", c_int32),
        ("num_layers", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_size", c_int32),
        ("block_size", c_int32),
        ("max_model_len", c_int32),
        ("int8", c_int32),
        ("bf16", c_int32),
        ("num_threads", c_int32),
        ("max_num_tokens", c_int32),
        ("rms_norm_eps", c_float),
        ("attention_scale", c_float),
    )


class Batch(Structure):
    """``WbBatch`` of model.h."""

    _fields_ = (
        ("input_ids", c_void_p),
        ("positions", c_void_p),
        ("query_start_loc", c_void_p),
        ("seq_lens", c_void_p),
        ("block_table", c_void_p),
        ("slot_mapping", c_void_p),
        ("logits_indices", c_void_p),
        ("num_tokens", c_int32),
        ("num_requests", c_int32),
        ("max_blocks", c_int32),
        ("num_logits", c_int32),
        ("logits", c_void_p),
    )


_STATUS = {
    1: "out of memory",
    2: "a token id is outside the vocabulary",
    3: "a position is outside max_model_len",
    4: "a slot is outside the KV cache",
    5: "query_start_loc, seq_lens and block_table disagree",
    6: "a block id is outside the KV cache",
    7: "a logits index is outside the batch",
    8: "allocate_kv was not called",
}


def check(status: int) -> None:
    """Raise for a status other than 0: MemoryError, else ValueError."""
    if status == 0:
        return
    message = f"native kernels: {_STATUS.get(status, f'status {status}')}"
    raise MemoryError(message) if status == 1 else ValueError(message)


def pointer(tensor: torch.Tensor | None, dtype: torch.dtype) -> int | None:
    """Address of a contiguous CPU tensor of exactly this dtype. The caller keeps the tensor alive."""
    if tensor is None:
        return None
    if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError(
            f"native kernels: wanted a contiguous CPU tensor of {dtype}, "
            f"got {tensor.dtype} on {tensor.device}"
        )
    return tensor.data_ptr()


@functools.cache
def load_library(isa: InstructionSet | None = None) -> ctypes.CDLL:
    """Build when needed, load, declare. Raises ``KernelBuildError`` or ``OSError``."""
    lib = ctypes.CDLL(str(build_library(isa)))
    lib.wb_isa.restype = c_int
    lib.wb_model_create.restype = c_void_p
    lib.wb_model_create.argtypes = [POINTER(ModelSpec), c_void_p, c_void_p, c_void_p]
    lib.wb_model_free.restype = None
    lib.wb_model_free.argtypes = [c_void_p]
    lib.wb_model_set_linear.argtypes = [c_void_p, c_int, c_int, c_void_p, c_void_p]
    lib.wb_model_set_norm.argtypes = [c_void_p, c_int, c_int, c_void_p]
    lib.wb_model_kv_bytes_per_block.restype = c_int64
    lib.wb_model_kv_bytes_per_block.argtypes = [c_void_p]
    lib.wb_model_allocate_kv.argtypes = [c_void_p, c_int]
    lib.wb_model_fill_kv.restype = None
    lib.wb_model_fill_kv.argtypes = [c_void_p, c_float]
    lib.wb_model_forward.argtypes = [c_void_p, POINTER(Batch)]
    lib.wb_model_time_stages.restype = None
    lib.wb_model_time_stages.argtypes = [c_void_p]
    lib.wb_model_stage_times.argtypes = [c_void_p, c_int, *[c_void_p] * 3]
    lib.wb_linear_create.restype = c_void_p
    lib.wb_linear_create.argtypes = [c_int, c_void_p, c_void_p, *[c_int] * 5]
    lib.wb_linear_free.restype = None
    lib.wb_linear_free.argtypes = [c_void_p]
    lib.wb_linear_run.argtypes = [c_void_p, c_void_p, c_int, c_void_p]
    lib.wb_attention_create.restype = c_void_p
    lib.wb_attention_create.argtypes = [c_int] * 8
    lib.wb_attention_free.restype = None
    lib.wb_attention_free.argtypes = [c_void_p]
    lib.wb_attention_fill.restype = None
    lib.wb_attention_fill.argtypes = [c_void_p, c_float]
    lib.wb_attention_write.restype = None
    lib.wb_attention_write.argtypes = [c_void_p, c_int, c_int, c_void_p, c_void_p, c_void_p]
    lib.wb_attention_run.argtypes = [c_void_p, *[c_int] * 4, *[c_void_p] * 5]
    lib.wb_rms_norm.restype = None
    lib.wb_rms_norm.argtypes = [c_int, c_void_p, c_void_p, c_int, c_int, c_float, c_void_p]
    lib.wb_rotate.restype = None
    lib.wb_rotate.argtypes = [c_void_p, c_int, c_int, *[c_void_p] * 4, c_float]
    return lib
