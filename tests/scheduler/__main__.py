"""``python -m tests.scheduler [--steps 50000] [--first 0]``: random lives, and their steps a second."""

from __future__ import annotations

import argparse
import sys
import time

from tests.scheduler.lives import live


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scheduler", description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first life")
    arguments = parser.parse_args()
    steps = preemptions = lives = 0
    began = time.perf_counter()
    while steps < arguments.steps:
        seed = arguments.first + lives
        try:
            more_steps, more_preemptions = live(seed)
        except Exception:
            print(f"life {seed}:", file=sys.stderr)
            raise
        lives, steps, preemptions = lives + 1, steps + more_steps, preemptions + more_preemptions
    seconds = time.perf_counter() - began
    print(
        f"{steps} steps of {lives} lives, {preemptions} preemptions, torch loaded: {'torch' in sys.modules}; "
        f"{steps / seconds:.0f} steps a second"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
