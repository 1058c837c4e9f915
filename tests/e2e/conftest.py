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
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        str(smollm2_gguf.parent), gguf_file=smollm2_gguf.name, dtype=torch.float32
    )
    return model.eval()
