"""The embedded model: float32 logits equal transformers' reading of the same GGUF."""

from __future__ import annotations

import pytest
import torch

from engine.config import EngineConfig
from engine.frontend.tokenizer import load_tokenizer
from engine.model_store import fetch_model
from engine.models.dense import ReferenceBackend
from engine.models.loader import load_model
from tests.helpers.forward import chunked_logits
from tests.helpers.gguf_oracle import transformers_from_gguf

pytestmark = pytest.mark.e2e

TEXT = (
    "The capital of France is Paris. 12 + 30 = 42.\n\ndef add(a, b):\n    return a + b\n\n"
    "Once upon a time, in a land far away,"
)


def test_logits_equal_transformers() -> None:
    config = EngineConfig(dtype="float32", max_model_len=256)
    ids = load_tokenizer(config).encode(TEXT)
    model = load_model(config)
    assert (model.config.num_layers, model.config.num_heads, model.config.num_kv_heads) == (30, 9, 3)
    assert model.eos_token_ids == (2,)
    backend = ReferenceBackend(model.weights, model.max_model_len, 16)
    backend.allocate_kv(8)
    for cache in backend._key_caches + backend._value_caches:
        cache.fill_(torch.nan)
    chunks = [17, 1, 1, len(ids) - 19]
    ours = chunked_logits(backend, ids, chunks, [7, 2, 5, 1], 16)
    with torch.inference_mode():
        theirs = transformers_from_gguf(fetch_model("smollm2-135m"))(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=0)
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))
    assert theirs.std() > 1
