"""From the flags of ``bench`` to a :class:`BenchSpec`: pure, so that every refusal can be tested without a
server."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.errors import InvalidInputError
from workbench.benchspec import BenchSpec
from workbench.commands.dataset import ALIASES, FILES, arrivals_of, dataset
from workbench.profiling.window import ProfileWindow
from workbench.slo import parse_slo
from workloads import DEFAULT_SWEEP_PRESET, WorkloadError, WorkloadSpec, load_workload, preset_names

ENDPOINTS = {
    "completions": "completions",
    "/v1/completions": "completions",
    "chat": "chat",
    "/v1/chat/completions": "chat",
}


_FLAGS = {
    "num_requests": "num-prompts",
    "duration_s": "duration",
    "max_seconds": "max-seconds",
    "warmup_requests": "num-warmups",
    "cancellation_rate": "request-cancellation-rate",
    "cancellation_delay_s": "request-cancellation-delay",
    "ready_timeout_s": "ready-check-timeout-sec",
    "deadlines.connect_s": "connect-timeout",
    "deadlines.first_token_s": "first-token-timeout",
    "deadlines.idle_s": "idle-timeout",
    "deadlines.total_s": "request-timeout",
    "request_id_prefix": "request-id-prefix",
    "base_url": "base-url",
    "source.trace.speed": "trace-speed",
    "source.trace.start_s": "trace-start",
    "source.trace.end_s": "trace-end",
    "source.trace.min_input_tokens": "min-input-len",
    "source.trace.max_input_tokens": "max-input-len",
    "source.trace.max_output_tokens": "max-output-len",
    "source.sessions.turns.constant.value": "num-turns",
    "source.sessions.think_s": "think-time",
    "source.sharegpt.output_tokens": "sharegpt-output-len",
    "source.jsonl.output_tokens": "custom-output-len",
    "source.sonnet.input_tokens.constant.value": "sonnet-input-len",
    "source.sonnet.output_tokens.constant.value": "sonnet-output-len",
    "source.sonnet.prefix_tokens": "sonnet-prefix-len",
}
"""Field of the spec → the flag that sets it: a refusal names what was typed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFlags:
    """What the user typed; None = not given."""

    base_url: str | None = None
    model: str | None = None
    endpoint: str = "completions"
    header: Sequence[str] = ()
    api_key: str | None = None
    extra_body: str | None = None
    workload: str | None = None
    dataset_name: str | None = None
    num_prompts: int | None = None
    random_input_len: int | None = None
    random_output_len: int | None = None
    random_range_ratio: float | None = None
    random_prefix_len: int | None = None
    request_rate: str | None = None
    burstiness: float | None = None
    max_concurrency: int | None = None
    duration: float | None = None
    max_seconds: float | None = None
    reuse_content: bool = False
    num_warmups: int | None = None
    goodput: Sequence[str] = ()
    seed: int = 0
    nonce: str | None = None
    name: str = ""
    tag: Sequence[str] = ()
    request_id_prefix: str = ""
    ready_check_timeout_sec: float | None = None
    connect_timeout: float | None = None
    first_token_timeout: float | None = None
    idle_timeout: float | None = None
    request_timeout: float | None = None
    traffic: Mapping[str, Any] = field(default_factory=dict)
    """Given fields of :class:`workbench.commands.dataset.TrafficFlags`."""
    client: Mapping[str, Any] = field(default_factory=dict)
    """Given fields of :class:`workbench.commands.dataset.ClientFlags`."""
    profile: ProfileWindow | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)


def make_spec(flags: BenchFlags) -> BenchSpec:
    """The run that the flags describe.

    Raises:
        InvalidInputError, WorkloadError: naming the first bad flag.
    """
    try:
        return _spec(flags)
    except InvalidInputError as error:
        if error.field not in _FLAGS:
            raise
        raise InvalidInputError(_FLAGS[error.field], error.value, error.allowed) from None
    except WorkloadError as error:
        if error.field not in _FLAGS:
            raise
        raise WorkloadError(_FLAGS[error.field], error.value, error.allowed) from None


