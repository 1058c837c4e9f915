"""What a model says about itself, read without torch: the server process needs no more than this."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import InvalidInputError, ModelLoadError
from engine.model_store import ModelSource
from engine.models.architectures import config_from_gguf, config_from_hf, hf_sliding_window
from engine.models.config import ModelConfig
from engine.models.gguf_file import GGUFFile, read_gguf

logger = logging.getLogger(__name__)

_GENERATION_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model's config, and what a front end must know to serve it."""

    source: ModelSource
    config: ModelConfig
    eos_token_ids: tuple[int, ...]
    """Every token that ends a reply, in the model's own order."""
    sliding_window: int | None = None
    """The engine attends to everything, so that contexts may not be longer than this."""
    generation_defaults: dict[str, float] = field(default_factory=dict)
    """Sampling parameters that the model's ``generation_config.json`` recommends."""

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def model_limit(self) -> int:
        """Longest context that is computed exactly as the model defines it."""
        limit = self.config.max_position_embeddings
        return min(limit, self.sliding_window) if self.sliding_window else limit

    def max_model_len(self, wanted: int | None) -> int:
        """The limit in force: ``wanted``, or the model's own.

        Raises:
            InvalidInputError: ``wanted`` is more than the model can do.
        """
        if wanted is None:
            if self.model_limit < self.config.max_position_embeddings:
                logger.info("max_model_len=%d: the model's sliding window", self.model_limit)
            return self.model_limit
        if wanted > self.model_limit:
            reason = (
                "sliding-window attention, which is not supported, begins"
                if self.sliding_window
                else "its limit is"
            )
            raise InvalidInputError(
                "max_model_len", wanted, f"at most {self.model_limit} for this model: {reason} there"
            )
        return wanted


def load_model_config(source: ModelSource) -> ModelDescription:
    """Describe the model at ``source``; reads headers and json files only.

    Raises:
        ModelLoadError: missing or damaged files, or an unsupported architecture or feature.
    """
    if source.kind == "gguf":
        return describe_gguf(source, read_gguf(source.path))
    raw = read_json(source.path / "config.json")
    config = config_from_hf(raw, str(source.path))
    generation_path = source.path / "generation_config.json"
    generation = read_json(generation_path) if generation_path.is_file() else {}
    eos = generation.get("eos_token_id")
    return ModelDescription(
        source=source,
        config=config,
        eos_token_ids=_ids(raw.get("eos_token_id") if eos is None else eos),
        sliding_window=hf_sliding_window(raw),
        generation_defaults={
            key: float(generation[key])
            for key in _GENERATION_KEYS
            if isinstance(generation.get(key), int | float)
        },
    )


def describe_gguf(source: ModelSource, file: GGUFFile) -> ModelDescription:
    """Describe a GGUF file by its header. Ends of a reply: eos, then end-of-turn where it differs."""
    window = file.get("attention.sliding_window")
    eos = [file.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    return ModelDescription(
        source=source,
        config=config_from_gguf(file),
        eos_token_ids=_ids([token for token in eos if token is not None]),
        sliding_window=int(window) if window else None,
    )


def read_json(path: Path) -> dict[str, Any]:
    """A json object from ``path``.

    Raises:
        ModelLoadError: missing, unreadable, or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(f"{path}: can't be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ModelLoadError(f"{path}: damaged json ({error})") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: damaged: a json object was expected")
    return value


def _ids(value: object) -> tuple[int, ...]:
    values = value if isinstance(value, list | tuple) else [value]
    return tuple(dict.fromkeys(int(token) for token in values if isinstance(token, int)))
