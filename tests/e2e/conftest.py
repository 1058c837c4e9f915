"""The embedded model and its oracle: transformers with the same weights in float32."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    from engine.model_store import fetch_model

    return fetch_model("smollm2-135m")


@pytest.fixture(scope="session")
def oracle(smollm2_gguf: Path) -> Any:
    """transformers' own loading of the same file, dequantised to float32."""
    from tests.helpers.gguf_oracle import transformers_from_gguf

    return transformers_from_gguf(smollm2_gguf)
