"""Weights from safetensors, one file or sharded with an index; random ones for ``--load-format dummy``."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelLoadError
from engine.models.assemble import WHOLE_ON_CPU, Placement, assemble_weights, check_names, tensor_shapes
from engine.models.config import ModelConfig
from engine.models.weights import ModelWeights

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DUMMY_SEED = 0
_DUMMY_STD = 0.02


def load_safetensors_weights(
    folder: Path, config: ModelConfig, dtype: torch.dtype, placement: Placement = WHOLE_ON_CPU
) -> ModelWeights:
    """Read the model in ``folder``; files are memory-mapped, so that only one tensor at a time is held twice.

    Raises:
        ModelLoadError: a file or tensor is missing, damaged, unknown or of the wrong shape.
    """
    where = str(folder)
    with ExitStack() as stack:
        readers = {}
        for path in _files(folder):
            try:
                reader = stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise ModelLoadError(f"{path}: can't be read: {error}") from None
            readers.update(dict.fromkeys(reader.keys(), reader))
        check_names(config, readers, where)
        return assemble_weights(config, lambda name: readers[name].get_tensor(name), dtype, where, placement)


def _files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if not index.is_file():
        return [folder / _SINGLE]
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelLoadError(f"{index}: damaged index ({error})") from None
    return [folder / str(name) for name in names]


def dummy_weights(
    config: ModelConfig, dtype: torch.dtype, placement: Placement = WHOLE_ON_CPU
) -> ModelWeights:
    """Random weights of the right shapes, always the same on one kind of device: norms 1, biases 0, matrices
    N(0, 0.02). Every rank draws all of them and keeps its part.
    """
    device = placement.device
    generator = torch.Generator(device).manual_seed(_DUMMY_SEED)
    shapes = tensor_shapes(config)

    def read(name: str) -> torch.Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(shapes[name])
        if name.endswith(".bias"):
            return torch.zeros(shapes[name])
        whole = torch.empty(shapes[name], dtype=dtype, device=device)
        return whole.normal_(0.0, _DUMMY_STD, generator=generator)

    return assemble_weights(config, read, dtype, "dummy weights", placement)
