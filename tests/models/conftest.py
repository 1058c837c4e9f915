"""transformers as the oracle of the tests here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.tiny_model import make_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``tiny_folder(architecture, **config)``: a tiny model, made once per test session."""
    made: dict[str, Path] = {}

    def get(architecture: str, **overrides: Any) -> Path:
        key = repr((architecture, sorted(overrides.items())))
        if key not in made:
            made[key] = make_tiny_model(tmp_path_factory.mktemp("tiny"), architecture, **overrides)
        return made[key]

    return get


@pytest.fixture(scope="session")
def oracle_logits() -> Callable[[Path, list[int]], torch.Tensor]:
    """``oracle_logits(folder, ids)``: float32 logits [T, V] of transformers' model on the same folder."""
    from transformers import AutoModelForCausalLM

    loaded: dict[Path, Any] = {}

    def get(folder: Path, ids: list[int]) -> torch.Tensor:
        if folder not in loaded:
            loaded[folder] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        with torch.inference_mode():
            return loaded[folder](torch.tensor([ids])).logits[0]

    return get
