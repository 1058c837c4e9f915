"""One sequence: whatever the cut into tokens and steps, deltas join to the text of those who don't stream."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.frontend.outputs import CompletionOutput
from engine.frontend.sequence import SequenceOutput
from engine.messages import EngineCoreOutput, FinishReason, TokenLogprobs
from engine.sampling_params import SamplingParams
from tests.frontend.byte_tokenizer import EOS, MERGES, VOCAB_SIZE, ByteTokenizer, merge_id

TOKENIZER = ByteTokenizer()
STOP_TEXTS = ("END", "E", "ab", " Paris", "é", "😀", "\ufffd", "STOP", "a")
TOKEN = st.one_of(
    st.integers(0, VOCAB_SIZE - 1),
    st.sampled_from([merge_id(text) for text in MERGES]),
    st.sampled_from(list(b"ENDab")),
)


def stream(
    token_ids: list[int],
    params: SamplingParams,
    *,
    sizes: list[int] | None = None,
    interval: int = 1,
    finish: FinishReason = FinishReason.LENGTH,
    stop_reason: int | None = None,
) -> list[CompletionOutput]:
    """Deltas when the core reports ``token_ids`` in steps of ``sizes`` (default: one each) and then
    ``finish``.
    """
    sequence = SequenceOutput(0, params, TOKENIZER, interval)
    deltas, done, todo = [], 0, list(sizes or [])
    while done < len(token_ids) and not sequence.finished:
        size = todo.pop(0) if todo else 1
        ends = done + size >= len(token_ids)
        delta = sequence.update(
            EngineCoreOutput(
                request_id="r",
                new_token_ids=token_ids[done : done + size],
                finish_reason=finish if ends else None,
                stop_reason=stop_reason if ends else None,
            )
        )
        done += size
        if delta is not None:
            deltas.append(delta)
    return deltas


def joined(deltas: list[CompletionOutput]) -> tuple[str, list[int], FinishReason | None, int | str | None]:
    text = "".join(delta.text for delta in deltas)
    token_ids = [token for delta in deltas for token in delta.token_ids]
    assert all(delta.finish_reason is None for delta in deltas[:-1])
    return text, token_ids, deltas[-1].finish_reason, deltas[-1].stop_reason


PARAMS = st.builds(
    SamplingParams,
    stop=st.lists(st.sampled_from(STOP_TEXTS), max_size=3, unique=True).map(tuple),
    include_stop_str_in_output=st.booleans(),
    skip_special_tokens=st.booleans(),
    min_tokens=st.sampled_from([0, 0, 2, 5]),
)


@settings(max_examples=300)
@given(
    st.lists(TOKEN, min_size=1, max_size=25),
    PARAMS,
    st.lists(st.integers(1, 4)),
    st.integers(1, 7),
    st.sampled_from(["length", "stop", "abort"]),
)
def test_deltas_join_to_the_non_streamed_text(
    token_ids: list[int], params: SamplingParams, sizes: list[int], interval: int, finish: str
) -> None:
    reason = FinishReason(finish)
    at_once = stream(token_ids, params, sizes=[len(token_ids)], finish=reason)
    assert len(at_once) == 1
    expected = joined(at_once)
    assert joined(stream(token_ids, params, finish=reason)) == expected
    assert joined(stream(token_ids, params, sizes=sizes, interval=interval, finish=reason)) == expected
    if not params.stop:
        shown = token_ids
        if reason is FinishReason.STOP and not params.include_stop_str_in_output:
            shown = token_ids[:-1]
        text = TOKENIZER.decode(shown, skip_special_tokens=params.skip_special_tokens)
        assert expected == (text, token_ids, reason, None)


@given(st.lists(TOKEN, min_size=1, max_size=25), PARAMS)
def test_a_stop_string_ends_the_text_just_before_or_just_behind_it(
    token_ids: list[int], params: SamplingParams
) -> None:
    text, kept, reason, stop_reason = joined(stream(token_ids, params))
    if isinstance(stop_reason, str):
        assert reason is FinishReason.STOP
        assert len(kept) > params.min_tokens
        assert text.endswith(stop_reason) or not params.include_stop_str_in_output
        if not params.include_stop_str_in_output:
            whole = TOKENIZER.decode(kept, skip_special_tokens=params.skip_special_tokens)
            assert whole.startswith(text + stop_reason)
        if params.min_tokens == 0 and not params.include_stop_str_in_output:
            assert not any(stop in text for stop in params.stop)


def test_tokens_behind_a_stop_string_are_not_counted() -> None:
    deltas = stream(list(b"go END and more"), SamplingParams(stop=("END",)), sizes=[15])
    assert joined(deltas) == ("go ", list(b"go END"), FinishReason.STOP, "END")


def test_the_first_token_goes_out_at_once_and_then_every_interval() -> None:
    deltas = stream(list(b"abcdefgh"), SamplingParams(), interval=3)
    assert [delta.text for delta in deltas] == ["a", "bcd", "efg", "h"]


def test_a_delta_may_carry_tokens_without_text() -> None:
    deltas = stream(list("😀".encode()), SamplingParams())
    assert [(delta.text, len(delta.token_ids)) for delta in deltas] == [("", 1), ("", 1), ("", 1), ("😀", 1)]


def test_the_text_of_a_stop_token_is_left_out_unless_asked_for_but_the_token_counts() -> None:
    tokens, x = list(b"okx"), ord("x")
    out = {"finish": FinishReason.STOP, "stop_reason": x}
    assert joined(stream(tokens, SamplingParams(), **out)) == ("ok", tokens, FinishReason.STOP, x)
    included = SamplingParams(include_stop_str_in_output=True)
    assert joined(stream(tokens, included, **out)) == ("okx", tokens, FinishReason.STOP, x)
    eos = stream([*b"ok", EOS], SamplingParams(), finish=FinishReason.STOP)
    assert joined(eos) == ("ok", [*b"ok", EOS], FinishReason.STOP, None)


def test_an_abort_flushes_what_was_held_back() -> None:
    sequence = SequenceOutput(0, SamplingParams(stop=("END",)), TOKENIZER, 1)
    first = sequence.update(EngineCoreOutput(request_id="r", new_token_ids=list(b"xEN")))
    last = sequence.end(FinishReason.ABORT)
    assert first is not None
    assert last is not None
    assert (first.text, last.text, last.finish_reason) == ("x", "EN", FinishReason.ABORT)
    assert sequence.end(FinishReason.ABORT) is None


def test_logprobs_carry_the_tokens_own_bytes() -> None:
    half = merge_id("😀".encode()[:2])
    entry = TokenLogprobs([half, 65, half], [-1.0, -0.5, -1.0], 2)
    sequence = SequenceOutput(0, SamplingParams(logprobs=2), TOKENIZER, 1)
    delta = sequence.update(EngineCoreOutput(request_id="r", new_token_ids=[half], logprobs=[entry]))
    assert delta is not None
    assert delta.text == ""
    assert delta.logprobs is not None
    chosen, best, second = delta.logprobs[0]
    assert (chosen.token_bytes, chosen.decoded, chosen.rank) == ("😀".encode()[:2], "\ufffd", 2)
    assert (best.token_id, best.decoded, best.rank, second.rank) == (65, "A", 1, 2)


def test_without_detokenising_there_is_no_text() -> None:
    assert joined(stream([70, EOS], SamplingParams(detokenize=False))) == (
        "",
        [70, EOS],
        FinishReason.LENGTH,
        None,
    )
