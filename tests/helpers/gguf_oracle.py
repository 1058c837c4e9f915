"""transformers' own reading of a GGUF file, dequantised to float32: the oracle of our GGUF loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def transformers_from_gguf(path: Path) -> Any:
    """A ``PreTrainedModel`` in float32 with the weights of ``path``.

    ``from_pretrained(gguf_file=…)`` would need accelerate; its two halves don't.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    config.tie_word_embeddings = False  # filled in below, so that nothing depends on tying
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
    model.load_state_dict(tensors)
    return model.eval()
