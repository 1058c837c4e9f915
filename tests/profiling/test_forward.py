"""The forward grid: cells of the right shape, floors by hand, and a line that finds a planted slope."""

from __future__ import annotations

import json
import random

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidInputError
from engine.executor.forward_grid import GridCell, decode_batch, measure_forward
from engine.executor.info import ExecutorInfo
from tests.helpers.tiny_model import make_tiny_model
from workbench.cli import main
from workbench.profiling.roofline import ModelBytes, fit_line, grid_rows

MODEL = {
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_size": 4,
    "num_layers": 3,
    "vocab_size": 10,
}
INFO = {
    "model_config": MODEL,
    "quantization": "none",
    "dtype": "float32",
    "num_kv_blocks": 5,
    "block_size": 4,
    "kv_cache_bytes": 1920,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("model")))


def info_of(num_blocks) -> ExecutorInfo:
    return ExecutorInfo(
        model="m",
        architecture="a",
        dtype="float32",
        attention_backend="cpu",
        attention_backend_reason=None,
        quantization="none",
        num_threads=1,
        max_model_len=64,
        block_size=4,
        num_kv_blocks=num_blocks,
        kv_cache_bytes=1,
        vocab_size=9,
        eos_token_ids=[],
        load_seconds=0.0,
        model_config={},
    )


def test_a_cell_is_a_decode_step_with_blocks_of_its_own():
    batch = decode_batch(3, 10, 4, info_of(12), random.Random(1))
    assert batch.positions.tolist() == [9, 9, 9]
    assert batch.query_start_loc.tolist() == [0, 1, 2, 3]
    assert batch.seq_lens.tolist() == [10, 10, 10]
    blocks = batch.block_table.ravel().tolist()
    assert len(set(blocks)) == 9
    assert 0 not in blocks
    assert batch.slot_mapping.tolist() == [row[-1] * 4 + 1 for row in batch.block_table.tolist()]


def test_bytes_by_hand():
    size = ModelBytes.of(INFO)
    layer = 8 * (8 + 2 * 4) + 8 * 8 + 3 * 8 * 16
    assert size == ModelBytes(weights=4 * (3 * layer + 10 * 8), kv_per_token=96.0)
    assert size.kv_per_token == 2 * 3 * 4 * 4
    assert ModelBytes.of({**INFO, "quantization": "int8"}).weights == 3 * layer + 80
    assert size.floor_ns(2, 100, 4.0) == (size.weights + 2 * 100 * 96) / 4.0


def test_a_planted_slope_is_found():
    size = ModelBytes(1_000_000, 100.0)
    cells = [
        GridCell(b, c, tuple(int(2e6 + 5e4 * b + 40 * b * c) for _ in range(3)))
        for b in (1, 4, 16)
        for c in (128, 1024, 4096)
    ]
    rows = grid_rows(cells, size, 10.0)
    line = fit_line(rows, size, 10.0)
    assert line.fixed == pytest.approx(2e6, rel=1e-3)
    assert line.per_request == pytest.approx(5e4, rel=1e-3)
    assert line.per_token == pytest.approx(40.0, rel=1e-3)
    assert line.floor_per_token == 10.0
    assert line.efficiency == pytest.approx(0.25, rel=1e-3)
    assert line.worst_residual < 1e-3
    first = rows[0]
    assert first["floor_ms"] == pytest.approx((1e6 + 128 * 100) / 10.0 / 1e6)
    assert first["of_roofline"] == pytest.approx(first["floor_ms"] / first["median_ms"])


def test_no_line_through_one_row_or_column():
    size = ModelBytes(1, 1.0)
    assert fit_line(grid_rows([GridCell(1, c, (5,)) for c in (1, 2, 3, 4)], size, 1.0), size, 1.0) is None


def test_measured_on_a_tiny_model(model, capsys, tmp_path):
    out = tmp_path / "forward.json"
    command = [
        "forward",
        "--model",
        model,
        "--batches",
        "1,3",
        "--contexts",
        "5,33",
        "--repeats",
        "2",
        "--num-threads",
        "1",
        "--attention-backend",
        "reference",
        "--dtype",
        "float32",
        "--output",
        str(out),
        "--json",
    ]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(out.read_text())
    assert [(c["batch"], c["context"], c["n"]) for c in found["cells"]] == [
        (1, 5, 2),
        (1, 33, 2),
        (3, 5, 2),
        (3, 33, 2),
    ]
    assert all(cell["median_ms"] > 0 for cell in found["cells"])
    assert found["read_gb_s"] > 0


@pytest.mark.parametrize(
    "flags",
    [
        ["--batches", "0"],
        ["--batches", "a"],
        ["--contexts", ""],
        ["--repeats", "0"],
        ["--contexts", "99999"],
        ["--num-gpu-blocks-override", "2"],
    ],
)
def test_bad_input_is_one_line(model, flags, capsys):
    base = ["--batches", "2", "--contexts", "40", "--attention-backend", "reference", "--num-threads", "1"]
    assert main(["forward", "--model", model, *base, *flags]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_pool_that_is_too_small(model):
    config = EngineConfig.create(
        model=model,
        attention_backend="reference",
        num_gpu_blocks_override=40,
        max_model_len=64,
        num_threads=1,
    )
    with pytest.raises(InvalidInputError, match=r"num_gpu_blocks_override=40: at least 65"):
        measure_forward(config, [16], [64], 1)
