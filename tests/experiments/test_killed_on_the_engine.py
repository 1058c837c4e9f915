"""kill -9 in the middle of a run of the real engine: nothing is left running, resume completes the design."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from experiments.models import SweepResult
from tests.helpers.tiny_model import make_tiny_model

WORKLOAD = """
num_requests = 6
slo = "ttft:60000 itl:60000"
[arrivals]
kind = "poisson"
rate = 50.0
[[classes]]
name = "chat"
input_tokens = [8, 24]
output_tokens = 6
"""


def workbench(*words: str) -> list[str]:
    return [sys.executable, "-m", "workbench", "sweep", *words]


def events(root: Path) -> list[dict[str, Any]]:
    text = "".join(path.read_text() for path in root.glob("sweep-*/ledger.jsonl"))
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def engines(root: Path) -> list[int]:
    """Processes that were started for runs under ``root``."""
    mark = str(root)
    return [p.pid for p in psutil.process_iter(["cmdline"]) if mark in " ".join(p.info["cmdline"] or [])]


def test_kill_9_in_the_middle_of_a_run_then_resume(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(WORKLOAD)
    model, root = make_tiny_model(tmp_path / "model"), tmp_path / "runs"
    sweep = subprocess.Popen(
        workbench(
            "--param", "chunk_size", "--values", "64", "--baseline", "128", "--blocks", "1", "--pilot", "0",
            "--confirm", "0", "--request-rate", "50", "--num-prompts", "6", "--metric", "ttft_p50",
            "--workload", str(tmp_path / "tiny.toml"), "--model", str(model), "--num-threads", "1",
            "--dtype", "float32", "--num-gpu-blocks-override", "80", "--runs-dir", str(root),
        ),
        start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and sweep.poll() is None:
            kinds = [event["event"] for event in events(root)]
            if kinds[-1:] == ["started"] and "finished" in kinds and engines(root):
                break
            time.sleep(0.05)
    finally:
        os.kill(sweep.pid, signal.SIGKILL)
        sweep.wait()
    before = events(root)
    assert Counter(event["event"] for event in before)["finished"] == 1
    assert before[-1]["event"] == "started"
    deadline = time.monotonic() + 30
    while engines(root) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert engines(root) == []
    name = next(root.glob("sweep-*")).name
    done = subprocess.run(
        workbench("--resume", name, "--runs-dir", str(root), "--json"), capture_output=True, text=True,
        timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = SweepResult.model_validate_json(done.stdout)
    assert result.status == "complete"
    assert Counter(cell.level for cell in result.cells if cell.state == "DONE") == {64: 1, 128: 2}
    places = Counter(
        (e["cell"]["block"], e["cell"]["position"]) for e in events(root) if e["event"] == "finished"
    )
    assert places == {(0, position): 1 for position in range(3)}
