"""Tiny random models on disk, in Hugging Face's layout: config, safetensors, byte-level tokenizer, template.

Small enough that a forward takes a millisecond, with weights large enough that greedy choices are clear.
transformers loads these folders too, which makes it the oracle.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.models.architectures import HF_ARCHITECTURES, config_from_hf
from engine.models.assemble import tensor_shapes

ARCHITECTURES = HF_ARCHITECTURES
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCAB_SIZE = 384
EOS_TOKEN_ID = 2
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_TRAINING_TEXT = (
    "The quick brown fox jumps over the lazy dog. In the beginning was a model, and the model was small.",
    "def schedule(self) -> StepPlan:\n    return self.plan\n",
    "What is the capital of France? The capital of France is Paris. It's said that 1 and 12 aren't prime.",
)


def hf_config(architecture: str = "LlamaForCausalLM", **overrides: Any) -> dict[str, Any]:
    """``config.json`` of a tiny model: 2 layers, 4 heads over 2 KV heads, hidden size 64."""
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": _MODEL_TYPES[architecture],
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        # Qwen3's head size is its own, not hidden_size / heads.
        "head_dim": 32 if architecture == "Qwen3ForCausalLM" else 16,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": architecture in ("LlamaForCausalLM", "Qwen3ForCausalLM"),
        "bos_token_id": 1,
        "eos_token_id": EOS_TOKEN_ID,
    }
    if architecture == "MistralForCausalLM":
        config["sliding_window"] = None
    return config | overrides


def make_tiny_model(
    folder: Path,
    architecture: str = "LlamaForCausalLM",
    *,
    seed: int = 0,
    num_shards: int = 1,
    **overrides: Any,
) -> Path:
    """Write a tiny model into ``folder`` (made if needed) and return it.

    Args:
        architecture: one of ``ARCHITECTURES``. seed: of the weights. num_shards: if above 1, with an index.
        overrides: keys of ``config.json``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    raw = hf_config(architecture, **overrides)
    (folder / "config.json").write_text(json.dumps(raw, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": raw["eos_token_id"]}))
    tensors = random_tensors(raw, seed)
    names = sorted(tensors)
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        weight_map: dict[str, str] = {}
        for shard in range(num_shards):
            file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
            part = {name: tensors[name] for name in names[shard::num_shards]}
            save_file(part, folder / file, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(part, file)
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": weight_map})
        )
    write_tiny_tokenizer(folder)
    return folder


def random_tensors(raw: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    """Weights by Hugging Face name, float32."""
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(config_from_hf(raw, "tiny model")).items():
        scale = 0.5 if "embed" in name or "lm_head" in name else 0.15
        values = torch.randn(shape, generator=random) * scale
        tensors[name] = 1 + values if name.endswith("norm.weight") else values
    return tensors


def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE with ``VOCAB_SIZE`` tokens or fewer; ids 0 to 2 are ``SPECIAL_TOKENS``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TRAINING_TEXT, trainer)
    return tokenizer


def write_tiny_tokenizer(folder: Path) -> None:
    """``tokenizer.json`` and ``tokenizer_config.json`` with special tokens and chat template."""
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[1],
        "eos_token": SPECIAL_TOKENS[EOS_TOKEN_ID],
        "unk_token": SPECIAL_TOKENS[0],
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
