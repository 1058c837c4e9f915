"""Other engines: their names for our settings, what they must tell of themselves, what can't be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidInputError
from experiments.bench_cell import BenchRunner
from experiments.factors import load_factors
from experiments.models import Cell
from experiments.request import SweepRequest, make_spec
from experiments.spec import Load
from experiments.targets import TEMPLATES, choose_target, server_command
from workbench.benchspec import BenchSpec
from workbench.runstore import RunStore
from workbench.targets.base import echo_mismatches


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of these names are on the PATH; none of them is started."""
    for name in ("vllm", "python", "myserver"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def command_of(name: str, **settings: Any) -> list[str]:
    choice = choose_target(name, None, "--extra 1", None)
    return list(server_command(choice, "/models/a b", settings, {}).argv)


def test_vllm_gets_its_own_flags_and_switches() -> None:
    choice = choose_target("vllm", None, "--max-model-len 4096", None)
    command = server_command(
        choice,
        "/models/m",
        {"max_num_batched_tokens": 256, "enable_prefix_caching": False, "dtype": "auto"},
        {},
    )
    assert list(command.argv) == [
        "vllm", "serve", "/models/m", "--host", "127.0.0.1", "--port", "{port}", "--max-num-batched-tokens",
        "256", "--no-enable-prefix-caching", "--max-model-len", "4096",
    ]  # fmt: skip
    assert command.environment == {"VLLM_SERVER_DEV_MODE": "1"}
    assert command.requested == {"max_num_batched_tokens": 256, "enable_prefix_caching": False}


def test_sglang_gets_its_own_names() -> None:
    words = command_of("sglang", max_num_batched_tokens=256, max_num_seqs=8, enable_prefix_caching=False)
    assert words[:5] == ["python", "-m", "sglang.launch_server", "--model-path", "/models/a b"]
    assert words[-7:] == [
        "--chunked-prefill-size", "256", "--max-running-requests", "8", "--disable-radix-cache", "--extra",
        "1",
    ]  # fmt: skip
    assert "--disable-radix-cache" not in command_of("sglang", enable_prefix_caching=True)


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_speak_of_settings_that_the_engine_has(name: str) -> None:
    template = TEMPLATES[name]
    assert {*template.flags, *template.switches, *template.echo} <= set(EngineConfig.model_fields)
    assert "max_num_batched_tokens" in template.echo


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_templates_flag_is_the_name_that_the_factor_gives(name: str) -> None:
    for factor in load_factors().values():
        words = [TEMPLATES[name].flags.get(factor.field, ""), *TEMPLATES[name].switches.get(factor.field, ())]
        told = factor.vllm if name == "vllm" else factor.sglang
        for word in filter(None, words):
            assert word in told, factor.name


def test_a_setting_that_a_server_lacks_is_refused_before_anything_starts() -> None:
    with pytest.raises(InvalidInputError, match=r"watermark=0\.1: a setting that vllm has"):
        command_of("vllm", watermark=0.1)


def test_a_clamped_or_silent_server_has_a_reason() -> None:
    requested = {"max_num_batched_tokens": 64}
    assert echo_mismatches(requested, {"max_num_batched_tokens": 64}) == []
    (clamped,) = echo_mismatches(requested, {"max_num_batched_tokens": 128})
    assert clamped == "config: max_num_batched_tokens=64 was asked for, 128 is in force"
    assert echo_mismatches(requested, None) == [
        "the target does not tell its configuration (no /server_info)"
    ]


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("vllm", "x {port}", None, None), "target"), ((None, "myserver", None, None), "target-command"),
        ((None, "myserver {port}", "--x", None), "target-args"), (("triton", None, None, None), "target"),
        ((None, None, "--x", None), "target-args"),
    ],
)  # fmt: skip
def test_contradictions_name_their_option(words: tuple[Any, ...], field: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        choose_target(*words)
    assert caught.value.field == field


def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, level: Any, **options: Any) -> BenchSpec:
    """What a cell of the sweep asks of ``workbench bench``."""
    seen: list[BenchSpec] = []

    class StopError(Exception):
        pass

    def bench(spec: BenchSpec, _store: RunStore) -> None:
        seen.append(spec)
        raise StopError

    monkeypatch.setattr("workbench.bench.run_bench", bench)
    request = SweepRequest(param="chunk_size", request_rate="2", num_prompts=10, seed=1, blocks=2, **options)
    spec = make_spec(request, {"model": "/models/m"})
    cell = Cell(block=0, position=0, level=level, seed=1, nonce="n", baseline_copy=None)
    with pytest.raises(StopError):
        BenchRunner(spec, RunStore(tmp_path / "runs"))(cell, Load(request_rate=2.0, num_prompts=10))
    return seen[0]


def test_a_cell_of_a_sweep_starts_vllm_with_its_level_and_what_all_levels_share(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = asked(monkeypatch, tmp_path, 256, target="vllm").server
    assert server is not None
    line = " ".join(server.argv)
    assert "--max-num-batched-tokens 256" in line
    assert "--max-num-seqs 32" in line
    assert server.requested == {"max_num_batched_tokens": 256, "max_num_seqs": 32}


def test_a_command_of_ones_own_gets_the_level_in_braces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = "myserver --chunk {chunk_size} --model {model} --port {port}"
    server = asked(monkeypatch, tmp_path, 512, target_command=command).server
    assert server is not None
    assert list(server.argv) == ["myserver", "--chunk", "512", "--model", "/models/m", "--port", "{port}"]
    with pytest.raises(InvalidInputError, match=r"a command with \{chunk_size\} in it"):
        make_spec(SweepRequest(param="chunk_size", target_command="myserver --port {port}"), {})


def test_a_server_that_runs_already_has_only_factors_of_the_load() -> None:
    url = "http://127.0.0.1:9"
    with pytest.raises(InvalidInputError, match="a target started for each level"):
        make_spec(SweepRequest(param="chunk_size", target=url), {})
    assert make_spec(SweepRequest(param="request_rate", target=url), {}).target.base_url is not None
