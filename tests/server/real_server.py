"""A server as users start it: a process, and the engine's process below it."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from dataclasses import dataclass

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families

from engine.config import EngineConfig

START_S = 120.0
DEADLINE_S = 30.0


@dataclass
class Server:
    process: asyncio.subprocess.Process
    url: str

    @property
    def engine_process(self) -> psutil.Process:
        (child,) = psutil.Process(self.process.pid).children()
        return child

    async def exit(self) -> tuple[int, str]:
        """Exit code and stderr."""
        _, err = await asyncio.wait_for(self.process.communicate(), DEADLINE_S)
        return self.process.returncode or 0, err.decode()


async def launch(config: EngineConfig, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engine.server", "--config-json", config.model_dump_json(), *arguments),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def start(config: EngineConfig, *arguments: str) -> Server:
    process = await launch(config, "--port", "0", *arguments)
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), START_S)).decode()
    match = re.fullmatch(r"Serving \S+ on (http://127\.0\.0\.1:\d+) \(ready in [\d.]+ s\)\n", line)
    assert match is not None, line
    return Server(process, match[1])


async def stop(server: Server) -> None:
    if server.process.returncode is None:
        server.process.kill()
        await server.process.wait()


async def gauges(http: aiohttp.ClientSession) -> dict[str, float]:
    async with http.get("/metrics") as response:
        families = text_string_to_metric_families(await response.text())
        return {family.name: family.samples[0].value for family in families if family.type == "gauge"}


async def settle(http: aiohttp.ClientSession, running: int, waiting: int = 0) -> dict[str, float]:
    """Wait until that many requests run and wait."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            now = await gauges(http)
            if (now["vllm:num_requests_running"], now["vllm:num_requests_waiting"]) == (running, waiting):
                return now
            await asyncio.sleep(0.01)
