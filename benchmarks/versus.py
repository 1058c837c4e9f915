"""The engine over HTTP against other servers, with one neutral load, interleaved.

    python -m benchmarks.versus --peer vllm=http://127.0.0.1:8001 [--rounds 3] [--config JSON] [--json]

Starts this engine's server itself (or takes a running one: ``--ours URL``). Every server must offer
``/v1/completions`` with token-id prompts, streaming. In each round every case runs once on each server, in an
order that turns from round to round, with prompts that no server has seen before. A server that has just
served may go on polling for a while, so there is a pause before each turn, for every server alike. Printed:
medians over rounds and the ratio of this engine to each peer (throughput: above 1 is better; times: below 1
is better).
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import aiohttp

OURS = "ours"
_START_TIMEOUT_S = 180.0
_VOCABULARY = (100, 49_000)


@dataclass(frozen=True)
class Case:
    """A closed loop: ``concurrency`` requests in flight until ``num_requests`` are done."""

    name: str
    num_requests: int
    concurrency: int
    prompt_tokens: int = 256
    output_tokens: int = 64
    shared_tokens: int = 0


CASES = (
    Case("1 at a time", 4, 1),
    Case("4 at a time", 12, 4),
    Case("16 at a time", 32, 16),
    Case("32 at a time", 64, 32),
    Case("8 at a time, 448 of 512 shared", 32, 8, 512, 32, 448),
    Case("3000 tokens in, alone", 2, 1, 3000, 16),
)


@dataclass(frozen=True)
class Sample:
    """What one server did in one case of one round. Times in ms."""

    output_tok_s: float
    ttft_p50: float
    ttft_max: float
    itl_p50: float
    itl_p99: float


METRICS = tuple(Sample.__dataclass_fields__)


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[round(percent / 100 * (len(ordered) - 1))] if ordered else float("nan")


def prompts(case: Case, seed: int) -> list[list[int]]:
    rng = random.Random(f"{case.name}/{seed}")
    shared = [rng.randrange(*_VOCABULARY) for _ in range(case.shared_tokens)]
    own = case.prompt_tokens - case.shared_tokens
    return [shared + [rng.randrange(*_VOCABULARY) for _ in range(own)] for _ in range(case.num_requests)]


async def complete(
    session: aiohttp.ClientSession, url: str, model: str, prompt: list[int], output_tokens: int
) -> tuple[float, list[float], int]:
    """Send one request: (sent at, arrival of each event with a choice, output tokens)."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "min_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begin, arrivals, tokens = time.perf_counter(), [], 0
    async with session.post(f"{url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{url}: HTTP {response.status}: {(await response.text())[:200]}")
        async for line in response.content:
            data = line.removeprefix(b"data:").strip()
            if not line.startswith(b"data:") or data == b"[DONE]":
                continue
            event = json.loads(data)
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            if event.get("choices"):
                arrivals.append(time.perf_counter())
    if not arrivals:
        raise RuntimeError(f"{url}: a stream without a single token")
    return begin, arrivals, tokens or len(arrivals)


async def run_case(url: str, model: str, case: Case, seed: int) -> Sample:
    queue = prompts(case, seed)
    done: list[tuple[float, list[float], int]] = []
    timeout = aiohttp.ClientTimeout(total=1800)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:

        async def worker() -> None:
            while queue:
                done.append(await complete(session, url, model, queue.pop(), case.output_tokens))

        begin = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(case.concurrency)))
        elapsed = time.perf_counter() - begin
    ttft = [1e3 * (arrivals[0] - sent) for sent, arrivals, _ in done]
    gaps = [1e3 * (b - a) for _, arrivals, _ in done for a, b in itertools.pairwise(arrivals)]
    return Sample(
        output_tok_s=sum(tokens for _, _, tokens in done) / elapsed,
        ttft_p50=percentile(ttft, 50),
        ttft_max=max(ttft),
        itl_p50=percentile(gaps, 50),
        itl_p99=percentile(gaps, 99),
    )


