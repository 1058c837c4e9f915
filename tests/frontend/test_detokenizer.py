"""Incremental detokenising: pieces join to the whole, no half characters, nothing taken back."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from engine.frontend.detokenizer import IncrementalDetokenizer
from tests.frontend.byte_tokenizer import BOS, EOS, VOCAB_SIZE, ByteTokenizer

TOKENIZER = ByteTokenizer()


def pieces_of(token_ids: list[int], skip: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(TOKENIZER, skip_special_tokens=skip)
    return [*map(detokenizer.append, token_ids), detokenizer.finish()]


@given(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40), st.booleans())
def test_pieces_join_to_the_whole_text(token_ids: list[int], skip: bool) -> None:
    assert "".join(pieces_of(token_ids, skip)) == TOKENIZER.decode(token_ids, skip_special_tokens=skip)


@given(st.text(max_size=12), st.data())
@example("a😀é𝄞", None)
def test_valid_text_never_shows_a_replacement_character_on_the_way(
    text: str, data: st.DataObject | None
) -> None:
    raw = list(text.encode("utf-8", "replace").replace(b"?", b"x"))
    pieces = pieces_of(raw, skip=True)
    assert "".join(pieces) == bytes(raw).decode()
    assert all(bytes(raw).decode().startswith("".join(pieces[:end])) for end in range(len(pieces)))


def test_an_emoji_over_four_tokens_comes_whole() -> None:
    assert pieces_of(list("😀!".encode()), skip=True) == ["", "", "", "😀", "!", ""]


def test_an_unfinished_character_becomes_one_replacement_at_the_end() -> None:
    assert pieces_of(list("a😀".encode()[:-1]), skip=True) == ["a", "", "", "", "\ufffd"]


def test_bytes_that_can_not_go_on_are_replaced_at_once() -> None:
    assert pieces_of([0xF0, 0x9F, ord("x"), 0xFF], skip=True) == ["", "", "\ufffdx", "\ufffd", ""]


def test_special_tokens() -> None:
    assert "".join(pieces_of([BOS, 65, EOS], skip=True)) == "A"
    assert "".join(pieces_of([BOS, 65, EOS], skip=False)) == "<bos>A<eos>"
    emoji = list("😀".encode())
    assert "".join(pieces_of([*emoji[:2], EOS, *emoji[2:]], skip=True)) == "😀"
