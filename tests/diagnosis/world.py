"""A served run on virtual time with a planted fault: the engine's own core and scheduler, a cost model in
place of the model, a client with the usual stamps. Everything a diagnosis reads comes out as in a real run.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from engine.clock import VirtualClock
from engine.config import EngineConfig
from engine.core.core import EngineCore
from engine.executor.sim import SimExecutor
from engine.messages import EngineCoreRequest
from engine.plan import StepPlan, StepResult
from engine.sampling_params import SamplingParams
from engine.trace.recorder import ListRecorder
from engine.trace.tables import EVENTS, STEPS
from experiments.diagnosis.bundle import RunBundle
from workbench.manifest import Manifest, TargetInfo
from workbench.records import REQUESTS, TELEMETRY

MS = 1_000_000
START_NS = 1_000_000_000_000
SENDING_NS = 40_000
"""Token in the engine to token at the client."""

StepCost = Callable[[int, int, int, float], float]
"""(tokens, requests, Σ context of decodes, seconds into the run) -> ns."""


def gpu_like(tokens: int, requests: int, sum_kv: int, seconds: float) -> float:
    """A step that mostly pays for reading the weights: batching is nearly free."""
    return 5 * MS + 20_000 * tokens + 10 * sum_kv


@dataclass(frozen=True)
class Traffic:
    """One request: when it is due, its sizes, and the tokens it shares with others (a prefix)."""

    due_s: float
    prompt: int
    output: int
    prefix: int = 0


@dataclass(frozen=True)
class World:
    """What is served, and what is wrong with it."""

    traffic: list[Traffic]
    engine: dict[str, Any] = field(default_factory=dict)
    cost: StepCost = gpu_like
    prepare_ns: int = 200_000
    sample_ns: int = 200_000
    between_ns: int = 20_000
    front_end_ns: int = 100_000
    serial_front_end: bool = False
    """One request after the other: a tokenizer with a single thread."""
    client_cap: int | None = None
    closed: bool = False
    hit_salt: int = 0
    """Not 0: KV found in the cache is wrong, and so are the tokens computed on it."""
    lose_hits: bool = False
    natural: float = 0.0
    """Share of the requests whose output differs by itself."""
    leaked_blocks: int = 0
    device: bool = False
    """A GPU: its own clock tells how long a forward took, and the host waits for its tokens."""
    telemetry: list[tuple[float, str, float, str, str]] = field(default_factory=list)
    """(seconds, name, value, unit, source)."""
    slo: str | None = None
    echo: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    nonce: str = "n"
    noise: float = 0.01
    seed: int = 0
    name: str = "run"


class PlantedExecutor(SimExecutor):
    """A simulated executor whose steps cost what the world says, phase by phase."""

    def __init__(self, world: World, num_blocks: int, clock: VirtualClock) -> None:
        super().__init__(num_blocks, clock)
        self._world = world
        self._virtual = clock
        self._rng = random.Random(world.seed)
        self._spoiled: set[str] = set()

    def execute(self, plan: StepPlan) -> StepResult:
        world, clock = self._world, self._virtual
        sizes = plan.num_scheduled_tokens
        if not sizes:
            return super().execute(plan)
        if world.hit_salt:
            self._spoiled |= {r.request_id for r in plan.new_requests if r.num_computed_tokens}
        clock.advance_ns(world.prepare_ns)
        prepared = clock.now_ns()
        contexts = [plan.num_computed_tokens[name] + size for name, size in sizes.items() if size == 1]
        ns = world.cost(sum(sizes.values()), len(sizes), sum(contexts), (prepared - START_NS) / 1e9)
        cost = int(ns * (1 + self._rng.gauss(0, world.noise)))
        result = super().execute(StepPlan(**{**_fields(plan), "num_scheduled_tokens": {}, "samples": []}))
        result.sampled_token_ids = {name: self._sample(plan, name) for name in plan.samples}
        clock.advance_ns(cost)
        result.t_prepare_ns, result.t_forward_ns = prepared, clock.now_ns()
        if world.device:
            result.t_forward_ns, result.gpu_forward_ns = None, cost if plan.samples else None
        clock.advance_ns(world.sample_ns)
        result.t_sample_ns = clock.now_ns()
        for name in self._spoiled & set(result.sampled_token_ids):
            result.sampled_token_ids[name] ^= world.hit_salt
        return result


def _fields(plan: StepPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__slots__}


@dataclass
class _Client:
    """One request at the client."""

    index: int
    traffic: Traffic
    due_ns: int
    sent_ns: int | None = None
    tokens: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    cached: int = 0
    reason: str | None = None

    @property
    def request_id(self) -> str:
        return f"m{self.index:04d}"


def tables(world: World) -> dict[str, pa.Table | None]:
    """Serve the world; the tables of a run's folder."""
    clock, trace = VirtualClock(START_NS), ListRecorder()
    config = engine_config(world)
    executor = PlantedExecutor(world, config.num_gpu_blocks_override or 4096, clock)
    core = EngineCore.create(config, executor, clock, trace)
    if world.leaked_blocks:
        core.scheduler.kv.pool.take_new(world.leaked_blocks)
        core.scheduler.check_invariants = lambda: None  # it would notice the leak
    clients = [_Client(i, t, START_NS + int(t.due_s * 1e9)) for i, t in enumerate(world.traffic)]
    _serve(world, core, clock, clients)
    rows = [_row(world, client) for client in clients]
    return {
        "requests": pa.Table.from_pylist(rows, schema=REQUESTS),
        "steps": pa.Table.from_batches([STEPS.batch(trace.steps)]) if trace.steps else None,
        "events": pa.Table.from_batches([EVENTS.batch(trace.events)]) if trace.events else None,
        "telemetry_cpu": pa.Table.from_pylist(
            [
                {"t_ns": START_NS + int(t * 1e9), "name": name, "value": value, "unit": unit,
                 "source": source, "status": "ok"}
                for t, name, value, unit, source in world.telemetry
            ],
            schema=TELEMETRY,
        ),
    }  # fmt: skip


