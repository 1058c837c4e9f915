"""What traffic to send, as data: arrivals, and classes of requests with their lengths.

A spec fixes a *family* of request lists; :func:`workloads.build` picks one of it from a seed (shape) and a
nonce (content).
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from workloads.errors import WorkloadError


class _Spec(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Constant(_Spec):
    kind: Literal["constant"] = "constant"
    value: int = Field(ge=1)

    @property
    def most(self) -> int:
        return self.value


class Uniform(_Spec):
    """Every whole number from ``low`` to ``high``, both included, equally likely."""

    kind: Literal["uniform"] = "uniform"
    low: int = Field(ge=1)
    high: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.high < self.low:
            raise ValueError(f"high={self.high} is below low={self.low}")
        return self

    @property
    def most(self) -> int:
        return self.high


class Lognormal(_Spec):
    """Log-normal with this mean and coefficient of variation, rounded, then cut to [low, high]."""

    kind: Literal["lognormal"] = "lognormal"
    mean: float = Field(gt=0)
    cv: float = Field(gt=0)
    low: int = Field(default=1, ge=1)
    high: int = Field(ge=1)

    @property
    def most(self) -> int:
        return self.high


def _length(value: Any) -> Any:
    """TOML short forms: ``48`` is constant, ``[1500, 3000]`` is uniform."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"kind": "constant", "value": value}
    if isinstance(value, (list, tuple)):
        if len(value) != 2:
            raise ValueError("a length is a number, a pair [low, high] or a table with kind")
        return {"kind": "uniform", "low": value[0], "high": value[1]}
    return value


Length = Annotated[Constant | Uniform | Lognormal, Field(discriminator="kind"), BeforeValidator(_length)]


class RequestClass(_Spec):
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


class Arrivals(_Spec):
    """When requests are sent.

    - ``burst``: all at once (vLLM: ``--request-rate inf``)
    - ``constant``: every 1/rate seconds
    - ``poisson``: exponential gaps
    - ``gamma``: gamma gaps; ``burstiness`` is the shape as in vLLM: 1 is Poisson, smaller is burstier
    - ``closed``: the next one when one of ``max_concurrency`` ends

    With ``max_concurrency`` every open kind becomes a hybrid: due requests wait at the client for a free
    slot.
    """

    kind: Literal["burst", "constant", "poisson", "gamma", "closed"] = "poisson"
    rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Requests per second."""
    utilisation: float | None = Field(default=None, gt=0, le=2)
    """Used when no rate is given: the rate as a share of the capacity that a calibration measured."""
    burstiness: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    max_concurrency: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _complete(self) -> Arrivals:
        if self.kind == "closed" and self.max_concurrency is None:
            raise ValueError("closed arrivals need max_concurrency")
        return self

    @property
    def open_rate(self) -> bool:
        """Does this kind need a rate?"""
        return self.kind in ("constant", "poisson", "gamma")


class WorkloadSpec(_Spec):
    """A named workload. Its identity is :attr:`sha256`."""

    name: str = Field(default="custom", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str = ""
    arrivals: Arrivals = Arrivals(kind="burst")
    classes: tuple[RequestClass, ...] = Field(min_length=1)
    num_requests: int = Field(default=100, ge=1, le=10_000_000)
    """How many to send when neither a number nor a duration is asked for."""
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
        for c in self.classes:
            least = c.input_tokens.value if isinstance(c.input_tokens, Constant) else c.input_tokens.low
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
    def max_total_tokens(self) -> int:
        """Most prompt plus output tokens that a request of this workload can have."""
        return max(c.input_tokens.most + c.output_tokens.most for c in self.classes)

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
