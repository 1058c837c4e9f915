"""Every answer of the corpus, split at every byte: the same events, tokens and outcome, and each event comes
with the read that completes it. What the clock makes of that is measured by ``benchmarks/corpus.py``.
"""

from __future__ import annotations

import pytest

from tests.workbench.mock import send_one
from tests.workbench.sse_corpus import CORPUS, Answer
from workbench.load.errors import RequestError
from workbench.load.sse import SseParser
from workbench.load.stream import StreamState
from workbench.mock_server import Script


def fold(reads: list[bytes]) -> tuple[StreamState, str | None]:
    """Each event stamped with the number of the read that brought it (that of the end: one more)."""
    parser, stream = SseParser(), StreamState()
    try:
        for number, read in enumerate(reads):
            for event in parser.feed(read):
                stream.feed(event, number)
        for event in parser.close():
            stream.feed(event, len(reads))
    except RequestError as error:
        return stream, error.error_class
    return stream, None


def expected(answer: Answer, edges: list[int]) -> list[tuple[int, str, int]]:
    """(number of the read, kind, tokens) when the reads end at ``edges``."""
    return [
        (len(edges) if needed is None else next(i for i, edge in enumerate(edges) if edge >= needed), kind, n)
        for needed, kind, n in answer.events()
    ]


def seen(stream: StreamState) -> list[tuple[int, str, int]]:
    stream.resolve()
    return [(c.recv_ns, c.kind, c.n_tokens or 0) for c in stream.chunks]


@pytest.mark.parametrize("name", CORPUS)
def test_split_at_every_byte(name):
    answer = CORPUS[name]
    for cut in range(1, max(len(answer.data), 2)):
        stream, _ = fold([answer.data[:cut], answer.data[cut:]])
        assert seen(stream) == expected(answer, [cut, max(len(answer.data), cut)]), cut


@pytest.mark.parametrize("name", CORPUS)
def test_byte_by_byte(name):
    answer = CORPUS[name]
    stream, error = fold([answer.data[i : i + 1] for i in range(len(answer.data))])
    assert seen(stream) == expected(answer, list(range(1, len(answer.data) + 1)))
    if answer.error_class in ("stream_error", "parse"):
        assert error == answer.error_class


@pytest.mark.parametrize("name", CORPUS)
async def test_outcome_over_http(name):
    answer = CORPUS[name]
    data = answer.data
    for cuts in ((), (len(data) // 2,), tuple(range(3, len(data), 97))):
        record, arrival = await send_one(Script(raw=data.decode(), cuts=cuts), chat=True)
        assert (record.status, record.error_class) == (answer.status, answer.error_class)
        assert (record.output_tokens, record.output_tokens_source) == (answer.tokens, answer.source)
        assert len(arrival.sent_ns) == len([c for c in (*cuts, len(data)) if c])
