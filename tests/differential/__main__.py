"""``python -m tests.differential --scenarios 5000 [--backend cpu] [--minutes 15]``: the long run."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time

from rich.progress import track

from tests.differential.backends import BACKENDS
from tests.differential.runner import Tally, run_scenario
from tests.differential.scenario import FULL


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--scenarios", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first scenario")
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="reference")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no scenario after that long")
    parser.add_argument("--full", action="store_true", help="scenarios of full size on a slow backend too")
    arguments = parser.parse_args()
    arithmetic, tally = BACKENDS[arguments.backend](), Tally()
    if arguments.full:
        arithmetic = dataclasses.replace(arithmetic, size=FULL)
    end = time.monotonic() + arguments.minutes * 60
    for seed in track(range(arguments.first, arguments.first + arguments.scenarios), "scenarios"):
        if time.monotonic() >= end:
            break
        run_scenario(seed, arithmetic, tally)
    print(
        f"{tally.scenarios} scenarios, {tally.requests} requests ({tally.aborted} aborted), "
        f"{tally.tokens} tokens, "
        f"{tally.preemptions} preemptions, {tally.prefix_hit_tokens} tokens from the prefix cache: "
        f"{len(tally.mismatches)} mismatches"
    )
    for line in tally.mismatches[:20]:
        print(line)
    return 1 if tally.mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
