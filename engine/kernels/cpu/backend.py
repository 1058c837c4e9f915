"""The native CPU backend: a whole forward is one call into C++ (see model.h)."""

from __future__ import annotations

import ctypes
import math
import weakref

import torch

from engine.errors import InvalidInputError
from engine.kernels.cpu.build import InstructionSet
from engine.kernels.cpu.library import ISA_NAMES, STAGE_NAMES, Batch, ModelSpec, check, load_library, pointer
from engine.kernels.threads import usable_physical_cores
from engine.models.backend import ForwardBatch
from engine.models.rope import rope_cos_sin
from engine.models.weights import ModelWeights

_QKV, _O, _GATE_UP, _DOWN, _LM_HEAD = range(5)
_INPUT_NORM, _POST_NORM, _Q_NORM, _K_NORM, _FINAL_NORM = range(5)
_STAGES_PER_LAYER = 10
_DTYPES = (torch.float32, torch.bfloat16)


class CpuBackend:
    """A :class:`engine.models.backend.ModelBackend` on native kernels.

    Matrices multiply in the weights' dtype with float32 accumulation; the residual stream, norms, rotation
    and softmax are float32. A row's logits are the same bits whatever shares its batch and however its
    prompt was cut into chunks: every sum runs in an order that depends on the row alone.

    Args:
        weights: float32 or bfloat16. Matrices are packed into an own copy; only the embedding is kept.
        max_model_len: positions that the rope table covers.
        block_size: tokens of one KV block; multiples of 16 waste no memory.
        quantization: ``none``, or ``int8``: symmetric, one scale per output row of every matrix (the
            embedding is not quantised, the head is).
        num_threads: None: the physical cores this process may use.
        max_num_tokens: of one forward that the buffers have room for from the start; larger ones make them
            grow.
        isa: instruction set to build for; None: ``WORKBENCH_CPU_ISA``, or all that the CPU has.

    Raises:
        KernelBuildError: there is no compiler, or it failed.
        InvalidInputError: a dtype, head size or quantization that the kernels do not have.
    """

    name = "cpu"

    def __init__(
        self,
        weights: ModelWeights,
        max_model_len: int,
        block_size: int,
        quantization: str = "none",
        num_threads: int | None = None,
        max_num_tokens: int = 0,
        *,
        isa: InstructionSet | None = None,
    ) -> None:
        config = weights.config
        self.dtype = weights.embed.dtype
        if self.dtype not in _DTYPES:
            raise InvalidInputError(
                "dtype",
                str(self.dtype).removeprefix("torch."),
                "float32 or bfloat16 with the native CPU kernels; attention_backend='reference' has float16",
            )
        if quantization not in ("none", "int8"):
            raise InvalidInputError("quantization", quantization, "none or int8")
        if config.head_size % 2:
            raise InvalidInputError("head_size", config.head_size, "an even number")
        self.vocab_size = config.vocab_size
        self._num_layers = config.num_layers
        self.num_threads = num_threads or usable_physical_cores()
        self._lib = load_library(isa)
        self.instruction_set = ISA_NAMES[self._lib.wb_isa()]
        self._embed = weights.embed.contiguous()
        cos, sin = rope_cos_sin(config, max_model_len)
        spec = ModelSpec(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            block_size=block_size,
            max_model_len=max_model_len,
            int8=quantization == "int8",
            bf16=self.dtype == torch.bfloat16,
            num_threads=self.num_threads,
            max_num_tokens=max_num_tokens,
            rms_norm_eps=config.rms_norm_eps,
            attention_scale=1.0 / math.sqrt(config.head_size),
        )
        self._model = self._lib.wb_model_create(
            ctypes.byref(spec),
            pointer(cos.contiguous(), torch.float32),
            pointer(sin.contiguous(), torch.float32),
            pointer(self._embed, self.dtype),
        )
        if not self._model:
            raise MemoryError("native kernels: out of memory")
        weakref.finalize(self, self._lib.wb_model_free, self._model)
        self._pack(weights)

    def _pack(self, weights: ModelWeights) -> None:
        for index, layer in enumerate(weights.layers):
            self._set_linear(index, _QKV, layer.qkv, layer.qkv_bias)
            self._set_linear(index, _O, layer.o)
            self._set_linear(index, _GATE_UP, layer.gate_up)
            self._set_linear(index, _DOWN, layer.down)
            self._set_norm(index, _INPUT_NORM, layer.input_norm)
            self._set_norm(index, _POST_NORM, layer.post_norm)
            if layer.q_norm is not None and layer.k_norm is not None:
                self._set_norm(index, _Q_NORM, layer.q_norm)
                self._set_norm(index, _K_NORM, layer.k_norm)
        self._set_norm(0, _FINAL_NORM, weights.final_norm)
        self._set_linear(0, _LM_HEAD, weights.lm_head)

    def _set_linear(
        self, layer: int, kind: int, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> None:
        weight = weight.to(self.dtype).contiguous()
        bias = None if bias is None else bias.to(self.dtype).contiguous()
        check(
            self._lib.wb_model_set_linear(
                self._model, layer, kind, pointer(weight, self.dtype), pointer(bias, self.dtype)
            )
        )

    def _set_norm(self, layer: int, kind: int, weight: torch.Tensor) -> None:
        weight = weight.float().contiguous()
        check(self._lib.wb_model_set_norm(self._model, layer, kind, pointer(weight, torch.float32)))

    def kv_bytes_per_block(self) -> int:
        return int(self._lib.wb_model_kv_bytes_per_block(self._model))

    def allocate_kv(self, num_blocks: int) -> None:
        check(self._lib.wb_model_allocate_kv(self._model, num_blocks))

    def fill_kv(self, value: float) -> None:
        """Overwrite the whole cache, null block included (tests fill it with NaN)."""
        self._lib.wb_model_fill_kv(self._model, value)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """As :meth:`engine.models.backend.ModelBackend.forward`.

        Raises ValueError when an index is out of range; nothing has been written then.
        """
        num_logits = batch.logits_indices.shape[0]
        logits = torch.empty((num_logits, self.vocab_size), dtype=torch.float32)
        native = Batch(
            pointer(batch.input_ids, torch.int64),
            pointer(batch.positions, torch.int64),
            pointer(batch.query_start_loc, torch.int32),
            pointer(batch.seq_lens, torch.int32),
            pointer(batch.block_table, torch.int32),
            pointer(batch.slot_mapping, torch.int64),
            pointer(batch.logits_indices, torch.int64),
            batch.input_ids.shape[0],
            batch.seq_lens.shape[0],
            batch.block_table.shape[1],
            num_logits,
            logits.data_ptr(),
        )
        check(self._lib.wb_model_forward(self._model, ctypes.byref(native)))
        return logits

    def time_stages(self) -> None:
        """From now on keep the times of every forward's stages (two readings of the clock each)."""
        self._lib.wb_model_time_stages(self._model)

    def stage_times(self) -> list[tuple[str, int, int]]:
        """The last forward's stages in order: name, end (ns, monotonic clock), time that threads waited for
        that end (ns, summed over threads). Empty before :meth:`time_stages`."""
        size = _STAGES_PER_LAYER * (self._num_layers + 1)
        kinds, ended, waited = (ctypes.c_int32 * size)(), (ctypes.c_int64 * size)(), (ctypes.c_int64 * size)()
        used = self._lib.wb_model_stage_times(self._model, size, kinds, ended, waited)
        return [(STAGE_NAMES[kinds[i]], ended[i], waited[i]) for i in range(used)]
