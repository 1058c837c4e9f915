"""Builds a ``tokenizers.Tokenizer`` from GGUF metadata. Neither torch nor transformers is imported.

A GGUF stores vocabulary, merges or scores, token types, and a name for the pre-tokenizer; llama.cpp's
meaning of these names is followed. A pre-tokenizer that isn't known is refused: with a wrong one a model
gets ids that it never saw in training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from engine.errors import ModelLoadError
from engine.frontend.token_bytes import BYTE_TO_UNICODE

_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {
    "llama-bpe": _LLAMA3_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "falcon3": _LLAMA3_SPLIT,
    "pixtral": _LLAMA3_SPLIT,
    "tekken": _TEKKEN_SPLIT,
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": _QWEN2_SPLIT,
}
# These look whole words up before they merge, and start every prompt with bos unless the file says otherwise.
_WHOLE_WORD_FIRST = frozenset(_SPLITS) - {"qwen2", "deepseek-r1-qwen"}
_PLAIN = frozenset({"gpt-2", "gpt2", "default"})
_SINGLE_DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell"})


def build_gguf_tokenizer(metadata: Mapping[str, Any], where: str) -> Tokenizer:
    """The tokenizer that ``metadata`` describes, special tokens and bos/eos template included.

    Args:
        metadata: of a GGUF file (:func:`engine.models.gguf_file.read_gguf`).
        where: named in errors.

    Raises:
        ModelLoadError: no tokenizer in the file, or one of a kind that isn't supported.
    """
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise ModelLoadError(f"{where}: holds no tokenizer; name one with --tokenizer")
    kind = metadata.get("tokenizer.ggml.model")
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise ModelLoadError(f"{where}: damaged tokenizer: {len(tokens)} tokens, {len(types)} token types")
    if kind == "gpt2":
        tokenizer = _byte_level(tokens, types, metadata, where)
    elif kind == "llama":
        tokenizer = _sentencepiece(tokens, types, metadata, where)
    else:
        raise ModelLoadError(f"{where}: tokenizer model {kind!r} is not supported; supported: gpt2, llama")
    special = [
        AddedToken(t, normalized=False, special=True)
        for t, k in zip(tokens, types, strict=True)
        if k == _CONTROL
    ]
    if special:
        tokenizer.add_special_tokens(special)
    plain = [
        AddedToken(t, normalized=False, special=False)
        for t, k in zip(tokens, types, strict=True)
        if k == _USER_DEFINED
    ]
    if plain:
        tokenizer.add_tokens(plain)
    _add_template(tokenizer, tokens, metadata)
    return tokenizer


def gguf_special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """``bos_token``, ``eos_token``, ``unk_token``, ``pad_token`` as text: chat templates refer to them."""
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    found = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(token_id, int) and 0 <= token_id < len(tokens):
            found[f"{name}_token"] = tokens[token_id]
    return found


def _byte_level(
    tokens: Sequence[str], types: Sequence[int], metadata: Mapping[str, Any], where: str
) -> Tokenizer:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    alphabet = set(BYTE_TO_UNICODE.values())
    vocab = {}
    for index, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        # Control and user-defined tokens stand as text; others that leave the byte alphabet are spelled out
        # in it.
        whole = kind in (_CONTROL, _USER_DEFINED) or alphabet.issuperset(token)
        vocab[token if whole else "".join(BYTE_TO_UNICODE[byte] for byte in token.encode())] = index
    merges = [_merge_pair(merge, where) for merge in metadata.get("tokenizer.ggml.merges") or []]
    tokenizer = Tokenizer(_bpe(where, vocab=vocab, merges=merges, ignore_merges=pre in _WHOLE_WORD_FIRST))
    if pre in _PLAIN:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    elif pre in _SINGLE_DIGITS:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    elif pre in _SPLITS:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLITS[pre]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        known = ", ".join(sorted(_PLAIN | _SINGLE_DIGITS | set(_SPLITS)))
        raise ModelLoadError(
            f"{where}: pre-tokenizer {pre!r} is not supported; supported: {known}; or pass --tokenizer"
        )
    if pre in ("qwen2", "deepseek-r1-qwen"):
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _bpe(where: str, **options: Any) -> models.BPE:
    try:
        return models.BPE(**options)
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"{where}: damaged tokenizer: {error}") from None


def _merge_pair(merge: str, where: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise ModelLoadError(f"{where}: damaged tokenizer: merge {merge!r} is no pair")
    return left, right


def _sentencepiece(
    tokens: Sequence[str], types: Sequence[int], metadata: Mapping[str, Any], where: str
) -> Tokenizer:
    scores = metadata.get("tokenizer.ggml.scores")
    if not scores or len(scores) != len(tokens):
        raise ModelLoadError(f"{where}: damaged tokenizer: a score per token is needed")
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    vocab = {token: index for index, token in enumerate(tokens)}
    model = _bpe(
        where,
        vocab=vocab,
        merges=_merges_from_scores(vocab, types, scores),
        unk_token=tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    scheme = "first" if prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(content=" ", left=1)] if prefix else steps)
    return tokenizer


def _merges_from_scores(
    vocab: Mapping[str, int], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Sentencepiece joins neighbours whose union scores best; as merges: every cut of a token, in order."""
    found = []
    for token, index in vocab.items():
        if types[index] in (_CONTROL, _USER_DEFINED, _BYTE):
            continue
        for cut in range(1, len(token)):
            left, right = vocab.get(token[:cut]), vocab.get(token[cut:])
            if left is not None and right is not None:
                found.append((-scores[index], left, right, token[:cut], token[cut:]))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _add_template(tokenizer: Tokenizer, tokens: Sequence[str], metadata: Mapping[str, Any]) -> None:
    """Put bos before and eos behind every text, as the file asks."""
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    wanted = {
        "bos": metadata.get("tokenizer.ggml.add_bos_token", model == "llama" or pre in _WHOLE_WORD_FIRST),
        "eos": metadata.get("tokenizer.ggml.add_eos_token", False),
    }
    ids = {
        name: metadata.get(f"tokenizer.ggml.{name}_token_id", default)
        for name, default in (
            ("bos", 1 if model == "llama" else None),
            ("eos", 2 if model == "llama" else None),
        )
    }
    used = {name: ids[name] for name, on in wanted.items() if on and ids[name] is not None}
    if not used:
        return
    pieces = [tokens[used["bos"]]] if "bos" in used else []
    pieces.append("$A")
    if "eos" in used:
        pieces.append(tokens[used["eos"]])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=pieces, special_tokens=[(tokens[index], index) for index in used.values()]
    )
