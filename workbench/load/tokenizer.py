"""Length of texts in tokens, by a tokenizer file of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.errors import InvalidInputError
from workloads.tokens import TokenCounter


def token_counter(path: str | None) -> TokenCounter | None:
    """Counter of ``path``: a ``tokenizer.json``, or a folder that holds one; None without a path.

    Special tokens are not counted: prompts are sent as plain text.

    Raises:
        InvalidInputError: it is no tokenizer.
    """
    if path is None:
        return None
    from tokenizers import Tokenizer

    file = Path(path) / "tokenizer.json" if Path(path).is_dir() else Path(path)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exceptions
        raise InvalidInputError(
            "tokenizer-path", path, f"a tokenizer.json or a folder with one ({error})"
        ) from None

    def count(texts: Sequence[str]) -> list[int]:
        return [len(e.ids) for e in tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    return count
