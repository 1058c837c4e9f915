"""``workbench serve`` and ``workbench model``: flags, one-line errors, exit codes."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from engine.commands import register
from engine.config import EngineConfig
from engine.server import runner
from engine.server.__main__ import main
from engine.server.options import ServerOptions


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    register(app)
    return app


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[EngineConfig, ServerOptions]]:
    """What would have been served."""
    calls: list[tuple[EngineConfig, ServerOptions]] = []

    def run(config: EngineConfig, options: ServerOptions) -> int:
        calls.append((config, options))
        return 0

    monkeypatch.setattr(runner, "run", run)
    return calls


def test_every_field_has_its_flag(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "250"})
    assert result.exit_code == 0
    for name in [*EngineConfig.model_fields, *ServerOptions.model_fields]:
        assert f"--{name.replace('_', '-')}" in result.output


def test_flags_reach_the_config(app: typer.Typer, served: list[tuple[EngineConfig, ServerOptions]]) -> None:
    arguments = [
        *("serve", "some-model", "--port", "9001", "--max-num-batched-tokens", "256", "--max-num-seqs", "8"),
        *("--no-enable-prefix-caching", "--scheduling-policy", "priority", "--watermark", "0.1"),
        *(
            "--trace-dir",
            "traces",
            "--max-waiting-requests",
            "5",
            "--api-key",
            "k",
            "--max-body-bytes",
            "2048",
        ),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    ((config, options),) = served
    assert config == EngineConfig.create(
        model="some-model",
        max_num_batched_tokens=256,
        max_num_seqs=8,
        enable_prefix_caching=False,
        scheduling_policy="priority",
        watermark=0.1,
        trace_dir="traces",
        max_waiting_requests=5,
    )
    assert options == ServerOptions.create(port=9001, api_key="k", max_body_bytes=2048)


def test_without_flags_all_is_default(
    app: typer.Typer, served: list[tuple[EngineConfig, ServerOptions]]
) -> None:
    assert CliRunner().invoke(app, ["serve"]).exit_code == 0
    assert served == [(EngineConfig(), ServerOptions())]


def test_key_from_the_environment(
    app: typer.Typer, served: list[tuple[EngineConfig, ServerOptions]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CliRunner().invoke(app, ["serve"], env={"WORKBENCH_API_KEY": "k"}).exit_code == 0
    monkeypatch.setenv("WORKBENCH_API_KEY", "k2")
    assert main([]) == 0
    keys = [options.api_key.get_secret_value() for _, options in served if options.api_key]
    assert keys == ["k", "k2"]
    assert "k2" not in repr(served[1][1])


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--max-num-seqs", "0"], "max_num_seqs=0"),
        (["--block-size", "1000"], "block_size=1000"),
        (["--watermark", "1.5"], "watermark=1.5"),
        (["--port", "70000"], "port=70000"),
        (["--max-num-batched-tokens", "4", "--max-num-seqs", "8"], "max_num_batched_tokens=4"),
        (["one-model", "--model", "another"], "model='another'"),
    ],
)
def test_bad_values(app: typer.Typer, arguments: list[str], field: str) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: {field}")
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [["--port", "x"], ["--scheduling-policy", "lifo"], ["--nope"]])
def test_bad_flags(app: typer.Typer, arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["serve", *arguments]).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["--config-json", "{"], "error: config-json: not valid JSON"),
        (["--config-json", "[1]"], "error: config-json=[1]: a JSON object"),
        (["--config-json", '{"chunk_size": 5}'], "error: chunk_size=5: "),
        (["--port", "99999"], "error: port=99999: "),
    ],
)
def test_module_refuses(capsys: pytest.CaptureFixture[str], arguments: list[str], start: str) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(start)


def test_module_takes_a_whole_config(served: list[tuple[EngineConfig, ServerOptions]]) -> None:
    config = EngineConfig.create(model="m", max_num_seqs=3, trace_dir="t")
    assert main(["--config-json", config.model_dump_json(), "--host", "::1", "--port", "81"]) == 0
    assert served == [(config, ServerOptions.create(host="::1", port=81))]


def test_model_list(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["model", "list", "--json"])
    assert result.exit_code == 0
    (model,) = json.loads(result.stdout)["models"]
    assert model["name"] == "smollm2-135m"
    assert model["license"] == "Apache-2.0"
    assert "smollm2-135m" in CliRunner().invoke(app, ["model", "list"]).stdout


def test_model_fetch_of_an_unknown_one(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["model", "fetch", "gpt-9"])
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert "gpt-9" in line
    assert "smollm2-135m" in line