def _spec(flags: BenchFlags) -> BenchSpec:
    workload, rate = _load(flags, _workload(flags))
    engine = dict(flags.engine)
    if flags.base_url is None and flags.model is not None:
        engine["model"] = flags.model
    given: dict[str, Any] = {
        "nonce": flags.nonce,
        "rate": rate,
        "max_concurrency": flags.max_concurrency,
        "num_requests": flags.num_prompts,
        "duration_s": flags.duration,
        "max_seconds": flags.max_seconds,
        "warmup_requests": flags.num_warmups,
        "slo": _slo(flags.goodput),
        "ready_timeout_s": flags.ready_check_timeout_sec,
        "deadlines": _deadlines(flags),
        "profile": flags.profile,
        "tokenizer": flags.traffic.get("tokenizer_path"),
        "workers": flags.client.get("workers"),
        "retries": flags.client.get("retries"),
        "cancellation_rate": flags.client.get("request_cancellation_rate"),
        "cancellation_delay_s": flags.client.get("request_cancellation_delay"),
    }
    return BenchSpec.create(
        workload=workload,
        engine=engine,
        base_url=flags.base_url,
        model=flags.model if flags.base_url is not None else None,
        endpoint=_endpoint(flags.endpoint),
        seed=flags.seed,
        name=flags.name,
        tags=tuple(flags.tag),
        headers=_headers(flags.header),
        api_key=flags.api_key,
        extra_body=_extra_body(flags.extra_body),
        request_id_prefix=flags.request_id_prefix,
        command=tuple(_without_secrets(sys.argv)),
        **{name: value for name, value in given.items() if value is not None},
    )


def _workload(flags: BenchFlags) -> WorkloadSpec:
    shape = (
        flags.random_input_len,
        flags.random_output_len,
        flags.random_range_ratio,
        flags.random_prefix_len,
    )
    named = flags.workload or flags.dataset_name
    if flags.workload is not None and flags.dataset_name is not None:
        raise InvalidInputError(
            "dataset-name", flags.dataset_name, "nothing beside --workload: both name the traffic"
        )
    if named in (None, "random") and (named == "random" or any(v is not None for v in shape)):
        return _random(flags)
    if any(v is not None for v in shape):
        raise InvalidInputError("random-input-len", shape[0], "only with --dataset-name random")
    named = named or DEFAULT_SWEEP_PRESET
    described = dataset(named, flags.traffic)
    if described is not None:
        return described
    named = ALIASES.get(named, named)
    if flags.dataset_name is not None and named not in preset_names():
        known = sorted({*ALIASES, *FILES, *preset_names()})
        raise InvalidInputError("dataset-name", flags.dataset_name, f"one of {', '.join(known)}")
    return load_workload(named)


def _random(flags: BenchFlags) -> WorkloadSpec:
    """As ``vllm bench serve --dataset-name random``: lengths uniform in [len·(1 − ratio), len·(1 +
    ratio)]."""
    dataset("random", flags.traffic)  # refuses flags of other datasets
    ratio = flags.random_range_ratio or 0.0
    if not 0.0 <= ratio < 1.0:
        raise InvalidInputError("random-range-ratio", ratio, "at least 0, below 1")
    prefix = flags.random_prefix_len or 0
    if prefix < 0:
        raise InvalidInputError("random-prefix-len", prefix, "at least 0")
    lengths = {}
    for key, flag, value, default in (
        ("input_tokens", "random-input-len", flags.random_input_len, 1024),
        ("output_tokens", "random-output-len", flags.random_output_len, 128),
    ):
        length = default if value is None else value
        if length < 1:
            raise InvalidInputError(flag, length, "at least 1")
        low, high = max(1, math.floor(length * (1 - ratio))), math.ceil(length * (1 + ratio))
        extra = prefix if key == "input_tokens" else 0
        lengths[key] = (low + extra, high + extra) if ratio else length + extra
    base = load_workload("random").model_dump()
    base["classes"] = [{"name": "random", "prefix_tokens": prefix, **lengths}]
    return WorkloadSpec.create(base)


