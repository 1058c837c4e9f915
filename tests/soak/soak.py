"""Thousands of visits to a real server on a tiny model; afterwards nothing may be left of them.

The server runs in this process, so that its tasks can be counted; its engine is a process of its own, as
always.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from engine.config import EngineConfig
from engine.frontend.async_llm import AsyncLLM
from engine.server.app import build_app
from engine.server.options import ServerOptions
from engine.server.state import STATE
from tests.soak.visits import QUESTIONS, Behaviour, Visit, greedy, make_visit, pay

CONCURRENCY = 32
"""Visitors at the same time: more than the engine runs and queues."""
SETTLE_S = 30.0


def soak_config(model: Path, *, async_scheduling: bool) -> EngineConfig:
    """A pool too small for what runs at once, and every check on."""
    return EngineConfig.create(
        model=str(model),
        dtype="float32",
        num_threads=1,
        max_model_len=300,
        max_num_seqs=12,
        max_num_batched_tokens=96,
        num_gpu_blocks_override=60,
        block_size=8,
        scheduling_policy="priority",
        max_waiting_requests=28,
        async_scheduling=async_scheduling,
        check_invariants=True,
    )


@dataclass
class Server:
    engine: AsyncLLM
    runner: web.AppRunner
    port: int

    @property
    def core_process(self) -> psutil.Process:
        (child,) = psutil.Process().children()
        return child


@asynccontextmanager
async def serving(config: EngineConfig) -> AsyncIterator[Server]:
    """As :mod:`engine.server.runner` sets it up."""
    engine = await AsyncLLM.start(config)
    runner = web.AppRunner(
        build_app(engine, config, ServerOptions.create()), handler_cancellation=True, access_log=None
    )
    try:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield Server(engine, runner, runner.addresses[0][1])
    finally:
        await runner.cleanup()
        await engine.shutdown()


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a server holds when nobody is there."""

    tasks: int
    server_fds: int
    core_fds: int
    kv_blocks: int
    sequences: int
    inflight: int

    @classmethod
    def of(cls, server: Server) -> Footprint:
        stats = server.engine.stats
        return cls(
            tasks=len(asyncio.all_tasks()),
            server_fds=psutil.Process().num_fds(),
            core_fds=server.core_process.num_fds(),
            kv_blocks=stats.kv_blocks_used,
            sequences=stats.num_running + stats.num_waiting + server.engine._outputs.num_sequences,
            inflight=server.runner.app[STATE].inflight.requests if server.runner.app else 0,
        )


@dataclass
class Report:
    """What happened, and what was left behind."""

    visits: Counter[Behaviour] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    before: Footprint | None = None
    after: Footprint | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    core_rss_growth_bytes: int = 0

    @property
    def leaked(self) -> bool:
        return self.before != self.after


async def soak(server: Server, num_visits: int, seed: int, progress: Callable[[], None]) -> Report:
    """Let ``num_visits`` visitors come, then wait until nothing changes any more."""
    report, rng = Report(), random.Random(seed)
    answers = [await _ask(server.port, i) for i in range(len(QUESTIONS))]
    seats = asyncio.Semaphore(CONCURRENCY)

    async def come(visit: Visit) -> None:
        async with seats:
            answer = await pay(visit, server.port)
        report.visits[visit.behaviour] += 1
        progress()
        if answer is None:
            return
        report.statuses[answer.status] += 1
        expected = {400} if visit.behaviour is Behaviour.CONFUSED else {200, 429}
        if answer.status not in expected:
            report.wrong.append(f"{visit}: status {answer.status}")
        elif answer.status == 200 and not answer.ended:
            report.wrong.append(f"{visit}: the answer has no end")
        elif answer.status == 200 and visit.question is not None and answer.text != answers[visit.question]:
            report.wrong.append(f"{visit}: {answer.text!r}, alone {answers[visit.question]!r}")

    await asyncio.gather(*(come(make_visit(rng)) for _ in range(CONCURRENCY)))  # lazy things exist now
    report.before = await _settled(server, None)
    rss = server.core_process.memory_info().rss
    visits = [make_visit(rng) for _ in range(num_visits)]
    await asyncio.gather(*(come(visit) for visit in visits))
    report.after = await _settled(server, report.before)
    report.core_rss_growth_bytes = server.core_process.memory_info().rss - rss
    report.metrics = await _metrics(server.port)
    return report


async def _ask(port: int, question: int) -> str:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"http://127.0.0.1:{port}/v1/completions", json=greedy(question)) as response,
    ):
        return (await response.json())["choices"][0]["text"]


async def _metrics(port: int) -> dict[str, float]:
    """Sample name → sum over its labels."""
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as response:
        text = await response.text()
    values: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values[sample.name] += sample.value
    return dict(values)


async def _settled(server: Server, expected: Footprint | None) -> Footprint:
    """The footprint once it is ``expected``, or (None) once it stays the same, or at the deadline."""
    last = None
    deadline = asyncio.get_running_loop().time() + SETTLE_S
    while True:
        gc.collect()
        now = Footprint.of(server)
        idle = now.kv_blocks == now.sequences == now.inflight == 0
        if (idle and now == (expected or last)) or asyncio.get_running_loop().time() > deadline:
            return now
        last = now
        await asyncio.sleep(0.3)
