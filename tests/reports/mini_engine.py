"""A toy continuous-batching engine in plain Python: just enough to fill the tables of a run with figures that
hang together.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

BASE_NS = 5_000_000_000_000
MS = 1_000_000


@dataclass
class Traffic:
    """One request and what has become of it."""

    request_id: str
    group: str
    arrival_ns: int
    prompt: int
    output: int
    computed: int = 0
    made: int = 0
    scheduled: bool = False
    token_ns: list[int] = field(default_factory=list)

    @property
    def target(self) -> int:
        return self.prompt + self.made


def traffic(count: int, seed: int, hostile: bool = False) -> list[Traffic]:
    """Short chats with a long document every fifth request, Poisson arrivals."""
    rng = random.Random(seed)
    now, found = BASE_NS, []
    for i in range(count):
        now += int(rng.expovariate(1 / 95.0) * MS)
        document = i % 5 == 4
        prompt = rng.randint(900, 1600) if document else rng.randint(24, 120)
        name = f"req-{i:04d}" if not (hostile and i == 0) else "</script><img src=x onerror=alert(1)>"
        found.append(
            Traffic(
                name, "document" if document else "chat", now, prompt, 8 if document else rng.randint(20, 48)
            )
        )
    return found


def play(
    requests: list[Traffic],
    chunk: int,
    seed: int,
    kv_blocks: int = 320,
    speed: float = 1.0,
    max_seqs: int = 8,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Serve ``requests``; returns rows of the step table and of the event table. ``speed`` scales every
    step's cost.
    """
    rng = random.Random(seed)
    steps: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    waiting: list[Traffic] = []
    running: list[Traffic] = []
    coming = sorted(requests, key=lambda r: r.arrival_ns)
    now = coming[0].arrival_ns if coming else BASE_NS
    cached = 0

    def event(
        t_ns: int, request: Traffic, kind: str, step: int | None, tokens: int | None, **more: Any
    ) -> None:
        row = {
            "t_ns": t_ns,
            "request_id": request.request_id,
            "core_id": f"{request.request_id}-0",
            "kind": kind,
        }
        events.append({**row, "step_id": step, "tokens": tokens, "value": None, "detail": None, **more})

    def used() -> int:
        return sum(-(-r.computed // 16) for r in running)

    while coming or waiting or running:
        if not running and not waiting:
            now = max(now, coming[0].arrival_ns)
        while coming and coming[0].arrival_ns <= now:
            request = coming.pop(0)
            waiting.append(request)
            event(request.arrival_ns, request, "queued", None, request.prompt)
        step_id, budget, plan, preempted, lost = len(steps), chunk, [], 0, 0
        while used() > kv_blocks - len(running) and len(running) > 1:
            victim = running.pop()
            preempted, lost = preempted + 1, lost + victim.computed
            event(now, victim, "preempted", step_id, victim.computed)
            victim.computed = 0
            waiting.insert(0, victim)
        for request in running:
            share = min(budget, request.target - request.computed)
            if share > 0:
                plan.append((request, share, request.computed))
                budget -= share
        stop = "preempted" if preempted else "queue_empty"
        while waiting and not preempted:
            stop = ""
            request = waiting[0]
            if budget <= 0:
                stop = "token_budget"
            elif len(running) >= max_seqs:
                stop = "max_num_seqs"
            elif used() + -(-request.target // 16) > kv_blocks:
                stop = "kv_blocks"
            if stop:
                break
            waiting.pop(0)
            running.append(request)
            share = min(budget, request.target - request.computed)
            plan.append((request, share, request.computed))
            budget -= share
            stop = "queue_empty"
        rows = [(r, q, c, q > 1 or c < r.prompt) for r, q, c in plan]
        prefill = sum(q for _, q, _, p in rows if p)
        decode = sum(q for _, q, _, p in rows if not p)
        context = sum(c + q for _, q, c, _ in rows)
        cost = (4.0 + 0.16 * (prefill + decode) + 0.0011 * context) * speed * rng.uniform(0.95, 1.06)
        marks = [now + int(part * cost * MS) for part in (0.02, 0.05, 0.93, 0.97, 1.0)]
        for request, share, mark, is_prefill in rows:
            if is_prefill:
                event(marks[0], request, "scheduled", step_id, share, value=mark)
            request.scheduled = True
            request.computed += share
            if request.computed >= request.target:
                request.made += 1
                request.token_ns.append(marks[-1])
                if request.made == 1:
                    event(marks[-1], request, "first_token", step_id, 1)
        for request in [r for r in running if r.made >= r.output]:
            running.remove(request)
            cached = min(kv_blocks // 2, cached + request.computed // 16)
            event(marks[-1], request, "finished", step_id, request.made, detail="length")
        in_use = min(used(), kv_blocks)
        evicted = max(0, in_use + cached - kv_blocks)
        cached -= evicted
        steps.append(
            {
                "step_id": step_id,
                **dict(zip(("t_start",), (now,), strict=True)),
                **dict(
                    zip(("t_schedule", "t_prepare", "t_forward", "t_sample", "t_end"), marks, strict=True)
                ),
                "num_prefill_reqs": sum(p for *_, p in rows),
                "num_decode_reqs": sum(not p for *_, p in rows),
                "prefill_tokens": prefill,
                "decode_tokens": decode,
                "prefill_sum_sk": sum(c + q for _, q, c, p in rows if p),
                "prefill_sum_sq2": sum(q * q for _, q, _, p in rows if p),
                "prefill_sum_sqsk": sum(q * (c + q) for _, q, c, p in rows if p),
                "decode_sum_sk": sum(c + q for _, q, c, p in rows if not p),
                "num_running": len(running),
                "num_waiting": len(waiting),
                "admission_stop": stop,
                "kv_used": in_use,
                "kv_free": kv_blocks - in_use - cached,
                "kv_cached": cached,
                "kv_evicted": evicted,
                "prefix_query_tokens": prefill,
                "prefix_hit_tokens": 0,
                "num_preempted": preempted,
                "preempted_tokens": lost,
            }
        )
        now = marks[-1] + MS // 10
    return steps, events
