"""Calculator: does the model fit, how many requests at a time, and how fast at best? Closed formulas."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from reports import sizing
from reports.dashboard import ui
from reports.facts import Tile
from reports.sizing import GB, Gpu, Model, Setup, Sizing

_KV = ("bf16", "fp8")
FORMULAS = r"""
| quantity | formula |
|---|---|
| parameters | $P = L\,(2hqD + 2hgD + 3hi + 2h) + hV\,(\times 2\ \text{if untied}) + h$, with biases and q/k norms where the model has them |
| weights | $P \cdot w$ |
| KV bytes of a token | $2 \cdot L \cdot g \cdot D \cdot e$ |
| left for KV | $n \cdot (\text{memory} \cdot \text{utilisation} - \text{reserve}) - P w$ |
| requests | $\lfloor \text{blocks} / \lceil (\text{input} + \text{output}) / \text{block size} \rceil \rfloor$ |
| prefill of $n$ tokens | $\text{FLOP} = 2 n P_\text{layers} + 2hV + 2LqDn^2$; bytes: weights + KV of $n$ tokens |
| decode of $B$ requests at context $c$ | $\text{FLOP} = B\,(2P_\text{read} + 4LqDc)$; bytes: weights + KV of $B \cdot c$ tokens |
| time | $\max(\text{FLOP} / \text{peak rate},\ \text{bytes} / \text{peak bandwidth})$ |