async def model_of(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/models") as response:
        return str((await response.json())["data"][0]["id"])


async def run_rounds(
    servers: dict[str, str], cases: list[Case], rounds: int, seed: int, pause_s: float
) -> dict[str, dict[str, list[Sample]]]:
    """Samples by case and server."""
    models = {name: await model_of(url) for name, url in servers.items()}
    warm = Case("warm-up", 4, 2, 64, 8)
    for name, url in servers.items():
        await run_case(url, models[name], warm, seed)
    samples: dict[str, dict[str, list[Sample]]] = {
        case.name: {name: [] for name in servers} for case in cases
    }
    names = list(servers)
    for turn in range(rounds):
        for case in cases:
            for name in names:
                await asyncio.sleep(pause_s)
                # The same prompts for every server; new ones each round, for prefix caches remember.
                sample = await run_case(servers[name], models[name], case, seed + turn)
                samples[case.name][name].append(sample)
                print(
                    f"round {turn + 1}: {case.name}: {name}: {sample.output_tok_s:.1f} tok/s", file=sys.stderr
                )
        names = names[1:] + names[:1]
    return samples


@contextmanager
def own_server(config: str) -> Iterator[str]:
    """Start ``python -m engine.server`` on a free port, yield its URL when ``/health`` answers, stop it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "engine.server", "--config-json", config, "--port", str(port)]
    process = subprocess.Popen(command, stdout=sys.stderr)
    try:
        asyncio.run(_wait_healthy(f"http://127.0.0.1:{port}", process))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _wait_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise SystemExit(f"error: the server stopped with exit code {process.returncode}")
            try:
                async with session.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass  # not listening yet
            await asyncio.sleep(0.2)
    raise SystemExit(f"error: the server was not healthy after {_START_TIMEOUT_S:.0f} s")


def summary(samples: dict[str, dict[str, list[Sample]]]) -> list[dict[str, object]]:
    """Per case: each server's medians, and the ratio of ours to each peer."""
    rows: list[dict[str, object]] = []
    for case, by_server in samples.items():
        medians = {
            name: {metric: statistics.median(getattr(s, metric) for s in taken) for metric in METRICS}
            for name, taken in by_server.items()
        }
        ratios = {
            name: {metric: medians[OURS][metric] / values[metric] for metric in METRICS}
            for name, values in medians.items()
            if name != OURS
        }
        rows.append({"case": case, "medians": medians, "ratios": ratios})
    return rows


def print_table(rows: list[dict[str, object]]) -> None:
    head = f"{'case':32} {'server':12} " + " ".join(f"{metric:>13}" for metric in METRICS)
    print(head + "\n" + "-" * len(head))
    for row in rows:
        for kind, mark in (("medians", ""), ("ratios", "ours / ")):
            for name, values in row[kind].items():  # type: ignore[attr-defined]
                cells = " ".join(f"{values[metric]:13.2f}" for metric in METRICS)
                print(f"{row['case']:32} {mark + name:12} {cells}")


def parse_peer(text: str) -> tuple[str, str]:
    name, separator, url = text.partition("=")
    if not separator or not name or name == OURS or not url.startswith("http"):
        raise argparse.ArgumentTypeError(f"{text!r}: NAME=http://HOST:PORT")
    return name, url.rstrip("/")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", type=parse_peer, action="append", default=[], help="NAME=URL, repeatable")
    parser.add_argument("--ours", help="URL of a running server of this engine; default: start one")
    parser.add_argument("--config", default="{}", help="EngineConfig of the server that is started, as JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default="", help="run only cases whose name contains one of these (comma)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=5.0, help="seconds before each case on each server")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cases = [c for c in CASES if any(part in c.name for part in args.cases.split(","))]
    if not cases:
        parser.error(f"--cases {args.cases!r}: none of {', '.join(repr(c.name) for c in CASES)}")

    def run(ours: str) -> dict[str, dict[str, list[Sample]]]:
        servers = {OURS: ours, **dict(args.peer)}
        return asyncio.run(run_rounds(servers, cases, args.rounds, args.seed, args.pause))

    if args.ours:
        samples = run(args.ours.rstrip("/"))
    else:
        with own_server(args.config) as url:
            samples = run(url)
    rows = summary(samples)
    if args.json:
        raw = {c: {n: [asdict(s) for s in taken] for n, taken in by.items()} for c, by in samples.items()}
        print(json.dumps({"rounds": args.rounds, "cases": rows, "samples": raw}))
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
