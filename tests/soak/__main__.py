"""``python -m tests.soak [--visits 2000] [--seed 0]``: the long soak, without and with async scheduling."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from rich.progress import Progress

from tests.helpers.tiny_model import make_tiny_model
from tests.soak.soak import Report, serving, soak, soak_config
from tests.soak.visits import Behaviour

COUNTERS = ("num_preemptions", "prefix_cache_hits", "prompt_tokens", "generation_tokens")


async def _run(num_visits: int, seed: int, async_scheduling: bool) -> Report:
    with tempfile.TemporaryDirectory() as folder, Progress(transient=True) as bar:
        config = soak_config(make_tiny_model(Path(folder) / "tiny"), async_scheduling=async_scheduling)
        task = bar.add_task("visits", total=num_visits)
        async with serving(config) as server:
            return await soak(server, num_visits, seed, lambda: bar.advance(task))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--visits", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    failed = False
    for async_scheduling in (False, True):
        report = asyncio.run(_run(arguments.visits, arguments.seed, async_scheduling))
        failed |= report.leaked or bool(report.wrong)
        left = report.visits.total() - report.visits[Behaviour.STAY] - report.visits[Behaviour.CONFUSED]
        counts = {name: f"{report.metrics[f'vllm:{name}_total']:.0f}" for name in COUNTERS}
        print(
            f"async_scheduling={async_scheduling}: {report.visits.total()} visits, {left} left early, "
            f"answers {dict(sorted(report.statuses.items()))}, {counts}: {len(report.wrong)} wrong answers"
        )
        print(f"  before {report.before}\n  after  {report.after}")
        print(f"  memory of the core: {report.core_rss_growth_bytes / 2**20:+.1f} MiB")
        for line in report.wrong[:20]:
            print(f"  {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