$L$ layers, $h$ hidden, $i$ intermediate, $q$ query heads, $g$ KV heads, $D$ head size, $V$ vocabulary, $w$ and $e$
bytes of a weight and of a KV element, $n$ GPUs. $P_\text{read}$ leaves out the input embedding, of which a token
reads one row.
"""  # noqa: E501  # a row of a Markdown table is one line


def _number(label: str, key: str, low: float, high: float, value: float, step: float, **more: Any) -> float:
    """A number kept in step with ``?key=``."""
    return float(
        st.number_input(label, low, high, value, step=step, key=key, bind="query-params", **more) or low
    )


def _whole(label: str, key: str, low: int, high: int, value: int, **more: Any) -> int:
    return int(st.number_input(label, low, high, value, key=key, bind="query-params", **more) or low)


def _ask(models: list[str], gpus: list[str]) -> tuple[str, str, Setup]:
    first, second, third, fourth = st.columns(4)
    with first:
        model = st.selectbox("Model", models, models.index("Llama-3.1-8B"), key="model", bind="query-params")
        weights = st.selectbox("Weights", list(sizing.BYTES), key="weights", bind="query-params")
        kv = st.selectbox("KV cache", _KV, key="kv", bind="query-params")
    with second:
        gpu = st.selectbox("GPU", gpus, gpus.index("H100 SXM"), key="gpu", bind="query-params")
        count = _whole("GPUs (tensor parallel)", "gpus", 1, 64, 1)
        share = _number("gpu_memory_utilization", "util", 0.1, 1.0, 0.9, 0.01)
    with third:
        input_len = _whole("Prompt tokens", "isl", 1, 1_000_000, 1024)
        output_len = _whole("Output tokens", "osl", 1, 1_000_000, 256)
        batch = _whole("Requests in a decode step", "batch", 1, 100_000, 32)
    with fourth:
        block = _whole("block_size", "block", 1, 256, 16)
        reserve = _number(
            "Reserve per GPU (GB)",
            "reserve",
            0.0,
            100.0,
            2.0,
            0.5,
            help="Activations, graphs and the like",
        )
    setup = Setup(
        gpus=count,
        weights=str(weights),
        kv=str(kv),
        gpu_memory_utilization=share,
        reserve_gb=reserve,
        block_size=block,
        input_len=input_len,
        output_len=output_len,
        batch=batch,
    )
    return str(model), str(gpu), setup


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def _answer(model: Model, gpu: Gpu, setup: Setup, found: Sizing) -> None:
    one = f"{setup.input_len:,} + {setup.output_len:,} tokens"
    if found.kv_gb <= 0:
        st.error(
            f"The weights do not fit: {found.weights_gb:,.1f} GB, and {setup.gpus} × {gpu.name} leave "
            f"{found.kv_gb + found.weights_gb:,.1f} GB. More GPUs or smaller weights are needed."
        )
    elif not found.fits:
        st.error(f"The weights fit, but not one request of {one}: {found.kv_tokens:,} tokens of KV are left.")
    elif not found.batch_fits:
        st.warning(
            f"{found.requests:,} requests of {one} fit at a time, fewer than the {setup.batch:,} of the "
            "decode step: it would preempt or queue."
        )
    else:
        st.success(f"It fits: up to {found.requests:,} requests of {one} at a time.")
    tpot = found.decode.seconds
    if found.ridge_batch is None:
        side = "bound by memory at any batch"
    elif found.decode.side == "memory":
        side = f"bound by memory, by compute from batch {found.ridge_batch:,.0f} on"
    else:
        side = "bound by compute"
    ui.tiles(
        [
            Tile("Weights", f"{found.weights_gb:,.2f} GB", f"{model.parameters:,} parameters"),
            Tile("KV of one token", f"{found.kv_token_bytes / 1024:,.4g} KiB", f"{setup.kv}, all layers"),
            Tile("KV capacity", f"{found.kv_tokens:,} tokens", f"{max(found.kv_gb, 0):,.1f} GB"),
            Tile("Requests at a time", f"{found.requests:,}", one),
            Tile("Prefill, at best", _ms(found.prefill.seconds), f"bound by {found.prefill.side}"),
            Tile("Decode step, at best", _ms(tpot), side),
            Tile("Output, at best", f"{setup.batch / tpot:,.0f} tok/s", f"{1 / tpot:,.0f} tok/s a request"),
        ]
    )
    st.caption(
        "Lower bounds of time from peak rates: real engines need longer. Use them to see what limits a step, "
        "and how far a measurement is from the machine."
    )


def _by_gpu(model: Model, gpus: list[Gpu], setup: Setup) -> None:
    st.subheader(f"{model.name} on every GPU")
    rows = []
    for gpu in gpus:
        found = sizing.size(model, gpu, setup)
        fits = found.kv_gb > 0
        rows.append(
            {
                "GPU": gpu.name,
                "memory (GB)": gpu.memory_gb,
                "KV (tokens)": found.kv_tokens if fits else None,
                "requests": found.requests if fits else None,
                "prefill (ms)": 1000 * found.prefill.seconds if fits else None,
                "decode step (ms)": 1000 * found.decode.seconds if fits else None,
                "output (tok/s)": setup.batch / found.decode.seconds if fits else None,
                "verdict": _verdict(found),
            }
        )
    form = {
        "KV (tokens)": "localized",
        "requests": "localized",
        "prefill (ms)": "%.1f",
        "decode step (ms)": "%.2f",
        "output (tok/s)": "%.0f",
    }
    config = {name: st.column_config.NumberColumn(format=f) for name, f in form.items()}
    st.dataframe(
        pd.DataFrame(rows), hide_index=True, column_config=config, placeholder="–", alt=f"{model.name} by GPU"
    )
    with st.expander("Where the GPU figures come from"):
        st.dataframe(
            pd.DataFrame(
                [
                    {
                        "GPU": g.name,
                        "bandwidth (GB/s)": g.bandwidth_gb_s,
                        "bf16 (TFLOP/s)": g.bf16_tflops,
                        "fp8 (TFLOP/s)": g.fp8_tflops,
                        "source": g.source,
                    }
                    for g in gpus
                ]
            ),
            hide_index=True,
            placeholder="–",
            alt="Peak figures of the GPUs",
        )


def _verdict(found: Sizing) -> str:
    if found.kv_gb <= 0:
        return "✕ weights do not fit"
    if not found.fits:
        return "✕ no request fits"
    return "✓ fits" if found.batch_fits else "! batch does not fit"


def _matrix(models: list[Model], gpus: list[Gpu], setup: Setup) -> None:
    st.subheader("Requests at a time, every model on every GPU")
    rows = []
    for model in models:
        row: dict[str, Any] = {
            "model": model.name,
            "weights (GB)": model.weight_bytes(sizing.BYTES[setup.weights]) / GB,
        }
        for gpu in gpus:
            found = sizing.size(model, gpu, setup)
            row[gpu.name] = found.requests if found.kv_gb > 0 else None
        rows.append(row)
    config: dict[str, Any] = {g.name: st.column_config.NumberColumn(format="localized") for g in gpus}
    config["weights (GB)"] = st.column_config.NumberColumn(format="%.2f")
    st.dataframe(
        pd.DataFrame(rows), hide_index=True, column_config=config, placeholder="–", alt="Models by GPUs"
    )
    st.caption("–: the weights do not fit.")


st.title("Calculator")
st.caption("Does the model fit, how many requests at a time, and how fast at best? Nothing is measured here.")
all_models, all_gpus = sizing.presets()
by_model, by_gpu = {m.name: m for m in all_models}, {g.name: g for g in all_gpus}
model_name, gpu_name, asked = _ask(list(by_model), list(by_gpu))
_answer(
    by_model[model_name],
    by_gpu[gpu_name],
    asked,
    sizing.size(by_model[model_name], by_gpu[gpu_name], asked),
)
_by_gpu(by_model[model_name], list(all_gpus), asked)
_matrix(list(all_models), list(all_gpus), asked)
st.subheader("Formulas")
st.markdown(FORMULAS)
