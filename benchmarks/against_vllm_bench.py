"""Our client beside ``vllm bench serve``: the same server, the same shape of load, in turns.

    python -m benchmarks.against_vllm_bench --base-url URL --vllm PATH --tokenizer PATH [--rounds 5]

Each round runs both tools once, in an order that turns from round to round, with prompts that the server has
not seen: theirs get another seed, ours a new nonce. Both write vLLM's result keys, so that each line compares
the same key; what it means in either is in docs/metrics.md ("Other tools"). Printed per key: medians over the
rounds, the geometric mean of the paired ratios ours / theirs and its 95 % interval (Student's t over the
logarithms), and whether the interval holds 1: then the rounds do not tell the two apart.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scipy import stats

LATENCIES = ("ttft", "tpot", "itl", "e2el")
KEYS = (
    *(f"{statistic}_{name}_ms" for name in LATENCIES for statistic in ("mean", "median", "p99")),
    "output_throughput",
    "total_input_tokens",
    "total_output_tokens",
    "completed",
)
"""Keys of the result file, ms and tokens/s; the last three are no measure but must agree."""
_WARMUPS = 4
_TIMEOUT_S = 1800.0
Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Load:
    """What both send: a closed loop of prompts of random tokens."""

    base_url: str
    model: str
    input_len: int
    output_len: int
    concurrency: int
    num_prompts: int

    def common(self, seed: int) -> list[str]:
        """Flags that both tools spell alike."""
        values = {
            "base-url": self.base_url,
            "model": self.model,
            "dataset-name": "random",
            "random-input-len": self.input_len,
            "random-output-len": self.output_len,
            "num-prompts": self.num_prompts,
            "max-concurrency": self.concurrency,
            "num-warmups": _WARMUPS,
            "seed": seed,
        }
        return [part for name, value in values.items() for part in (f"--{name}", str(value))]


@dataclass(frozen=True, slots=True)
class Line:
    """One key over all rounds."""

    key: str
    ours: float
    theirs: float
    """Medians."""
    ratio: float
    low: float
    high: float
    """95 % interval of the ratio; nan with one round."""

    @property
    def covered(self) -> str:
        if math.isnan(self.low):
            return "one round"
        return "yes" if self.low <= 1.0 <= self.high else "NO"


def run_ours(load: Load, seed: int, folder: Path) -> Result:
    """One run of this client. Raises SystemExit with its last words when it fails."""
    flags = ["--save-result", "--result-dir", str(folder), "--result-filename", "ours.json"]
    flags += ["--runs-dir", str(folder / "runs"), "--no-progress", "--extra-body", '{"temperature": 0}']
    return _run(
        [sys.executable, "-m", "workbench", "bench", *load.common(seed), *flags], folder / "ours.json"
    )


def run_theirs(load: Load, seed: int, folder: Path, vllm: Path, tokenizer: str) -> Result:
    """One run of ``vllm bench serve``. Raises as :func:`run_ours`."""
    flags = ["--backend", "openai", "--endpoint", "/v1/completions", "--ignore-eos", "--temperature", "0"]
    flags += ["--tokenizer", tokenizer, "--percentile-metrics", ",".join(LATENCIES), "--disable-tqdm"]
    flags += ["--save-result", "--result-dir", str(folder), "--result-filename", "theirs.json"]
    return _run([str(vllm), "bench", "serve", *load.common(seed), *flags], folder / "theirs.json")


def _run(command: list[str], result: Path) -> Result:
    result.unlink(missing_ok=True)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if not result.exists():
        last = " | ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise SystemExit(f"error: {Path(command[0]).name} wrote no result (exit {done.returncode}): {last}")
    found: Result = json.loads(result.read_text())
    return found


def compare(key: str, pairs: list[tuple[float, float]]) -> Line:
    """``pairs``: (ours, theirs) of each round, all above 0."""
    logs = [math.log(ours / theirs) for ours, theirs in pairs]
    mean, half = statistics.fmean(logs), math.nan
    if len(logs) > 1:
        half = float(stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Line(key, ours, theirs, math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def lines_of(rounds: list[tuple[Result, Result]]) -> list[Line]:
    """One line for each key that is above 0 on both sides in all rounds."""
    lines = []
    for key in KEYS:
        pairs = [(ours.get(key) or 0.0, theirs.get(key) or 0.0) for ours, theirs in rounds]
        if all(value > 0 for pair in pairs for value in pair):
            lines.append(compare(key, pairs))
    return lines


def show(lines: list[Line]) -> None:
    head = f"{'key':22} {'ours':>10} {'theirs':>10} {'ratio':>7}  {'95 % interval':>15}  within the spread"
    print(head + "\n" + "-" * len(head))
    for line in lines:
        interval = "-" if math.isnan(line.low) else f"{line.low:.3f} .. {line.high:.3f}"
        medians = f"{line.ours:10.2f} {line.theirs:10.2f} {line.ratio:7.3f}"
        print(f"{line.key:22} {medians}  {interval:>15}  {line.covered}")


def model_of(url: str) -> str:
    """The first model that the server offers. Raises ValueError, with one line, when none does."""
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (urllib.error.URLError, OSError, ValueError, LookupError) as error:
        raise ValueError(f"--base-url {url!r}: no server with /v1/models there ({error})") from None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base-url", required=True, help="of a running OpenAI-compatible server")
    parser.add_argument("--vllm", type=Path, required=True, help="the vllm executable")
    parser.add_argument("--tokenizer", required=True, help="folder or name, for vllm bench serve")
    parser.add_argument("--model", help="name in the API; default: the first of /v1/models")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--random-input-len", type=int, default=256)
    parser.add_argument("--random-output-len", type=int, default=64)
    parser.add_argument("--max-concurrency", type=int, default=4)
    parser.add_argument("--num-prompts", type=int, default=24)
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="of the first round; else the time"
    )
    parser.add_argument("--json", type=Path, help="write all results and lines here")
    flags = parser.parse_args()
    if not flags.vllm.is_file():
        parser.error(f"--vllm {str(flags.vllm)!r}: no such file")
    if flags.rounds < 1:
        parser.error(f"--rounds {flags.rounds}: at least 1")
    url = flags.base_url.rstrip("/")
    try:
        model = flags.model or model_of(url)
    except ValueError as error:
        parser.error(str(error))
    load = Load(
        url,
        model,
        flags.random_input_len,
        flags.random_output_len,
        flags.max_concurrency,
        flags.num_prompts,
    )
    rounds: list[tuple[Result, Result]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(flags.rounds):
            seed = flags.seed + number
            if number % 2 == 0:
                ours = run_ours(load, seed, folder)
                theirs = run_theirs(load, seed, folder, flags.vllm, flags.tokenizer)
            else:
                theirs = run_theirs(load, seed, folder, flags.vllm, flags.tokenizer)
                ours = run_ours(load, seed, folder)
            rounds.append((ours, theirs))
            rates = f"{ours['output_throughput']:.1f} and {theirs['output_throughput']:.1f} tok/s"
            print(f"round {number + 1}: ours and theirs {rates}", file=sys.stderr, flush=True)
    lines = lines_of(rounds)
    show(lines)
    if flags.json is not None:
        told = [{**asdict(line), "covered": line.covered} for line in lines]
        flags.json.write_text(json.dumps({"lines": told, "rounds": rounds}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
