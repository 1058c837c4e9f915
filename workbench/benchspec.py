"""What one run is: target, workload, load, objectives. Frozen data, used by ``bench``, ``sweep`` and
``capacity`` alike."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.errors import InvalidInputError
from workbench.manifest import SweepRef
from workbench.profiling.window import ProfileWindow
from workbench.slo import parse_slo
from workbench.targets.command import ServerCommand
from workloads import WorkloadSpec


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Deadlines(_Frozen):
    """Seconds after which a request is given up; None: never."""

    connect_s: float | None = Field(default=10.0, gt=0)
    first_token_s: float | None = Field(default=None, gt=0)
    idle_s: float | None = Field(default=120.0, gt=0)
    """Nothing arrived for this long, before or between events."""
    total_s: float | None = Field(default=None, gt=0)


class BenchSpec(_Frozen):
    """One run. With ``base_url`` it attaches to that server, with ``server`` it starts that command, else the
    builtin engine in a fresh process."""

    workload: WorkloadSpec
    engine: dict[str, Any] = {}
    """Builtin target: fields of :class:`engine.config.EngineConfig`; those left out have its defaults."""
    base_url: str | None = None
    server: ServerCommand | None = None
    """Start this command as the target, in the place of the builtin engine."""
    model: str | None = None
    """Name in the API; default: the first that the server lists."""
    endpoint: Literal["completions", "chat"] = "completions"
    rate: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Requests per second; default: the workload's."""
    max_concurrency: int | None = Field(default=None, ge=1)
    num_requests: int | None = Field(default=None, ge=1, le=10_000_000)
    duration_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Build arrivals for this long (open arrivals with a rate)."""
    max_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Stop sending after this long; requests in flight may end within ``grace_s``."""
    grace_s: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    workers: int | None = Field(default=None, ge=1, le=64)
    """Processes that send; None: one, and more where the rate or the number of streams is above what one
    keeps
    up with (:mod:`workbench.load.deal`)."""
    cancellation_rate: float = Field(default=0.0, ge=0, le=1)
    """Share of the requests that the client hangs up on, ``cancellation_delay_s`` after sending them."""
    cancellation_delay_s: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    retries: int = Field(default=0, ge=0, le=100)
    """Further tries of a request that failed before it brought anything."""
    tokenizer: str | None = None
    """File or folder of a tokenizer that counts the tokens of texts; None: an estimate."""
    warmup_requests: int = Field(default=4, ge=0, le=10_000)
    profile: ProfileWindow | None = None
    """Watch some steps with torch.profiler; the run is flagged."""
    slo: str | None = None
    """Default: the workload's."""
    seed: int = Field(default=0, ge=0)
    nonce: str | None = None
    """Decides the prompts' content; None: a fresh one. Same (seed, nonce) = the same bytes."""
    name: str = ""
    tags: tuple[str, ...] = ()
    sweep: SweepRef | None = None
    keep_chunks: bool = True
    headers: dict[str, str] = {}
    api_key: str | None = Field(default=None, repr=False)
    """Sent as a bearer token; never stored."""
    extra_body: dict[str, Any] = {}
    deadlines: Deadlines = Deadlines()
    ready_timeout_s: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    """Builtin: until the server is healthy; attach: until it answers a first request."""
    request_id_prefix: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]{0,64}$")
    command: tuple[str, ...] = ()
    """Command line that asked for the run, for the manifest."""

    @classmethod
    def create(cls, **fields: Any) -> BenchSpec:
        """Validate; raise :class:`InvalidInputError` naming the first bad field."""
        try:
            spec = cls(**fields)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"]) or "spec"
            raise InvalidInputError(name, first.get("input"), first["msg"]) from None
        if spec.slo is not None:
            parse_slo(spec.slo)
        if spec.server is not None and (spec.engine or spec.base_url is not None):
            raise InvalidInputError(
                "server", spec.server.title, "neither base_url nor engine settings beside it"
            )
        if spec.base_url is not None and spec.engine:
            raise InvalidInputError(
                "base_url", spec.base_url, "no engine settings beside it (it has its own)"
            )
        return spec

    @property
    def effective_slo(self) -> str | None:
        return self.slo if self.slo is not None else self.workload.slo
