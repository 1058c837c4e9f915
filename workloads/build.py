"""From a spec to the list of requests: one global schedule, the same bytes whatever the number of workers."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workloads import text
from workloads.arrivals import offsets_ns
from workloads.content import DEFAULT_VOCAB_SIZE, block_prompts, id_range, prompt_ids, random_prompts
from workloads.entropy import entropy
from workloads.errors import WorkloadError
from workloads.lengths import sample
from workloads.request import Built, WorkloadRequest
from workloads.sessions import sessions
from workloads.sources import JsonlSource, SessionsSource, ShareGptSource, SonnetSource, TraceSource
from workloads.spec import WorkloadSpec
from workloads.tokens import TokenCounter, estimate
from workloads.traces import read_trace, select
from workloads.traces.select import offsets_ns as trace_offsets


def build(spec: WorkloadSpec, **options: Any) -> list[WorkloadRequest]:
    """The requests of :func:`build_all`."""
    return build_all(spec, **options).requests


def build_all(
    spec: WorkloadSpec,
    *,
    seed: int,
    nonce: str,
    num_requests: int | None = None,
    duration_s: float | None = None,
    rate: float | None = None,
    vocab_size: int | None = None,
    max_model_len: int | None = None,
    count_tokens: TokenCounter | None = None,
) -> Built:
    """Build the requests of ``spec``, in order of sending.

    ``seed`` fixes the shape (arrivals, lengths, mix, order, think times); ``nonce`` changes the content
    and nothing
    else, so a second run never measures the prefix cache that the first one filled (unless
    ``spec.reuse_content``).

    Args:
        num_requests: default: the spec's (a trace: all rows). With ``duration_s`` too: whatever ends first.
            For sessions: how many of these.
        duration_s: last arrival lies before this many seconds (not in a closed loop or a burst).
        rate: requests per second; default: the spec's.
        vocab_size: size of the model's vocabulary; ids are drawn from its middle, where no special tokens
        lie.
        max_model_len: the model's context; a workload that may not fit is refused.
        count_tokens: length of texts; default: an estimate.

    Raises:
        WorkloadError: the request list can't be made as asked.
    """
    _fits(spec, spec.max_total_tokens, max_model_len)
    maker = _Maker(spec, seed, nonce, vocab_size or DEFAULT_VOCAB_SIZE, count_tokens)
    rate = rate if rate is not None else spec.arrivals.rate
    built = maker.make(num_requests, duration_s, rate)
    if spec.max_total_tokens is None:
        longest = max(((r.num_prompt_tokens or 0) + r.max_tokens for r in built.requests), default=0)
        _fits(spec, longest, max_model_len)
    return built


def _fits(spec: WorkloadSpec, needed: int | None, room: int | None) -> None:
    if needed is not None and room is not None and needed > room:
        raise WorkloadError(
            "workload", spec.name, f"up to {room} tokens (the model's context); a request needs {needed}"
        )


class _Maker:
    """One build: the spec and its streams of randomness."""

    def __init__(
        self, spec: WorkloadSpec, seed: int, nonce: str, vocab_size: int, count_tokens: TokenCounter | None
    ) -> None:
        self._spec = spec
        self._nonce = "" if spec.reuse_content else nonce
        self._content = entropy("content", seed, self._nonce)
        self._vocab_size = vocab_size
        self._count_tokens = count_tokens or estimate
        shape = np.random.default_rng(entropy("shape", seed))
        self._arrivals_rng, self._mix_rng, self._length_rng = shape.spawn(3)
        self._notes: dict[str, Any] = {}
        if isinstance(spec.source, (ShareGptSource, SonnetSource)):
            self._notes["token_counts"] = "tokenizer" if count_tokens else "estimate: 4 bytes a token"

    def make(self, num_requests: int | None, duration_s: float | None, rate: float | None) -> Built:
        source, arrivals = self._spec.source, self._spec.arrivals
        if num_requests is None and duration_s is None:
            # Stages say themselves how long they last.
            duration_s = arrivals.stage_seconds
        if isinstance(source, TraceSource):
            return self._trace(source, num_requests, duration_s, rate)
        if isinstance(source, JsonlSource):
            requests, notes = text.jsonl(source, num_requests or self._spec.num_requests)
            self._notes |= notes | _digest(source.path)
            as_they_are = sum(r.prompt_token_ids is not None for r in requests)
            if self._nonce and as_they_are:
                # No text in front of them would be neutral: a second run may find them in a cache.
                self._notes["token_ids_sent_as_they_are"] = as_they_are
            if arrivals.kind == "trace":
                return Built(self._at_their_times(requests, duration_s), self._notes)
            return Built(self._scheduled(requests, duration_s, rate), self._notes)
        count, limit = self._count(num_requests, duration_s, rate)
        offsets = offsets_ns(arrivals, count, rate, self._arrivals_rng)
        if offsets is not None:
            if duration_s is not None:
                offsets = offsets[offsets < duration_s * 1e9][:limit]
            count = len(offsets)
        requests = self._requests(count)
        return Built(self._placed(requests, offsets), self._notes)

    def _requests(self, count: int) -> list[WorkloadRequest]:
        source = self._spec.source
        if source is None:
            return self._classes(count)
        if isinstance(source, SessionsSource):
            extra = {"temperature": self._spec.temperature}
            turns = sessions(source, count, self._length_rng, self._content, id_range(self._vocab_size))
            return [replace(turn, extra_body=extra) for turn in turns]
        if isinstance(source, ShareGptSource):
            requests, notes = text.sharegpt(source, count, self._count_tokens, self._mix_rng)
            notes |= _digest(source.path)
        elif isinstance(source, SonnetSource):
            requests, notes = text.sonnet(source, count, self._count_tokens, self._length_rng, self._content)
        else:
            raise WorkloadError("source.kind", source.kind, "a source with a schedule of its own")
        self._notes |= notes
        return self._own(requests)

    def _classes(self, count: int) -> list[WorkloadRequest]:
        spec = self._spec
        classes = _mix(spec, count, self._mix_rng)
        inputs, outputs = np.empty(count, np.int64), np.empty(count, np.int64)
        for number, request_class in enumerate(spec.classes):
            mine = np.flatnonzero(classes == number)
            inputs[mine] = sample(request_class.input_tokens, len(mine), self._length_rng)
            outputs[mine] = sample(request_class.output_tokens, len(mine), self._length_rng)
        prompts = prompt_ids(spec, classes, inputs, self._vocab_size, self._content, self._mix_rng)
        extra: dict[str, Any] = {"temperature": spec.temperature}
        return [
            WorkloadRequest(
                index=i,
                offset_ns=None,
                group=spec.classes[classes[i]].name,
                max_tokens=int(outputs[i]),
                prompt_token_ids=prompts[i],
                num_prompt_tokens=int(inputs[i]),
                extra_body=extra,
            )
            for i in range(count)
        ]

    def _trace(
        self, source: TraceSource, num_requests: int | None, duration_s: float | None, rate: float | None
    ) -> Built:
        rows = select(read_trace(source.format, source.path, source.block_tokens), source, num_requests)
        replayed = self._spec.arrivals.kind == "trace"
        if replayed:
            order, offsets = trace_offsets(rows, source, self._arrivals_rng)
            if duration_s is not None:
                inside = offsets < duration_s * 1e9
                rows.counts["dropped_beyond_duration"] = int((~inside).sum())
                order, offsets = order[inside], offsets[inside]
            rows = rows.take(order)
        span = id_range(self._vocab_size)
        if rows.blocks is not None:
            prompts = block_prompts(rows.blocks, rows.input_tokens, span, self._content)
            self._notes["shared_content"] = "hash_ids"
        else:
            prompts = random_prompts(rows.input_tokens, span, self._content)
            self._notes["shared_content"] = "none: the trace does not tell, every prompt is its own"
        extra: dict[str, Any] = {"temperature": self._spec.temperature}
        requests = [
            WorkloadRequest(
                index=i,
                offset_ns=int(offsets[i]) if replayed else None,
                group=source.format,
                max_tokens=int(rows.output_tokens[i]),
                prompt_token_ids=prompts[i],
                num_prompt_tokens=int(rows.input_tokens[i]),
                extra_body=extra,
            )
            for i in range(len(rows))
        ]
        self._notes |= {"trace": dict(rows.counts), **_digest(source.path)}
        return Built(requests if replayed else self._scheduled(requests, duration_s, rate), self._notes)

    def _scheduled(
        self, requests: list[WorkloadRequest], duration_s: float | None, rate: float | None
    ) -> list[WorkloadRequest]:
        """As many of ``requests`` as the arrivals allow, at their times."""
        offsets = offsets_ns(self._spec.arrivals, len(requests), rate, self._arrivals_rng)
        if offsets is not None and duration_s is not None:
            offsets = offsets[offsets < duration_s * 1e9]
        kept = requests if offsets is None else requests[: len(offsets)]
        return self._placed(self._own(kept), offsets)

    def _at_their_times(
        self, requests: list[WorkloadRequest], duration_s: float | None
    ) -> list[WorkloadRequest]:
        if any(r.offset_ns is None for r in requests):
            raise WorkloadError("arrivals.kind", "trace", "a file whose every line has a timestamp")
        ordered = sorted(requests, key=lambda r: r.offset_ns or 0)
        first = ordered[0].offset_ns or 0
        times = [(r.offset_ns or 0) - first for r in ordered]
        kept = sum(t < duration_s * 1e9 for t in times) if duration_s is not None else len(times)
        moved = [replace(r, index=i, offset_ns=times[i]) for i, r in enumerate(ordered[:kept])]
        return self._own(moved)

    def _own(self, requests: list[WorkloadRequest]) -> list[WorkloadRequest]:
        """Text gets the nonce in front; every body the spec's sampling unless it brings its own."""
        common = {"temperature": self._spec.temperature}
        return [
            replace(
                r,
                extra_body={**common, **r.extra_body},
                **(text.tagged(r, self._nonce, r.index) if self._nonce else {}),
            )
            for r in requests
        ]

    def _placed(
        self, requests: list[WorkloadRequest], offsets: NDArray[np.int64] | None
    ) -> list[WorkloadRequest]:
        if offsets is None:
            return [replace(r, offset_ns=None) for r in requests]
        at = iter(offsets.tolist())
        return [replace(r, offset_ns=next(at) if r.turn == 0 else None) for r in requests]

    def _count(
        self, num_requests: int | None, duration_s: float | None, rate: float | None
    ) -> tuple[int, int | None]:
        """(how many arrivals to draw, how many to keep at most)."""
        spec, arrivals = self._spec, self._spec.arrivals
        if num_requests is not None and num_requests < 1:
            raise WorkloadError("num_requests", num_requests, "at least 1")
        if duration_s is None:
            return (num_requests if num_requests is not None else spec.num_requests), None
        if duration_s <= 0:
            raise WorkloadError("duration", duration_s, "seconds, above 0")
        if not arrivals.stages and (not arrivals.open_rate or rate is None):
            raise WorkloadError(
                "duration", duration_s, "only for arrivals with a rate (else use num_requests or max_seconds)"
            )
        return self._drawn_for(duration_s, rate), num_requests

    def _drawn_for(self, seconds: float, rate: float | None) -> int:
        """Enough that the last arrival lies behind the end, whatever the seed; the rest is cut off."""
        arrivals = self._spec.arrivals
        if arrivals.stages:
            beyond = max(0.0, seconds - (arrivals.stage_seconds or 0.0))
            expected = sum(s.expected for s in arrivals.stages) + beyond * arrivals.stages[-1].last_rate
        else:
            expected = (rate or 0.0) * seconds
        spread = 1.0 / min(arrivals.burstiness, 1.0) if arrivals.kind == "gamma" else 1.0
        return int(expected + 10.0 * np.sqrt(expected * spread) + 20.0 * spread)


def _mix(spec: WorkloadSpec, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Class number of each request: shares by largest remainder, so every seed has the same mix, in random
    order."""
    weights = np.array([c.weight for c in spec.classes])
    exact = count * weights / weights.sum()
    counts = np.floor(exact).astype(np.int64)
    short = count - int(counts.sum())
    # Stable: equal remainders go to the class named first.
    counts[np.argsort(-(exact - counts), kind="stable")[:short]] += 1
    return rng.permutation(np.repeat(np.arange(len(weights)), counts))


def _digest(path: str) -> dict[str, str]:
    return {"file_sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest()}