def engine_config(world: World) -> EngineConfig:
    return EngineConfig.create(**{"max_model_len": 16_384, "num_gpu_blocks_override": 4096, **world.engine})


def manifest(world: World) -> Manifest:
    config = engine_config(world).model_dump(mode="json")
    return Manifest(
        id=world.name,
        created="2026-01-01T00:00:00Z",
        target=TargetInfo(kind="builtin", model="smollm2-135m", requested=dict(world.engine),
                          echo={**config, "num_kv_blocks": config["num_gpu_blocks_override"], **world.echo}),
        workload={"name": "chat", "temperature": 0.0, **world.workload},
        workload_sha256="w",
        nonce=world.nonce,
        load={"rate": 10.0, "max_concurrency": world.client_cap},
        machine=world.machine,
        slo=world.slo,
    )  # fmt: skip


def bundle(world: World, cut: Callable[[dict[str, Any]], None] | None = None) -> RunBundle:
    """The run as a diagnosis reads it; ``cut`` may damage the tables first."""
    found = tables(world)
    if cut is not None:
        cut(found)
    return RunBundle.of(world.name, manifest(world), found)


def _serve(world: World, core: EngineCore, clock: VirtualClock, clients: list[_Client]) -> None:
    due = sorted(clients, key=lambda c: c.due_ns)
    by_core: dict[str, _Client] = {}
    coming: list[tuple[int, int]] = []  # (handed over, index)
    front_end_free, slots, freed = START_NS, world.client_cap or len(clients), []
    place = 0
    while place < len(due) or coming or core.has_work():
        now = clock.now_ns()
        while freed and freed[0] <= now:
            heapq.heappop(freed)
            slots += 1
        while place < len(due) and slots and due[place].due_ns <= now:
            client = due[place]
            place, slots = place + 1, slots - 1
            client.sent_ns = now if world.client_cap else client.due_ns
            begin = max(client.sent_ns, front_end_free) if world.serial_front_end else client.sent_ns
            front_end_free = begin + world.front_end_ns
            heapq.heappush(coming, (front_end_free, client.index))
        while coming and coming[0][0] <= now:
            handed, index = heapq.heappop(coming)
            _enter(world, core, clients[index], handed)
            by_core[clients[index].request_id] = clients[index]
        if not core.has_work():
            moments = [coming[0][0]] if coming else []
            if place < len(due) and (slots or freed):
                moments.append(max(due[place].due_ns, 0 if slots else freed[0]))
            clock.advance_to_ns(max(now + 1, min(moments)))
            continue
        outputs = core.step().outputs
        for output in outputs:
            client = by_core[output.request_id]
            client.tokens += output.new_token_ids
            client.times += [clock.now_ns() + SENDING_NS] * len(output.new_token_ids)
            client.cached = output.num_cached_tokens
            if output.finish_reason is not None:
                client.reason = output.finish_reason.value
                heapq.heappush(freed, clock.now_ns() + SENDING_NS)
        clock.advance_ns(world.between_ns)


