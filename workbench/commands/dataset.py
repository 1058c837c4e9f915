"""Flags that shape the traffic beyond random tokens at one rate, and the workload that they describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field

from engine.errors import InvalidInputError
from workloads import WorkloadSpec, load_workload

TRACES = ("mooncake", "azure", "burstgpt")
FILES = (*TRACES, "sharegpt", "custom")
ALIASES = {"prefix_repetition": "prefix-repetition", "mixed": "chat-and-documents"}


class TrafficFlags(BaseModel):
    """Names follow ``vllm bench serve`` where it has them."""

    dataset_path: str | None = Field(
        None, description=f"File of --dataset-name {', '.join(FILES)} or sonnet."
    )
    tokenizer_path: str | None = Field(
        None,
        description="tokenizer.json (or its folder) that counts the tokens of texts; default: an estimate.",
    )
    sharegpt_output_len: int | None = Field(None, description="Instead of the recorded replies' lengths.")
    custom_output_len: int | None = Field(None, description="Of lines that name none (default 256).")
    sonnet_input_len: int | None = Field(None, description="Default 550.")
    sonnet_output_len: int | None = Field(None, description="Default 150.")
    sonnet_prefix_len: int | None = Field(None, description="Shared by all prompts (default 200).")
    prefix_repetition_prefix_len: int | None = Field(None, description="Default 256.")
    prefix_repetition_suffix_len: int | None = Field(None, description="Default 256.")
    prefix_repetition_num_prefixes: int | None = Field(None, description="Default 10.")
    prefix_repetition_output_len: int | None = Field(None, description="Default 128.")
    think_time: float | None = Field(
        None, description="Mean seconds between turns (--dataset-name sessions)."
    )
    num_turns: int | None = Field(None, description="Turns of every session (--dataset-name sessions).")
    trace_speed: float | None = Field(None, description="2 plays a trace twice as fast.")
    trace_spread: Literal["none", "uniform"] | None = Field(
        None, description="uniform: rows of one coarse time stamp are spread over its grid (default none)."
    )
    trace_start: float | None = Field(None, description="Begin so many seconds into the trace.")
    trace_end: float | None = Field(None, description="End so many seconds into it.")
    trace_model: str | None = Field(None, description="BurstGPT: only rows of this model.")
    trace_log_type: str | None = Field(None, description="BurstGPT: only rows of this kind.")
    min_input_len: int | None = Field(None, description="Leave out trace rows with fewer prompt tokens.")
    max_input_len: int | None = Field(None, description="Most prompt tokens of a row, see --length-policy.")
    max_output_len: int | None = Field(None, description="Most output tokens of a row, see --length-policy.")
    length_policy: Literal["drop", "truncate", "scale"] | None = Field(
        None, description="What happens to rows over a maximum (default drop); the result says to how many."
    )
    stages: str | None = Field(
        None, description="Rates by time, RATE:SECONDS or FROM-TO:SECONDS (a ramp): '1:30,1-20:60'."
    )
    ramp_up_strategy: Literal["linear", "exponential"] | None = Field(
        None, description="Ramp from --ramp-up-start-rps to --ramp-up-end-rps by elapsed time."
    )
    ramp_up_start_rps: float | None = Field(None, description="Requests per second.")
    ramp_up_end_rps: float | None = Field(None, description="Requests per second; goes on after the ramp.")
    ramp_up_seconds: float | None = Field(
        None, description="Length of the ramp (default: --duration, else 60)."
    )


class ClientFlags(BaseModel):
    """How the client behaves."""

    workers: int | None = Field(
        None, description="Processes that send; default: one, more above 2000 requests/s or 1000 streams."
    )
    request_cancellation_rate: float | None = Field(None, description="Share of requests to hang up on.")
    request_cancellation_delay: float | None = Field(None, description="Seconds after sending (default 1).")
    retries: int | None = Field(
        None, description="Further tries after 429, 5xx or no connection (default 0)."
    )


def dataset(name: str, flags: Mapping[str, Any]) -> WorkloadSpec | None:
    """The workload of ``--dataset-name name`` with its flags; None when it is a plain preset.

    Raises:
        InvalidInputError, WorkloadError: naming the first bad flag.
    """
    left = {k: v for k, v in flags.items() if k not in _ARRIVAL_FLAGS and k != "tokenizer_path"}
    path = left.pop("dataset_path", None)
    if name in FILES and path is None:
        raise InvalidInputError("dataset-path", None, f"the file of --dataset-name {name}")
    if name in TRACES:
        spec = _trace(name, path, left)
    elif name == "sharegpt":
        fixed = left.pop("sharegpt_output_len", None)
        spec = _of(name, {"kind": "sharegpt", "path": path, **_given(output_tokens=fixed)}, "burst")
    elif name == "custom":
        fixed = left.pop("custom_output_len", None)
        spec = _of(name, {"kind": "jsonl", "path": path, **_given(output_tokens=fixed)}, "burst", 10_000_000)
    elif name == "sonnet":
        source = _source_of("sonnet") | _given(
            path=path,
            input_tokens=left.pop("sonnet_input_len", None),
            output_tokens=left.pop("sonnet_output_len", None),
            prefix_tokens=left.pop("sonnet_prefix_len", None),
        )
        spec = _of(name, source, "burst")
    elif name == "sessions":
        base = load_workload("sessions").model_dump()
        base["source"] |= _given(think_s=left.pop("think_time", None), turns=left.pop("num_turns", None))
        spec = WorkloadSpec.create(base)
    elif ALIASES.get(name) == "prefix-repetition":
        spec = _prefix_repetition(left)
    else:
        _nothing_left(name, left | _given(dataset_path=path))
        return None
    _nothing_left(name, left)
    return spec


def arrivals_of(flags: Mapping[str, Any], duration_s: float | None) -> list[dict[str, Any]] | None:
    """Stages of ``--stages`` or ``--ramp-up-*``; None without them."""
    text, strategy = flags.get("stages"), flags.get("ramp_up_strategy")
    ramp = {name: flags.get(f"ramp_up_{name}") for name in ("start_rps", "end_rps", "seconds")}
    if strategy is None:
        for name, value in ramp.items():
            if value is not None:
                raise InvalidInputError(
                    f"ramp-up-{name.replace('_', '-')}", value, "only with --ramp-up-strategy"
                )
        return None if text is None else _stages(text)
    if text is not None:
        raise InvalidInputError("stages", text, "nothing beside --ramp-up-strategy: both are the rate")
    for name in ("start_rps", "end_rps"):
        if ramp[name] is None:
            raise InvalidInputError(f"ramp-up-{name.replace('_', '-')}", None, "requests per second")
    return [
        {
            "rate": ramp["start_rps"],
            "end_rate": ramp["end_rps"],
            "seconds": ramp["seconds"] or duration_s or 60.0,
            "shape": strategy,
        }
    ]


_ARRIVAL_FLAGS = ("stages", "ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps", "ramp_up_seconds")


def _stages(text: str) -> list[dict[str, Any]]:
    stages: list[dict[str, Any]] = []
    for part in text.split(","):
        rates, _, seconds = part.strip().partition(":")
        start, ramp, end = rates.partition("-")
        try:
            stage: dict[str, Any] = {"rate": float(start), "seconds": float(seconds)}
            if ramp:
                stage["end_rate"] = float(end)
        except ValueError:
            raise InvalidInputError(
                "stages", part, "RATE:SECONDS or FROM-TO:SECONDS, e.g. '1:30,1-20:60'"
            ) from None
        stages.append(stage)
    return stages


def _trace(name: str, path: str, left: dict[str, Any]) -> WorkloadSpec:
    names = {
        "trace_speed": "speed",
        "trace_spread": "spread",
        "trace_start": "start_s",
        "trace_end": "end_s",
        "trace_model": "model",
        "trace_log_type": "log_type",
        "min_input_len": "min_input_tokens",
        "max_input_len": "max_input_tokens",
        "max_output_len": "max_output_tokens",
        "length_policy": "length_policy",
    }
    settings = {field: left.pop(flag) for flag, field in names.items() if flag in left}
    return _of(name, {"kind": "trace", "format": name, "path": path, **settings}, "trace")


def _prefix_repetition(left: dict[str, Any]) -> WorkloadSpec:
    flag = "prefix_repetition_"
    prefix = left.pop(f"{flag}prefix_len", 256)
    suffix = left.pop(f"{flag}suffix_len", 256)
    base = load_workload("prefix-repetition").model_dump()
    base["classes"] = [
        {
            "name": "repetition",
            "input_tokens": prefix + suffix,
            "prefix_tokens": prefix,
            "num_prefixes": left.pop(f"{flag}num_prefixes", 10),
            "output_tokens": left.pop(f"{flag}output_len", 128),
        }
    ]
    return WorkloadSpec.create(base)


def _of(name: str, source: dict[str, Any], arrivals: str, num_requests: int = 100) -> WorkloadSpec:
    return WorkloadSpec.create(
        {"name": name, "source": source, "arrivals": {"kind": arrivals}, "num_requests": num_requests}
    )


def _source_of(preset: str) -> dict[str, Any]:
    source: dict[str, Any] = load_workload(preset).model_dump()["source"]
    return source


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _nothing_left(name: str, left: Mapping[str, Any]) -> None:
    for flag, value in left.items():
        if value is not None:
            raise InvalidInputError(flag.replace("_", "-"), value, f"left out with the traffic {name}")
