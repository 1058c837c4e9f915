"""``python -m tests.differential --scenarios 5000 [--backend cpu] [--first 0]``: the long run."""

from __future__ import annotations

import argparse
import sys

from rich.progress import track

from tests.differential.backends import BACKENDS
from tests.differential.runner import Tally, run_scenario


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--scenarios", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first scenario")
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="reference")
    arguments = parser.parse_args()
    new_backend, tally = BACKENDS[arguments.backend](), Tally()
    for seed in track(range(arguments.first, arguments.first + arguments.scenarios), "scenarios"):
        run_scenario(seed, new_backend, tally)
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