def _load(flags: BenchFlags, spec: WorkloadSpec) -> tuple[WorkloadSpec, float | None]:
    """Arrivals as the flags change them, and the rate."""
    arrivals = spec.arrivals.model_dump()
    rate = _rate(flags.request_rate)
    if flags.request_rate is not None:
        if rate is None:
            arrivals |= {"kind": "burst", "utilisation": None}
        elif arrivals["kind"] in ("burst", "closed", "trace"):
            arrivals["kind"] = "poisson"
        if arrivals["stages"]:
            raise InvalidInputError("request-rate", flags.request_rate, "left out: the workload has stages")
    stages = arrivals_of(flags.traffic, flags.duration)
    if stages is not None:
        if flags.request_rate is not None:
            raise InvalidInputError("request-rate", flags.request_rate, "left out: the stages are the rate")
        arrivals |= {"stages": stages, "rate": None, "utilisation": None}
        if arrivals["kind"] in ("burst", "closed", "trace"):
            arrivals["kind"] = "poisson"
    elif flags.request_rate is None and flags.max_concurrency is not None and not _timed(arrivals):
        # Concurrency without a rate is a closed loop, whatever the workload's own arrivals are.
        arrivals |= {"kind": "closed", "utilisation": None, "rate": None}
    if flags.max_concurrency is not None:
        if flags.max_concurrency < 1:
            raise InvalidInputError("max-concurrency", flags.max_concurrency, "at least 1")
        arrivals["max_concurrency"] = flags.max_concurrency
    if flags.burstiness is not None:
        if not flags.burstiness > 0:
            raise InvalidInputError("burstiness", flags.burstiness, "above 0; inf: constant gaps")
        if arrivals["kind"] not in ("poisson", "gamma", "constant"):
            raise InvalidInputError("burstiness", flags.burstiness, "only with --request-rate")
        if math.isinf(flags.burstiness):
            arrivals["kind"] = "constant"
        else:
            arrivals |= {"kind": "gamma", "burstiness": flags.burstiness}
    changed = {**spec.model_dump(), "arrivals": arrivals}
    if flags.reuse_content:
        changed["reuse_content"] = True
    return WorkloadSpec.create(changed), rate


def _timed(arrivals: Mapping[str, Any]) -> bool:
    """Do the workload's own arrivals have times that a concurrency limit only delays?"""
    return arrivals["kind"] == "trace" or bool(arrivals["stages"])


def _rate(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not rate > 0:
        raise InvalidInputError("request-rate", text, "requests per second above 0, or inf (all at once)")
    return None if math.isinf(rate) else rate


def _slo(parts: Sequence[str]) -> str | None:
    return str(parse_slo(" ".join(parts))) if parts else None


def _endpoint(text: str) -> str:
    if text not in ENDPOINTS:
        raise InvalidInputError("endpoint", text, f"one of {', '.join(ENDPOINTS)}")
    return ENDPOINTS[text]


def _headers(pairs: Sequence[str]) -> dict[str, str]:
    headers = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip() or any(c in pair for c in "\r\n"):
            raise InvalidInputError("header", pair, "NAME=VALUE")
        headers[name.strip()] = value.strip()
    return headers


def _extra_body(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        body = json.loads(text)
    except ValueError as error:
        raise InvalidInputError("extra-body", text, f"a JSON object ({error})") from None
    if not isinstance(body, dict):
        raise InvalidInputError("extra-body", text, "a JSON object")
    return body


def _deadlines(flags: BenchFlags) -> dict[str, float] | None:
    given = {
        "connect_s": flags.connect_timeout,
        "first_token_s": flags.first_token_timeout,
        "idle_s": flags.idle_timeout,
        "total_s": flags.request_timeout,
    }
    return {name: value for name, value in given.items() if value is not None} or None


def _without_secrets(arguments: Sequence[str]) -> list[str]:
    """The command line for the manifest: values of ``--api-key`` and ``--header`` are masked."""
    out: list[str] = []
    hide = False
    for argument in arguments:
        name, separator, _value = argument.partition("=")
        if hide:
            out.append("***")
        elif separator and name in ("--api-key", "--header"):
            out.append(f"{name}=***")
        else:
            out.append(argument)
        hide = not hide and argument in ("--api-key", "--header")
    return out
