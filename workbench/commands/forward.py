"""``workbench forward``: the bare forward over a grid of batch and context, beside the roofline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer


def with_engine_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` the settings of the builtin engine that a bare forward has."""
    from engine.config import EngineConfig
    from engine.server.flags import add_flags

    used = {
        *("model", "load_format", "dtype", "quantization", "max_model_len", "block_size"),
        *("attention_backend", "num_gpu_blocks_override", "num_threads"),
    }
    return add_flags(EngineConfig, skip=set(EngineConfig.model_fields) - used, panels=("Engine",))(command)


def forward(
    batches: Annotated[str, typer.Option(help="Requests that decode one token each.")] = "1,4,16",
    contexts: Annotated[str, typer.Option(help="Tokens of each request.")] = "128,512,1024,2048",
    repeats: Annotated[int, typer.Option(help="Forwards of each cell, in random order.")] = 7,
    output: Annotated[Path | None, typer.Option(help="Also write the result to this JSON file.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout, all else on stderr.")
    ] = False,
    **engine: Any,
) -> None:
    """Time decode forwards at fixed batch and context: the evidence for "slower with context".

    No scheduler, queue or sampler takes part. The floor is the bytes that a step must read (weights once,
    KV of every
    request) over the bandwidth that this machine shows between the forwards.
    """
    import msgspec

    from engine.config import EngineConfig
    from engine.errors import InvalidInputError
    from engine.executor.forward_grid import measure_forward
    from workbench.atomic import write_json
    from workbench.commands.display import make_console
    from workbench.profiling.roofline import ModelBytes, fit_line, grid_rows

    if not 1 <= repeats <= 1000:
        raise InvalidInputError("repeats", repeats, "1 to 1000")
    if output is not None and not output.parent.is_dir():
        raise InvalidInputError("output", str(output), "a file in a folder that exists")
    console = make_console(stderr=True)
    sizes = _numbers("batches", batches, 512), _numbers("contexts", contexts, 1 << 20)

    def show(done: int, total: int) -> None:
        if console.is_terminal:
            console.print(f"forward {done} of {total}", end="\r")

    grid = measure_forward(EngineConfig.create(**engine), *sizes, repeats, show)
    info = msgspec.to_builtins(grid.info)
    size = ModelBytes.of(info)
    rows = grid_rows(grid.cells, size, grid.read_gb_s)
    line = fit_line(rows, size, grid.read_gb_s)
    result = {
        "model": info["model"], "backend": info["attention_backend"], "dtype": info["dtype"],
        "quantization": info["quantization"], "threads": info["num_threads"], "read_gb_s": grid.read_gb_s,
        "weight_bytes": size.weights, "kv_bytes_per_token": size.kv_per_token, "cells": rows,
        "line": None if line is None else {
            "fixed_ns": line.fixed, "per_request_ns": line.per_request, "per_token_ns": line.per_token,
            "floor_per_token_ns": line.floor_per_token, "efficiency": line.efficiency,
            "worst_residual": line.worst_residual,
        },
    }  # fmt: skip
    _show(result, make_console(stderr=as_json))
    if output is not None:
        try:
            write_json(output, result)
        except OSError as error:
            raise InvalidInputError(
                "output", str(output), f"a file that can be written ({error.strerror})"
            ) from None
    if as_json:
        typer.echo(json.dumps(result))


def _numbers(name: str, text: str, most: int) -> list[int]:
    from engine.errors import InvalidInputError

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() and 1 <= int(part) <= most for part in parts):
        raise InvalidInputError(name, text, f"whole numbers from 1 to {most}, separated by commas")
    return sorted({int(part) for part in parts})


def _show(result: dict[str, Any], console: Any) -> None:
    from rich.table import Table

    console.print(
        f"{result['model']} · {result['backend']} · {result['dtype']} · {result['threads']} threads · "
        "memory read at "
        f"{result['read_gb_s']:.1f} GB/s, weights {result['weight_bytes'] / 1e6:.0f} MB, KV "
        f"{result['kv_bytes_per_token'] / 1e3:.1f} kB a token",
        soft_wrap=True, markup=False,
    )  # fmt: skip
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("batch", "context", "median ms", "least ms", "floor ms", "of roofline", "tok/s"):
        table.add_column(title, justify="right")
    for row in result["cells"]:
        table.add_row(
            str(row["batch"]), str(row["context"]), f"{row['median_ms']:.2f}", f"{row['min_ms']:.2f}",
            f"{row['floor_ms']:.2f}", f"{row['of_roofline']:.0%}", f"{row['tokens_s']:.0f}",
        )  # fmt: skip
    console.print(table)
    line = result["line"]
    if line is not None:
        efficiency = (
            "" if line["efficiency"] is None else f", {line['efficiency']:.2f} of what its bytes allow"
        )
        console.print(
            f"step = {line['fixed_ns'] / 1e6:.2f} ms + {line['per_request_ns'] / 1e3:.1f} µs · batch + "
            f"{line['per_token_ns']:.1f} ns · Σ context{efficiency} (worst miss "
            f"{line['worst_residual']:.0%})",
            soft_wrap=True, markup=False,
        )  # fmt: skip