def _enter(world: World, core: EngineCore, client: _Client, handed_ns: int) -> None:
    shape = client.traffic
    own = 100_000 + client.index * 20_000
    prompt = list(range(1, shape.prefix + 1)) + list(range(own, own + shape.prompt - shape.prefix))
    core.add_request(
        EngineCoreRequest(
            request_id=client.request_id,
            external_id=client.request_id,
            prompt_token_ids=prompt,
            params=SamplingParams(max_tokens=shape.output, ignore_eos=True),
            eos_token_ids=[],
            arrival_ns=client.sent_ns or 0,
            submitted_ns=handed_ns,
        )
    )


def _row(world: World, client: _Client) -> dict[str, Any]:
    differs = random.Random(f"{world.seed}/{client.index}/{world.name}").random() < world.natural
    text = f"{client.tokens}{world.name if differs else ''}"
    lost = world.lose_hits and client.cached > 0 and client.index % 4 == 1
    ok = client.reason == "length" and not lost
    return {
        "request_id": client.request_id,
        "index": client.index,
        "phase": "measure",
        "group": "chat",
        "worker": 0,
        "intended_ns": None if world.closed else client.due_ns,
        "released_ns": client.sent_ns,
        "sent_ns": client.sent_ns,
        "headers_ns": client.sent_ns,
        "first_token_ns": client.times[0] if client.times else None,
        "last_token_ns": client.times[-1] if client.times else None,
        "close_ns": client.times[-1] if client.times else client.sent_ns,
        "prompt_tokens": client.traffic.prompt,
        "cached_tokens": client.cached,
        "output_tokens": len(client.tokens),
        "output_tokens_source": "token_ids",
        "first_event_tokens": 1 if client.tokens else None,
        "max_tokens": client.traffic.output,
        "status": "ok" if ok else "failed",
        "http_status": 200,
        "error_class": None if ok else "stream_error",
        "error": None,
        "finish_reason": client.reason,
        "output_sha256": hashlib.sha256(text.encode()).hexdigest() if ok else None,
    }


def poisson(count: int, rate: float, prompt: int, output: int, seed: int = 0, **fields: Any) -> list[Traffic]:
    """``count`` requests at ``rate`` a second; sizes vary by a quarter around their middle."""
    rng = random.Random(seed)
    now, found = 0.0, []
    for _ in range(count):
        now += rng.expovariate(rate)
        sizes = (max(2, round(size * rng.uniform(0.75, 1.25))) for size in (prompt, output))
        found.append(Traffic(now, *sizes, **fields))
    return found
