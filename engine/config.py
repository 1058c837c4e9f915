"""The engine's configuration: one frozen model, names as in vLLM. Each field's doc feeds ``serve --help``.

No field is accepted and ignored: a field is here only when the engine honours it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from engine.errors import InvalidInputError


def _sizes(value: Any) -> Any:
    """``"1,2,4"`` as on the command line, or a list."""
    if not isinstance(value, str):
        return value
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise ValueError("batch sizes with commas between them, as 1,2,4") from None


class EngineConfig(BaseModel):
    """Everything that decides what the engine does. Echoed, as in force, by ``GET /server_info``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # model
    model: str = Field(
        "smollm2-135m",
        description=("Name of an embedded model, a local folder (safetensors), a .gguf file, or a hub id."),
    )
    served_model_name: str | None = Field(None, description="Name in the API; default: the model's.")
    tokenizer: str | None = Field(
        None, description="Folder or hub id of the tokenizer; default: the model's own."
    )
    load_format: Literal["auto", "dummy"] = Field(
        "auto", description="auto: read the weights; dummy: random weights from the config."
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description=(
            "Weights and KV cache; auto: bfloat16 on a GPU or where the CPU has AVX512-BF16, else float32. "
            "float16: triton and reference backends."
        ),
    )
    quantization: Literal["none", "int8"] = Field("none", description="int8: weight-only, CPU backend.")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where the model runs; auto: a CUDA device if there is one."
    )
    tensor_parallel_size: int = Field(
        1,
        ge=1,
        le=64,
        description="Processes, each with its part of every layer's weights and of the KV cache.",
    )
    max_model_len: int | None = Field(
        None, ge=2, description="Prompt plus output tokens of one request; default: the model's own limit."
    )
    seed: int = Field(
        0, description="Base of the seeds of requests that bring none (they differ from each other)."
    )

    # scheduler
    max_num_batched_tokens: int = Field(
        2048, ge=1, description="Token budget of one step (the sweep's factor chunk_size)."
    )
    max_num_seqs: int = Field(128, ge=1, description="Requests that run at the same time.")
    enable_chunked_prefill: bool = Field(True, description="Let a prompt be computed over several steps.")
    long_prefill_token_threshold: int = Field(
        0, ge=0, description="Most prompt tokens of one request in one step; 0: no cap."
    )
    max_num_partial_prefills: int | None = Field(
        None,
        ge=1,
        description=(
            "Requests that may be in the middle of their prefill at the same time; default: no cap."
        ),
    )
    scheduling_policy: Literal["fcfs", "priority"] = Field(
        "fcfs", description="Order of admission and of preemption."
    )
    scheduler_reserve_full_isl: bool = Field(
        True, description="Admit a request only when its whole prompt fits in free KV blocks."
    )
    watermark: float = Field(
        0.0, ge=0.0, lt=1.0, description="Share of KV blocks that admission leaves free."
    )
    async_scheduling: bool = Field(False, description="Plan the next step while the current one runs.")
    max_waiting_requests: int | None = Field(
        None, ge=1, description="Queue limit: more waiting requests than this are refused with 429."
    )

    # KV cache
    block_size: int = Field(16, ge=1, le=256, description="Tokens in one KV block.")
    kv_cache_dtype: Literal["auto", "fp8"] = Field(
        "auto", description="auto: dtype; fp8: e4m3, half the bytes of bfloat16 (triton backend)."
    )
    enable_prefix_caching: bool = Field(True, description="Reuse KV blocks of equal prefixes.")
    num_gpu_blocks_override: int | None = Field(
        None, ge=2, description="Number of KV blocks (the name is vLLM's; it counts on the CPU too)."
    )
    kv_cache_memory_bytes: int | None = Field(
        None,
        ge=1,
        description=(
            "Bytes for the KV cache; default: 1 GiB on the CPU, never over half of the free memory."
        ),
    )
    gpu_memory_utilization: float = Field(
        0.92, gt=0.0, le=1.0, description="Share of a GPU's memory for weights, activations and KV cache."
    )
    kv_cache_metrics: bool = Field(
        False, description="Follow a sample of the KV blocks: vllm:kv_block_* at /metrics."
    )
    kv_cache_metrics_sample: float = Field(
        0.01, gt=0.0, le=1.0, description="Share of the KV blocks that kv_cache_metrics follows."
    )

    # execution
    attention_backend: Literal["auto", "reference", "cpu", "triton"] = Field(
        "auto",
        description=(
            "reference: torch, the oracle; cpu: native kernels; triton: GPU kernels (auto: on a GPU)."
        ),
    )
    num_threads: int | None = Field(
        None, ge=1, le=1024, description="Compute threads; default: the physical cores this process may use."
    )
    enforce_eager: bool = Field(
        False, description="Launch every kernel of a decode step singly: no CUDA graphs."
    )
    cudagraph_capture_sizes: Annotated[tuple[int, ...] | None, BeforeValidator(_sizes)] = Field(
        None,
        description=(
            "Batch sizes (1,2,4 …) that decode steps are padded to and captured at, as CUDA graphs."
        ),
    )
    torch_compile: bool = Field(False, description="Compile the forward with torch.compile (CUDA).")
    nvtx_ranges: bool = Field(
        False, description="Mark the phases of a step for Nsight Systems and torch.profiler (CUDA)."
    )
    check_invariants: bool = Field(
        False,
        description=(
            "Check every scheduler and KV invariant after every step (slow; they are always checked "
            "when idle)."
        ),
    )

    # front end
    stream_interval: int = Field(
        1, ge=1, description="Tokens gathered before a streamed event is sent (the first goes out at once)."
    )
    max_logprobs: int = Field(
        20, ge=-1, description="Most logprobs a request may ask for; -1: the whole vocabulary."
    )

    # trace
    trace_dir: str | None = Field(
        None, description="Write the step trace and request events into this folder."
    )

    @model_validator(mode="after")
    def _consistent(self) -> EngineConfig:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise InvalidInputError(
                "max_num_batched_tokens",
                self.max_num_batched_tokens,
                f"at least max_num_seqs ({self.max_num_seqs}): every running request needs one token a step",
            )
        if (
            not self.enable_chunked_prefill
            and self.max_model_len
            and self.max_num_batched_tokens < self.max_model_len
        ):
            raise InvalidInputError(
                "max_num_batched_tokens",
                self.max_num_batched_tokens,
                f"at least max_model_len ({self.max_model_len}) when enable_chunked_prefill is off",
            )
        return self

    @model_validator(mode="after")
    def _capture_sizes_fit(self) -> EngineConfig:
        sizes = self.cudagraph_capture_sizes
        if sizes is not None and (not sizes or min(sizes) < 1 or max(sizes) > self.max_num_seqs):
            raise InvalidInputError(
                "cudagraph_capture_sizes",
                list(sizes),
                f"1 to max_num_seqs ({self.max_num_seqs}), at least one",
            )
        return self

    @classmethod
    def create(cls, **fields: Any) -> EngineConfig:
        """Validate ``fields``; raise :class:`InvalidInputError` naming the first bad one."""
        try:
            return cls(**fields)
        except ValidationError as error:
            first = error.errors()[0]
            inner = first.get("ctx", {}).get("error")
            if isinstance(
                inner, InvalidInputError
            ):  # two fields that do not go together: already one clear line
                raise inner from None
            name = ".".join(str(part) for part in first["loc"]) or "config"
            raise InvalidInputError(
                name, first.get("input"), first["msg"].removeprefix("Value error, ")
            ) from None
