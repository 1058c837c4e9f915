"""A dense decoder on Triton kernels: everything but the matrix products, which are the vendor library's."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.errors import InvalidInputError
from engine.kernels.triton.activation import silu_and_mul
from engine.kernels.triton.decode import DecodeWorkspace, decode_attention
from engine.kernels.triton.launch import MAX_SPLITS, decode_splits, min_split_tokens
from engine.kernels.triton.norm import rms_norm
from engine.kernels.triton.platform import current_platform, interpreted
from engine.kernels.triton.prefill import prefill_attention
from engine.kernels.triton.rope import rope_and_cache
from engine.models.backend import ForwardBatch
from engine.models.rope import rope_cos_sin
from engine.models.weights import LayerWeights, ModelWeights
from engine.parallel.group import SOLO, RankGroup
from engine.parallel.layers import embed, head, row_parallel

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MAX_HEAD_SIZE = 256


class TritonBackend:
    """A :class:`engine.models.backend.ModelBackend` on a CUDA device, or in Triton's interpreter.

    KV cache per layer: K and V ``[num_blocks, g, block_size, D]`` in the weights' dtype, or uint8 holding
    e4m3fn bits of value / scale. ``forward`` only launches: no host synchronisation, no copy between host and
    device; on the host it reads tensor shapes, ``max_query_len`` and ``max_seq_len``. So with static inputs
    it can be captured in a CUDA graph: padding rows have ``seq_lens`` 0 and slots of -1.

    Rows with one query token go to the split-KV decode kernel, the others to the prefill kernel.

    Args:
        weights: float32, bfloat16 or float16; moved to ``device`` when they lie elsewhere.
        max_model_len: positions that the rope table covers.
        block_size: tokens of one KV block.
        device: a CUDA device; ``cpu`` only with ``TRITON_INTERPRET=1``.
        kv_cache_dtype: ``auto`` (the weights' dtype) or ``fp8`` (e4m3fn).
        max_num_seqs: rows that the split-KV workspace has room for.
        sliding_window: tokens that a query sees, itself included; None: all.
        group: ranks that share the model; ``weights`` are this rank's part.

    Raises:
        InvalidInputError: a dtype, head size or device that the kernels do not have.
    """

    name = "triton"

    def __init__(
        self,
        weights: ModelWeights,
        max_model_len: int,
        block_size: int,
        *,
        device: torch.device | str = "cuda",
        kv_cache_dtype: str = "auto",
        max_num_seqs: int = 128,
        sliding_window: int | None = None,
        group: RankGroup = SOLO,
    ) -> None:
        config = weights.config
        self.device = _usable_device(torch.device(device))
        self.dtype = weights.embed.dtype
        if self.dtype not in _DTYPES:
            raise InvalidInputError(
                "dtype",
                str(self.dtype).removeprefix("torch."),
                "float32, bfloat16 or float16 with the triton backend",
            )
        if config.head_size % 2 or config.head_size > _MAX_HEAD_SIZE:
            raise InvalidInputError("head_size", config.head_size, f"an even number up to {_MAX_HEAD_SIZE}")
        if kv_cache_dtype not in ("auto", "fp8"):
            raise InvalidInputError("kv_cache_dtype", kv_cache_dtype, "auto or fp8")
        self.vocab_size = config.vocab_size
        self._config = config
        self._weights = weights.to(self.device)
        self._block_size = block_size
        self._max_num_seqs = max_num_seqs
        self._window = sliding_window or 0
        self._group = group
        self._cache_dtype = torch.uint8 if kv_cache_dtype == "fp8" else self.dtype
        cos, sin = rope_cos_sin(config, max_model_len)
        self._cos, self._sin = cos.to(self.device), sin.to(self.device)
        self._platform = current_platform()
        self._workspace = self._allocate_workspace()
        shape = (config.num_layers, config.num_kv_heads)
        self.k_scales = torch.ones(shape, dtype=torch.float32, device=self.device)
        self.v_scales = torch.ones(shape, dtype=torch.float32, device=self.device)
        self.key_caches: list[torch.Tensor] = []
        self.value_caches: list[torch.Tensor] = []

    def _allocate_workspace(self) -> DecodeWorkspace:
        config = self._config
        splits = (self._splits(rows, MAX_SPLITS << 20) * rows for rows in range(1, self._max_num_seqs + 1))
        return DecodeWorkspace.allocate(max(splits), config.num_heads, config.head_size, 1, self.device)

    def _splits(self, rows: int, max_seq_len: int) -> int:
        platform, kv_heads = self._platform, self._config.num_kv_heads
        return decode_splits(platform.num_sms, rows, kv_heads, max_seq_len, min_split_tokens(platform.arch))

    def kv_bytes_per_block(self) -> int:
        return self._block_size * self._config.kv_bytes_per_token(self._cache_dtype.itemsize)

    def allocate_kv(self, num_blocks: int) -> None:
        config = self._config
        shape = (num_blocks, config.num_kv_heads, self._block_size, config.head_size)

        def cache() -> torch.Tensor:
            return torch.empty(shape, dtype=self._cache_dtype, device=self.device)

        self.key_caches = [cache() for _ in range(config.num_layers)]
        self.value_caches = [cache() for _ in range(config.num_layers)]

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """As :meth:`engine.models.backend.ModelBackend.forward`; all tensors on the backend's device."""
        return self.logits(self.hidden(batch), batch.logits_indices)

    @torch.inference_mode()
    def hidden(self, batch: ForwardBatch) -> torch.Tensor:
        """Write K/V of the batch and return what goes into the last norm, [T, H]."""
        weights, eps = self._weights, self._config.rms_norm_eps
        residual = embed(batch.input_ids, weights.embed, self._group)
        normed = torch.empty_like(residual)
        update: torch.Tensor | None = None
        for index, layer in enumerate(weights.layers):
            if update is None:
                rms_norm(residual, layer.input_norm, eps, normed)
            else:
                rms_norm(update, layer.input_norm, eps, normed, residual)
            update = row_parallel(self._attention(normed, layer, index, batch), layer.o, self._group)
            rms_norm(update, layer.post_norm, eps, normed, residual)
            gate_up = F.linear(normed, layer.gate_up)
            activated = gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2))
            silu_and_mul(gate_up, activated)
            update = row_parallel(activated, layer.down, self._group)
        return residual if update is None else residual.add_(update)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor, logits_indices: torch.Tensor) -> torch.Tensor:
        """Last norm and head, only where logits are wanted: float32 [R, V]."""
        wanted = hidden[logits_indices]
        rms_norm(wanted, self._weights.final_norm, self._config.rms_norm_eps, wanted)
        return head(wanted, self._weights.lm_head, self._group, self.vocab_size)

    def _attention(
        self, x: torch.Tensor, layer: LayerWeights, index: int, batch: ForwardBatch
    ) -> torch.Tensor:
        config = self._config
        qkv = F.linear(x, layer.qkv, layer.qkv_bias)
        query = qkv[:, : config.q_size].view(-1, config.num_heads, config.head_size)
        key_cache, value_cache = self.key_caches[index], self.value_caches[index]
        k_scale, v_scale = self.k_scales[index], self.v_scales[index]
        # The whole batch's K/V is written before anyone attends, so that a block shared inside one batch is
        # complete.
        rope_and_cache(
            qkv, batch.positions, batch.slot_mapping, self._cos, self._sin, query, key_cache, value_cache,
            q_norm=layer.q_norm, k_norm=layer.k_norm, eps=config.rms_norm_eps,
            k_scale=k_scale, v_scale=v_scale,
        )  # fmt: skip
        out = torch.empty((x.shape[0], config.num_heads, config.head_size), dtype=x.dtype, device=x.device)
        inputs = (
            query,
            key_cache,
            value_cache,
            batch.block_table,
            batch.seq_lens,
            batch.query_start_loc,
            out,
        )
        scale = config.head_size**-0.5
        rows = batch.seq_lens.shape[0]
        if batch.max_query_len > 1:
            prefill_attention(
                *inputs, scale=scale, k_scale=k_scale, v_scale=v_scale,
                sliding_window=self._window, skip_decodes=True,
            )  # fmt: skip
        # Shapes tell without a look at the device whether any row can have a single query token.
        if batch.max_query_len == 1 or rows > 1:
            splits = self._splits(rows, batch.max_seq_len)
            decode_attention(
                *inputs, scale=scale, num_splits=splits, workspace=self._workspace if splits > 1 else None,
                k_scale=k_scale, v_scale=v_scale, sliding_window=self._window,
            )  # fmt: skip
        return out.flatten(1)


def _usable_device(device: torch.device) -> torch.device:
    if device.type == "cuda" and torch.cuda.is_available():
        return device
    if device.type == "cpu" and interpreted():
        return device
    raise InvalidInputError(
        "device",
        str(device),
        "a CUDA device, and one must be there, with the triton backend",
    )
