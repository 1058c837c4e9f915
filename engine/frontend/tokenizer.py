"""The front end's tokenizer: ``tokenizers`` plus a chat template; no torch, no transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from engine.config import EngineConfig
from engine.errors import InvalidInputError, ModelLoadError
from engine.frontend.chat_template import ChatTemplate
from engine.frontend.gguf_tokenizer import build_gguf_tokenizer, gguf_special_tokens
from engine.frontend.token_bytes import byte_level_bytes, sentencepiece_bytes
from engine.model_store import ModelSource, resolve_model
from engine.models.description import read_json
from engine.models.gguf_file import read_gguf

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """Text ↔ token ids of one model. Safe to use from several threads.

    Args:
        backend: the ids are this object's.
        special_tokens: text of ``bos_token``, ``eos_token`` …
        chat_template: Jinja source; None: the model has none.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str],
        chat_template: str | None = None,
    ) -> None:
        self.backend = backend
        self.special_tokens = dict(special_tokens)
        self.chat_template = ChatTemplate(chat_template, special_tokens) if chat_template else None
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self._added_text = {index: token.content for index, token in added.items()}
        self.longest_token = max(map(len, backend.get_vocab(with_added_tokens=True)), default=1)
        """Characters of a text that one token stands for, at most."""
        self.bos_token_id = self._special_id("bos_token")
        self.eos_token_id = self._special_id("eos_token")
        decoder = backend.decoder.__getstate__() if backend.decoder is not None else b""
        self._token_to_bytes = byte_level_bytes if b"ByteLevel" in decoder else sentencepiece_bytes

    def _special_id(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self.backend.token_to_id(text)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``; the names of special tokens in it become these tokens.

        Args:
            add_special_tokens: put bos (and what else the model asks for) around the text. Off for rendered
            chats: the
                template has them.

        Raises:
            InvalidInputError: ``text`` isn't valid Unicode (lone surrogates).
        """
        try:  # a batch of one, because only encode_batch lets other threads run meanwhile
            (encoding,) = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            return list(encoding.ids)
        except (TypeError, UnicodeEncodeError):
            raise InvalidInputError("prompt", text[:40], "text of valid Unicode characters") from None

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ``token_ids``; bytes that form no character become U+FFFD, unknown ids nothing."""
        return self.backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str:
        """The token's name in the vocabulary (``Ġhello``, ``▁hello``); empty for an unknown id."""
        return self.backend.id_to_token(token_id) or ""

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Names of several tokens."""
        return [self.token(token_id) for token_id in token_ids]

    def token_id(self, token: str) -> int | None:
        """Id of the token of that name."""
        return self.backend.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token stands for in a text; joined over a text's tokens they are its UTF-8.

        (But for the one leading space that sentencepiece models add.) An id without a token gives no bytes.
        """
        added = self._added_text.get(token_id)
        if added is not None:
            return added.encode("utf-8")
        return self._token_to_bytes(self.token(token_id))

    def apply_chat_template(
        self,
        /,  # a template variable may be called self
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The conversation as text, to be encoded with ``add_special_tokens=False``.

        Args:
            messages: dicts with ``role`` and ``content``. tools: JSON schemas, if the template knows tools.
            add_generation_prompt: end with the assistant's header. continue_final_message: leave the last
            message open instead. variables: further template variables (``enable_thinking`` …).

        Raises:
            InvalidInputError: the model has no chat template, or it refuses the messages.
        """
        if self.chat_template is None:
            raise InvalidInputError(
                "messages", f"{len(messages)} message(s)", "the model has no chat template; use completions"
            )
        return self.chat_template.render(
            messages, tools, add_generation_prompt, continue_final_message, **variables
        )


def load_tokenizer(config: EngineConfig) -> Tokenizer:
    """The tokenizer of ``config.tokenizer``, by default the model's own.

    Raises:
        ModelLoadError: none found, damaged, or of a kind that isn't supported.
    """
    name = config.tokenizer or config.model
    if config.tokenizer and Path(name).expanduser().is_dir():
        return tokenizer_from_folder(Path(name).expanduser())
    try:
        source = resolve_model(name)
    except ModelLoadError as error:
        if not config.tokenizer:
            raise
        # The flag that the user gave, not the model's.
        raise ModelLoadError(f"tokenizer={str(error).removeprefix('model=')}") from None
    return tokenizer_from_source(source)


def tokenizer_from_source(source: ModelSource) -> Tokenizer:
    """The tokenizer that came with a model (see :func:`load_tokenizer`)."""
    if source.kind == "folder":
        return tokenizer_from_folder(source.path)
    metadata = read_gguf(source.path).metadata
    backend = build_gguf_tokenizer(metadata, str(source.path))
    return Tokenizer(backend, gguf_special_tokens(metadata), metadata.get("tokenizer.chat_template"))


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Read ``tokenizer.json``, ``tokenizer_config.json`` and the chat template of a Hugging Face folder."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelLoadError(f"{folder}: has no tokenizer.json; name a tokenizer folder with --tokenizer")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for anything wrong with the file
        raise ModelLoadError(f"{path}: damaged tokenizer ({error})") from None
    backend.no_truncation()
    backend.no_padding()
    config_path = folder / "tokenizer_config.json"
    raw = read_json(config_path) if config_path.is_file() else {}
    special = {name: text for name in _SPECIAL_NAMES if (text := _token_text(raw.get(name)))}
    return Tokenizer(backend, special, _folder_chat_template(folder, raw))


def _token_text(value: object) -> str | None:
    """A special token is given as text, or as an object with its ``content``."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _folder_chat_template(folder: Path, raw: Mapping[str, Any]) -> str | None:
    jinja_file, json_file = folder / "chat_template.jinja", folder / "chat_template.json"
    if jinja_file.is_file():
        return jinja_file.read_text(encoding="utf-8")
    value: object = raw.get("chat_template")
    if value is None and json_file.is_file():
        value = read_json(json_file).get("chat_template")
    if isinstance(value, list):  # several named ones
        value = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}.get(
            "default"
        )
    return value if isinstance(value, str) else None
