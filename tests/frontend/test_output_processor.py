"""From sequences to requests: parents and children, aborts, failures, late news."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.config import EngineConfig
from engine.errors import EngineDeadError
from engine.frontend.output_processor import OutputProcessor
from engine.frontend.outputs import RequestOutput
from engine.frontend.processor import InputProcessor, ProcessedRequest
from engine.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    RequestTimings,
    SchedulerStats,
    TokenLogprobs,
)
from engine.sampling_params import SamplingParams
from tests.frontend.byte_tokenizer import ByteTokenizer
from tests.frontend.engines import info_for

STATS = SchedulerStats(
    num_running=0, num_waiting=0, kv_blocks_total=1, kv_blocks_used=0, num_preemptions=0,
    prefix_cache_queries=0, prefix_cache_hits=0, resumed_prefix_cache_queries=0, resumed_prefix_cache_hits=0,
    prompt_tokens_recomputed=0, num_steps=0, last_step_tokens=0,
)  # fmt: skip


class Bench:
    """An output processor and everything it handed out."""

    def __init__(self) -> None:
        config = EngineConfig()
        self.inputs = InputProcessor(config, info_for(config), ByteTokenizer())
        self.outputs = OutputProcessor(ByteTokenizer())
        self.news: list[RequestOutput | Exception] = []

    def add(self, request_id: str = "r", **params: Any) -> tuple[ProcessedRequest, Any]:
        request = self.inputs.process("prompt", SamplingParams(**params), request_id)
        return request, self.outputs.add(request, self.news.append)

    def step(self, *outputs: EngineCoreOutput, timestamp_ns: int = 0) -> list[str]:
        return self.outputs.process(
            EngineCoreOutputs(outputs=list(outputs), stats=STATS, step_tokens=0, timestamp_ns=timestamp_ns)
        )


def out(core_id: str, tokens: bytes, finish: FinishReason | None = None, **more: Any) -> EngineCoreOutput:
    return EngineCoreOutput(request_id=core_id, new_token_ids=list(tokens), finish_reason=finish, **more)


def test_a_parent_is_finished_with_its_last_child() -> None:
    bench = Bench()
    request, _ = bench.add(n=2)
    first, second = (child.request_id for child in request.children)
    bench.step(out(first, b"a"), out(second, b"b"))
    bench.step(out(second, b"c", FinishReason.LENGTH))
    bench.step(out(first, b"d", FinishReason.STOP))
    seen = [(o.outputs[0].index, o.outputs[0].text, o.finished) for o in bench.news]  # type: ignore[union-attr]
    assert seen == [(0, "a", False), (1, "b", False), (1, "c", False), (0, "", True)]
    assert bench.outputs.num_sequences == 0


def test_news_of_unknown_sequences_is_ignored() -> None:
    bench = Bench()
    request, live = bench.add()
    core_id = request.children[0].request_id
    assert bench.outputs.remove(live) == [core_id]
    assert bench.outputs.remove(live) == []
    assert bench.step(out(core_id, b"late", FinishReason.ABORT), out("never", b"x")) == []
    assert bench.news == []


def test_a_stop_string_is_told_to_the_core_unless_it_knows() -> None:
    bench = Bench()
    request, _ = bench.add(stop=("b",), n=2)
    first, second = (child.request_id for child in request.children)
    assert bench.step(out(first, b"ab")) == [first]
    assert bench.step(out(first, b"", FinishReason.ABORT), out(second, b"ab", FinishReason.LENGTH)) == []
    assert [o.outputs[0].finish_reason for o in bench.news] == [FinishReason.STOP] * 2  # type: ignore[union-attr]


FIRST = RequestTimings(
    arrival_ns=1, queued_ns=2, scheduled_ns=3, first_token_ns=4, last_token_ns=4, num_preemptions=0
)


@pytest.mark.parametrize("how", ["stop string", "abort", "core"])
def test_whatever_ends_a_sequence_its_timings_are_whole(how: str) -> None:
    """The core sends its stamps with the first token and with its own end; a stop string is not its own."""
    bench = Bench()
    request, _ = bench.add(stop=("END",))
    core_id = request.children[0].request_id
    bench.step(out(core_id, b"x", timings=FIRST), timestamp_ns=5)
    bench.step(out(core_id, b"E"), timestamp_ns=60)
    if how == "stop string":
        bench.step(out(core_id, b"ND"), timestamp_ns=70)
    elif how == "abort":
        bench.outputs.abort(["r"])
    else:
        whole = msgspec.structs.replace(FIRST, last_token_ns=69)
        bench.step(out(core_id, b"x", FinishReason.LENGTH, timings=whole), timestamp_ns=70)
    timings = [o.outputs[0].timings for o in bench.news]  # type: ignore[union-attr]
    last_ns = {"stop string": 70, "abort": 60, "core": 69}[how]
    assert timings[-1] == msgspec.structs.replace(FIRST, last_token_ns=last_ns)
    assert timings[:-1] == [None] * (len(timings) - 1)


def test_a_stop_string_in_the_first_token_has_timings_too() -> None:
    bench = Bench()
    request, _ = bench.add(stop=("END",))
    bench.step(out(request.children[0].request_id, b"END", timings=FIRST), timestamp_ns=5)
    (only,) = bench.news
    assert only.outputs[0].timings == FIRST  # type: ignore[union-attr]


def test_an_abort_by_id_reaches_every_request_of_that_id_and_its_streams_end() -> None:
    bench = Bench()
    one, _ = bench.add("same", n=2, stop=("zz",))
    two, _ = bench.add("same")
    other, _ = bench.add("other")
    bench.step(out(one.children[0].request_id, b"az"))
    ids = bench.outputs.abort(["same", "unknown"])
    assert sorted(ids) == sorted(c.request_id for c in (*one.children, *two.children))
    first, of_one, of_two = bench.news
    assert (first.outputs[0].text, first.finished) == ("a", False)  # type: ignore[union-attr]
    assert of_one.finished  # type: ignore[union-attr]
    assert of_two.finished  # type: ignore[union-attr]
    assert [(c.index, c.text, c.finish_reason) for c in of_one.outputs] == [  # type: ignore[union-attr]
        (0, "z", FinishReason.ABORT),
        (1, "", FinishReason.ABORT),
    ]
    assert bench.outputs.num_sequences == 1
    assert bench.outputs.abort(["same"]) == []
    bench.step(out(other.children[0].request_id, b"x", FinishReason.LENGTH))
    assert bench.news[-1].request_id == "other"  # type: ignore[union-attr]


def test_a_failed_child_ends_its_whole_request_and_nothing_else() -> None:
    bench = Bench()
    request, _ = bench.add(n=3)
    bench.add("other")
    ids = [child.request_id for child in request.children]
    aborted = bench.step(out(ids[1], b"", FinishReason.ERROR, error="no luck"))
    assert set(ids) - {ids[1]} <= set(aborted)
    (failure,) = bench.news
    assert (failure.error, failure.finished, failure.request_id) == ("no luck", True, "r")  # type: ignore[union-attr]
    assert bench.outputs.num_sequences == 1


def test_death_reaches_every_request_once() -> None:
    bench = Bench()
    bench.add("a", n=2)
    bench.add("b")
    error = EngineDeadError("gone")
    bench.outputs.fail_all(error)
    bench.outputs.fail_all(error)
    assert bench.news == [error, error]


def test_prompt_logprobs_and_cached_tokens_come_with_the_first_delta() -> None:
    bench = Bench()
    request, _ = bench.add(prompt_logprobs=1)
    core_id = request.children[0].request_id
    scores = [None, TokenLogprobs([65, 66], [-2.0, -1.0], 5)]
    bench.step(out(core_id, b"x", prompt_logprobs=scores, num_cached_tokens=4))
    bench.step(out(core_id, b"y", FinishReason.LENGTH))
    first, last = bench.news
    assert first.prompt_logprobs is not None  # type: ignore[union-attr]
    assert first.prompt_logprobs[0] is None  # type: ignore[union-attr]
    assert [(e.decoded, e.rank) for e in first.prompt_logprobs[1]] == [("A", 5), ("B", 1)]  # type: ignore[union-attr]
    assert (last.prompt_logprobs, last.num_cached_tokens) == (None, 4)  # type: ignore[union-attr]
