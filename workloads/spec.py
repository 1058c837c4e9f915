"""What traffic to send, as data: arrivals, and classes of requests with their lengths.

A spec fixes a *family* of request lists; :func:`workloads.build` picks one of it from a seed (shape) and a
nonce (content).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from workloads.errors import WorkloadError
from workloads.fields import Constant, Length, Lognormal, Spec, Uniform
from workloads.profile import Stage, profile_seconds
from workloads.sources import JsonlSource, SessionsSource, ShareGptSource, SonnetSource, Source, TraceSource

__all__ = ["Arrivals", "Constant", "Lognormal", "RequestClass", "Uniform", "WorkloadSpec"]


class RequestClass(Spec):
    """One kind of request in the mix."""

    name: str = Field(default="default", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    weight: float = Field(default=1.0, gt=0)
    """Share of the requests, relative to the other classes. The mix is exact, not drawn: only its order is
    random."""
    input_tokens: Length
    """Prompt length, shared prefix included."""
    output_tokens: Length
    """``max_tokens``; sent with ``ignore_eos``, so it is the output's length where the server honours
    that."""
    prefix_tokens: int = Field(default=0, ge=0)
    """Tokens at the start of the prompt that are the same in every request of one prefix group."""
    num_prefixes: int = Field(default=1, ge=1)
    """Number of prefix groups; requests take them in turn."""
    prefix_skew: float = Field(default=0.0, ge=0, le=10)
    """Above 0: groups are drawn instead, group k with weight k^-skew (Zipf), as popularity often is."""


class Arrivals(Spec):
    """When requests are sent.

    - ``burst``: all at once (vLLM: ``--request-rate inf``)
    - ``constant``: every 1/rate seconds
    - ``poisson``: exponential gaps
    - ``gamma``: gamma gaps; ``burstiness`` is the shape as in vLLM: 1 is Poisson, smaller is burstier
    - ``closed``: the next one when one of ``max_concurrency`` ends
    - ``trace``: at the times that the trace (or the ``timestamp`` of each line) tells

    ``stages`` replace ``rate`` where the rate changes with time: steps, and ramps by elapsed time. With
    ``max_concurrency`` every open kind becomes a hybrid: due requests wait at the client for a free
    slot.
    """

    kind: Literal["burst", "constant", "poisson", "gamma", "closed", "trace"] = "poisson"
    rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Requests per second."""
    utilisation: float | None = Field(default=None, gt=0, le=2)
    """Used when no rate is given: the rate as a share of the capacity that a calibration measured."""
    burstiness: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    max_concurrency: int | None = Field(default=None, ge=1)
    """Requests in flight; in a closed loop of sessions: sessions under way, thinking or not."""
    stages: tuple[Stage, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Arrivals:
        if self.kind == "closed" and self.max_concurrency is None:
            raise ValueError("closed arrivals need max_concurrency")
        if self.stages:
            if not self._by_rate:
                raise ValueError(f"stages: only with constant, poisson or gamma arrivals, not {self.kind}")
            if self.rate is not None or self.utilisation is not None:
                raise ValueError("stages: no rate or utilisation beside them")
            if not any(stage.rate or stage.end_rate for stage in self.stages):
                raise ValueError("stages: one of them needs a rate above 0")
        return self

    @property
    def _by_rate(self) -> bool:
        return self.kind in ("constant", "poisson", "gamma")

    @property
    def open_rate(self) -> bool:
        """Does this kind need a rate (from the workload, the user or a calibration)?"""
        return self._by_rate and not self.stages

    @property
    def stage_seconds(self) -> float | None:
        """Length of all stages together; None without any."""
        return profile_seconds(self.stages) if self.stages else None


class WorkloadSpec(Spec):
    """A named workload. Its identity is :attr:`sha256`."""

    name: str = Field(default="custom", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str = ""
    arrivals: Arrivals = Arrivals(kind="burst")
    classes: tuple[RequestClass, ...] = ()
    """Requests of random tokens. Either these or a ``source``."""
    source: Source | None = None
    num_requests: int = Field(default=100, ge=1, le=10_000_000)
    """How many to send when neither a number nor a duration is asked for (sessions: how many of these)."""
    slo: str | None = None
    """Goodput objective that fits this traffic, as in ``--goodput``."""
    temperature: float = Field(default=0.0, ge=0)
    reuse_content: bool = False
    """Send the same prompts in every run of a seed: the run nonce is ignored, and a warm prefix cache is
    measured."""

    @model_validator(mode="after")
    def _distinct(self) -> WorkloadSpec:
        names = [c.name for c in self.classes]
        if len(set(names)) != len(names):
            raise ValueError("two classes have the same name")
        if bool(self.classes) == (self.source is not None):
            raise ValueError("classes or source: exactly one of them")
        if self.arrivals.kind == "trace" and not isinstance(self.source, (TraceSource, JsonlSource)):
            raise ValueError("arrivals of kind trace need a source with times: a trace or a jsonl file")
        for c in self.classes:
            least = c.input_tokens.least
            if c.prefix_tokens > least:
                raise ValueError(
                    f"class {c.name}: prefix_tokens={c.prefix_tokens} exceeds its shortest prompt ({least})"
                )
        return self

    @property
    def sha256(self) -> str:
        """Of the canonical JSON of everything that shapes the traffic (not the name, description or SLO)."""
        body = self.model_dump(mode="json", exclude={"name", "description", "slo"})
        return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def max_total_tokens(self) -> int | None:
        """Most prompt plus output tokens that a request can have; None when only the built requests tell."""
        source = self.source
        if source is None:
            return max(c.input_tokens.most + c.output_tokens.most for c in self.classes)
        if isinstance(source, SessionsSource):
            return source.max_total_tokens
        if isinstance(source, SonnetSource):
            return source.input_tokens.most + source.output_tokens.most
        if isinstance(source, ShareGptSource):
            return source.max_total_tokens
        if isinstance(source, TraceSource) and source.max_input_tokens and source.max_output_tokens:
            return source.max_input_tokens + source.max_output_tokens
        return None

    @classmethod
    def create(cls, fields: dict[str, Any]) -> WorkloadSpec:
        """Validate ``fields``; raise :class:`WorkloadError` naming the first bad one."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "workload"
            message = first["msg"].removeprefix("Value error, ")
            raise WorkloadError(where, first.get("input"), message) from None
