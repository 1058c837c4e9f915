"""The tokenizer: ids against transformers, exact bytes, chat templates, and refusals."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from engine.config import EngineConfig
from engine.errors import InvalidInputError, ModelLoadError
from engine.frontend.gguf_tokenizer import build_gguf_tokenizer
from engine.frontend.token_bytes import BYTE_TO_UNICODE
from engine.frontend.tokenizer import Tokenizer, load_tokenizer, tokenizer_from_folder
from tests.helpers.tiny_gguf import write_tiny_gguf
from tests.helpers.tiny_model import hf_config, make_tiny_model, random_tensors, tiny_tokenizer

PIECES = (
    "the", "model", " is", " small", "\n", "\n\n", "  ", "\t", "1", "42", " 7", "é", "ß", "日本", "🙂",
    "👩‍👩‍👧", "'s", "don't", ".", "...",
    "<|im_start|>", "<|im_end|>", "_", "def f():", "\u00a0", "\u0301", "Ω", "’",
)  # fmt: skip


def texts(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choice(PIECES) for _ in range(rng.randint(0, 25))) for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return tokenizer_from_folder(folder)


@pytest.fixture(scope="module")
def gguf_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    raw = hf_config()
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny_gguf(path, raw, random_tensors(raw, 0), tiny_tokenizer())
    return load_tokenizer(EngineConfig(model=str(path)))


def test_ids_and_text_equal_transformers(folder: Path, tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer

    oracle = AutoTokenizer.from_pretrained(folder)
    for text in texts(300):
        ids = tokenizer.encode(text)
        assert ids == oracle.encode(text)
        assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(ids, skip_special_tokens=False) == oracle.decode(ids) == text
        assert tokenizer.tokens(ids) == oracle.convert_ids_to_tokens(ids)
    assert tokenizer.special_ids == set(oracle.all_special_ids) == {0, 1, 2}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.vocab_size == len(oracle)


def test_gguf_gives_the_ids_of_the_folder_it_was_made_from(
    tokenizer: Tokenizer, gguf_tokenizer: Tokenizer
) -> None:
    for text in texts(300, seed=1):
        assert gguf_tokenizer.encode(text) == tokenizer.encode(text)
    assert gguf_tokenizer.special_ids == tokenizer.special_ids
    assert gguf_tokenizer.special_tokens == tokenizer.special_tokens


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_token_bytes_join_to_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_token_bytes_of_single_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(2) == b"<|im_end|>"
    parts = [tokenizer.token_bytes(index) for index in tokenizer.encode("🙂")]
    assert len(parts) == 4  # no merge covers it, so that each token is one byte, no text by itself
    assert b"".join(parts) == "🙂".encode()
    assert tokenizer.token_bytes(10**6) == b""
    assert tokenizer.token(10**6) == ""


def test_byte_alphabet_is_a_bijection_that_keeps_ascii() -> None:
    assert len(set(BYTE_TO_UNICODE.values())) == 256
    assert all(BYTE_TO_UNICODE[byte] == chr(byte) for byte in range(ord("!"), ord("~") + 1))
    assert (BYTE_TO_UNICODE[ord(" ")], BYTE_TO_UNICODE[ord("\n")]) == ("Ġ", "Ċ")
    assert set(BYTE_TO_UNICODE.values()) == set(pre_tokenizers.ByteLevel.alphabet())


def test_lone_surrogates_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidInputError, match="valid Unicode"):
        tokenizer.encode("a\ud800b")


# Sentencepiece


@pytest.fixture(scope="module")
def sentencepiece_metadata() -> dict[str, Any]:
    corpus = [
        "the capital of France is Paris",
        "a model is small and the other model is large",
        "low lower lowest",
    ]
    trained = Backend(models.BPE(byte_fallback=True, unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    trained.train_from_iterator(corpus, trainer)
    learned = [trained.id_to_token(index) for index in range(3, trained.get_vocab_size())]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *learned]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(learned))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(learned),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def test_sentencepiece_equals_transformers(sentencepiece_metadata: dict[str, Any]) -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    renamed = {key.rpartition(".")[2]: value for key, value in sentencepiece_metadata.items()}
    renamed["tokenizer_type"] = "llama"
    oracle, _ = convert_gguf_tokenizer("llama", renamed)
    ours = build_gguf_tokenizer(sentencepiece_metadata, "test")
    pieces = ("the ", "model", " low", "er", " Paris", "  ", "é", "🙂", "</s>", "\n", "France ", "a", "x")
    rng = random.Random(2)
    for _ in range(300):
        text = "".join(rng.choice(pieces) for _ in range(rng.randint(1, 15)))
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ids == oracle.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids, skip_special_tokens=False) == oracle.decode(ids, skip_special_tokens=False)


def test_sentencepiece_bytes_and_bos(sentencepiece_metadata: dict[str, Any]) -> None:
    tokenizer = Tokenizer(
        build_gguf_tokenizer(sentencepiece_metadata, "test"), {"bos_token": "<s>", "eos_token": "</s>"}
    )
    text = "the model is 🙂\nlow"
    ids = tokenizer.encode(text)
    assert ids[0] == tokenizer.bos_token_id == 1  # on unless the file says otherwise
    assert tokenizer.encode(text, add_special_tokens=False) == ids[1:]
    assert b"".join(map(tokenizer.token_bytes, ids[1:])) == b" " + text.encode()
    assert tokenizer.decode(ids) == text
    silent = build_gguf_tokenizer(sentencepiece_metadata | {"tokenizer.ggml.add_bos_token": False}, "test")
    assert silent.encode(text).ids == ids[1:]


# Kinds of GGUF tokenizers


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    tokens = ["<|end|>", *BYTE_TO_UNICODE.values(), "12", "ĊĊ", "ab", "<think>", "ĠĠ"]
    types = [3, *[1] * (len(tokens) - 3), 4, 1]
    base = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["1 2", "Ċ Ċ", "a b", "Ġ Ġ"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }
    return base | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "12", ["12"]),
        ("smollm", "12", ["1", "2"]),  # digits stand alone
        ("gpt-2", "\n\n1", ["Ċ", "Ċ", "1"]),  # a blank before a word belongs to the word
        ("smollm", "\n\n1", ["ĊĊ", "1"]),  # digits are cut off first, so that the blanks end their piece
        ("llama-bpe", "12", ["12"]),
        ("qwen2", "12", ["1", "2"]),
        ("tekken", "12", ["1", "2"]),
        ("qwen2", "a<think>b", ["a", "<think>", "b"]),  # user-defined tokens are matched whole
        ("qwen2", "x<|end|>", ["x", "<|end|>"]),
    ],
)
def test_pre_tokenizers(pre: str, text: str, expected: list[str]) -> None:
    assert (
        build_gguf_tokenizer(byte_level_metadata(pre=pre), "test")
        .encode(text, add_special_tokens=False)
        .tokens
        == expected
    )


@pytest.mark.parametrize(
    ("changes", "adds_bos"),
    [
        ({"pre": "gpt-2"}, False),
        ({"pre": "llama-bpe"}, True),
        ({"pre": "llama-bpe", "add_bos_token": False}, False),
        ({"pre": "qwen2"}, False),
        ({"pre": "qwen2", "add_bos_token": True}, True),
    ],
)
def test_bos_is_added_as_llama_cpp_does(changes: dict[str, Any], adds_bos: bool) -> None:
    ids = build_gguf_tokenizer(byte_level_metadata(**changes), "test").encode("a").ids
    assert ids[:-1] == ([0] if adds_bos else [])


def test_qwen2_composes_characters() -> None:
    tokenizer = build_gguf_tokenizer(byte_level_metadata(pre="qwen2"), "test")
    assert tokenizer.encode("e\u0301").ids == tokenizer.encode("\u00e9").ids


def test_user_defined_tokens_are_not_special() -> None:
    tokenizer = Tokenizer(build_gguf_tokenizer(byte_level_metadata(), "test"), {})
    assert tokenizer.decode(tokenizer.encode("<think>a<|end|>")) == "<think>a"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "x.gguf: holds no tokenizer; name one with --tokenizer"),
        (
            byte_level_metadata(model="bert"),
            "tokenizer model 'bert' is not supported; supported: gpt2, llama",
        ),
        (
            byte_level_metadata(pre="chatglm-bpe"),
            "pre-tokenizer 'chatglm-bpe' is not supported; supported: codeshell",
        ),
        (byte_level_metadata(merges=["ab"]), "merge 'ab' is no pair"),
        (byte_level_metadata(model="llama"), "a score per token is needed"),
    ],
)
def test_gguf_tokenizers_that_are_refused(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        build_gguf_tokenizer(metadata, "x.gguf")
    assert message in str(caught.value)


@pytest.mark.parametrize("merges", [["q z"], ["a b", "ab zz"]])
def test_merges_outside_the_vocabulary_are_one_line(merges: list[str]) -> None:
    with pytest.raises(ModelLoadError, match=r"x\.gguf: damaged tokenizer"):
        build_gguf_tokenizer(byte_level_metadata(merges=merges), "x.gguf")


def test_folders_without_a_good_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(
        ModelLoadError, match=r"has no tokenizer\.json; name a tokenizer folder with --tokenizer"
    ):
        tokenizer_from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="damaged tokenizer") as caught:
        tokenizer_from_folder(tmp_path)
    assert "\n" not in str(caught.value)


def test_tokenizer_option_wins(folder: Path, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    (model / "tokenizer.json").unlink()
    assert load_tokenizer(EngineConfig(model=str(model), tokenizer=str(folder))).vocab_size == 384


@pytest.mark.parametrize("style", ["text", "list", "jinja", "json"])
def test_chat_template_is_found_wherever_it_lies(style: str, folder: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config.pop("chat_template")
    template = "{{ messages[0].content }}!"
    if style == "text":
        config["chat_template"] = template
    elif style == "list":
        named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": template}]
        config["chat_template"] = named
    elif style == "jinja":
        (tmp_path / "chat_template.jinja").write_text(template)
    else:
        (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert tokenizer_from_folder(tmp_path).apply_chat_template([{"role": "user", "content": "hi"}]) == "hi!"


def test_a_model_without_template_refuses_chats(folder: Path) -> None:
    bare = Tokenizer(Backend.from_file(str(folder / "tokenizer.json")), {})
    with pytest.raises(InvalidInputError, match="the model has no chat template"):
        bare.apply_chat_template([{"role": "user", "content": "x"}])


def test_decoder_kinds_are_told_apart() -> None:
    backend = Backend(models.BPE(vocab={"Ġa": 0, "▁a": 1}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    assert Tokenizer(backend, {}).token_bytes(0) == b" a"
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " ")])
    assert Tokenizer(backend, {}).token_bytes(1) == b" a"
