"""Hand-made Kineto traces."""

from __future__ import annotations

from typing import Any

from workbench.profiling.kineto import KinetoTrace, collect


def kernel(ts, dur, correlation=None, name="gemm", stream=7, cat="kernel", **args) -> dict[str, Any]:
    found = {"device": 0, "stream": stream, **args}
    if correlation is not None:
        found["correlation"] = correlation
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": found}


def call(
    ts, dur, correlation=None, name="cudaLaunchKernel", tid=1, cat="cuda_runtime", **args
) -> dict[str, Any]:
    found = dict(args) if correlation is None else {"correlation": correlation, **args}
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": tid, "ts": ts, "dur": dur, "args": found}


def step(number, ts, dur) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"step#{number}",
        "pid": 9,
        "tid": 1,
        "ts": ts,
        "dur": dur,
    }


def trace(*events) -> KinetoTrace:
    return collect(events)
