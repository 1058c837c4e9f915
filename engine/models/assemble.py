"""From named tensors to :class:`ModelWeights`: fuses q/k/v and gate/up, checks every shape. Shared by all
loaders.

Names are Hugging Face's; a loader is a function ``read(name) -> float tensor`` plus the set of names it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from engine.errors import ModelLoadError
from engine.models.config import ModelConfig
from engine.models.weights import LayerWeights, ModelWeights
from engine.parallel.shard import Shard

TensorReader = Callable[[str], torch.Tensor]

# Buffers that old checkpoints carry along; they follow from the config.
_DERIVED_SUFFIXES = (".rotary_emb.inv_freq",)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where weights go: which rank's part of them, and onto which device."""

    shard: Shard
    device: torch.device


WHOLE_ON_CPU = Placement(Shard(), torch.device("cpu"))


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a model of ``config`` has."""
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for index in range(config.num_layers):
        layer = f"model.layers.{index}."
        attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
        shapes[f"{layer}input_layernorm.weight"] = (hidden,)
        shapes[f"{layer}post_attention_layernorm.weight"] = (hidden,)
        for name, rows in (("q", config.q_size), ("k", config.kv_size), ("v", config.kv_size)):
            shapes[f"{attention}{name}_proj.weight"] = (rows, hidden)
            if config.qkv_bias:
                shapes[f"{attention}{name}_proj.bias"] = (rows,)
        if config.qk_norm:
            shapes[f"{attention}q_norm.weight"] = (head,)
            shapes[f"{attention}k_norm.weight"] = (head,)
        shapes[f"{attention}o_proj.weight"] = (hidden, config.q_size)
        shapes[f"{mlp}gate_proj.weight"] = (inner, hidden)
        shapes[f"{mlp}up_proj.weight"] = (inner, hidden)
        shapes[f"{mlp}down_proj.weight"] = (hidden, inner)
    return shapes


def check_names(config: ModelConfig, names: Collection[str], where: str) -> None:
    """Refuse a checkpoint that lacks a tensor, or has one that this engine would leave out of the
    computation.

    Raises:
        ModelLoadError: names the first such tensor.
    """
    shapes = tensor_shapes(config)
    missing = sorted(shapes.keys() - set(names))
    if missing:
        raise ModelLoadError(f"{where}: {len(missing)} tensor(s) missing, the first is {missing[0]}")
    spare = {"lm_head.weight"} if config.tie_word_embeddings else set()
    unknown = sorted(
        name
        for name in names
        if name not in shapes and name not in spare and not name.endswith(_DERIVED_SUFFIXES)
    )
    if unknown:
        raise ModelLoadError(
            f"{where}: {config.architecture} with tensor {unknown[0]} is not supported "
            f"({len(unknown)} unknown tensor(s))"
        )


def assemble_weights(
    config: ModelConfig,
    read: TensorReader,
    dtype: torch.dtype,
    where: str,
    placement: Placement = WHOLE_ON_CPU,
) -> ModelWeights:
    """Read every tensor once, cut out the rank's part, cast to ``dtype``, fuse.

    Args:
        config: the whole model's; the weights bear the rank's own.

    Raises:
        ModelLoadError: a tensor's shape doesn't match ``config``.
    """
    shapes = tensor_shapes(config)
    shard, device = placement.shard, placement.device
    local = shard.local_config(config)
    local_shapes = tensor_shapes(local)

    def checked(name: str) -> torch.Tensor:
        value = read(name)
        if tuple(value.shape) != shapes[name]:
            raise ModelLoadError(
                f"{where}: tensor {name} has shape {tuple(value.shape)}, the config says {shapes[name]}"
            )
        return shard.cut(name, value, config)

    def tensor(name: str) -> torch.Tensor:
        return checked(name).to(device, dtype).contiguous()

    def fused(names: list[str]) -> torch.Tensor:
        # Cast straight into place: fresh memory is what loading costs.
        rows = [local_shapes[name][0] for name in names]
        whole = torch.empty((sum(rows), *local_shapes[names[0]][1:]), dtype=dtype, device=device)
        start = 0
        for count, name in zip(rows, names, strict=True):
            whole[start : start + count].copy_(checked(name))
            start += count
        return whole

    layers = []
    for index in range(config.num_layers):
        layer = f"model.layers.{index}."
        attention, mlp = f"{layer}self_attn.", f"{layer}mlp."
        projections = [f"{attention}{name}_proj" for name in "qkv"]
        layers.append(
            LayerWeights(
                input_norm=tensor(f"{layer}input_layernorm.weight"),
                qkv=fused([f"{name}.weight" for name in projections]),
                qkv_bias=fused([f"{name}.bias" for name in projections]) if config.qkv_bias else None,
                q_norm=tensor(f"{attention}q_norm.weight") if config.qk_norm else None,
                k_norm=tensor(f"{attention}k_norm.weight") if config.qk_norm else None,
                o=tensor(f"{attention}o_proj.weight"),
                post_norm=tensor(f"{layer}post_attention_layernorm.weight"),
                gate_up=fused([f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"]),
                down=tensor(f"{mlp}down_proj.weight"),
            )
        )
    embed = tensor("model.embed_tokens.weight")
    return ModelWeights(
        config=local,
        embed=embed,
        layers=tuple(layers),
        final_norm=tensor("model.norm.weight"),
        lm_head=embed if config.tie_word_embeddings else tensor("lm_head.weight"),
    )
