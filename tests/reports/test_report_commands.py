"""``workbench report`` and ``workbench dashboard``: what they print, write and refuse."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from reports.commands import register
from reports.dashboard import launch
from tests.reports.store_factory import write_run, write_sweep

RUNNER = CliRunner()


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    register(made)
    return made


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("small")
    write_run(root, "one", count=5)
    write_sweep(root, "swept", blocks=2, count=5)
    return root


@pytest.mark.parametrize("target", ["one", "swept"])
@pytest.mark.parametrize(
    ("form", "begin"), [("html", "<!doctype html>"), ("md", "## "), ("csv", "figure,panel")]
)
def test_report_writes_into_the_folder_and_prints_the_path(
    app: typer.Typer, small: Path, target: str, form: str, begin: str
) -> None:
    done = RUNNER.invoke(app, ["report", target, "--format", form, "--runs-dir", str(small)])
    assert done.exit_code == 0, done.output
    path = Path(done.stdout.strip())
    assert path == small / target / f"report.{form}"
    assert path.read_text().startswith(begin)


def test_report_takes_a_folder_and_writes_where_told(app: typer.Typer, small: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.md"
    done = RUNNER.invoke(
        app, ["report", str(small / "one"), "--format", "md", "--out", str(out), "--runs-dir", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    assert out.read_text().startswith("## Run chunk 256")
    done = RUNNER.invoke(app, ["report", str(small / "swept"), "--format", "csv", "--out", "-"])
    assert done.stdout.startswith("figure,panel,series")


def test_bad_input_is_one_line_and_exit_2(app: typer.Typer, small: Path, tmp_path: Path) -> None:
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "manifest.json").write_text("{")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "sweep.json").write_text("[]")
    cases = (
        (["report", "nobody", "--runs-dir", str(small)], "target='nobody'"),
        (["report", "torn", "--runs-dir", str(tmp_path)], "manifest.json"),
        (["report", "broken", "--runs-dir", str(tmp_path)], "sweep.json"),
        (["report", "one", "--runs-dir", str(small), "--out", "/no/such/place/x"], "out="),
    )
    for arguments, named in cases:
        done = RUNNER.invoke(app, arguments)
        assert done.exit_code == 2, arguments
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("error: ")
        assert named in done.stderr
        assert done.stdout == ""


def test_a_taken_port_is_one_line_and_exit_2(app: typer.Typer, small: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = RUNNER.invoke(
            app, ["dashboard", "--port", str(port), "--no-browser", "--runs-dir", str(small)]
        )
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert f"port={port}: a free port on 127.0.0.1" in done.stderr


def test_the_server_is_local_and_reports_nothing() -> None:
    flags = launch.options(8600, open_browser=False)
    assert flags["server_address"] == "127.0.0.1"
    assert flags["server_port"] == 8600
    assert flags["server_headless"] is True
    assert flags["browser_gatherUsageStats"] is False
    assert flags["server_allowedHosts"] == ["127.0.0.1", "localhost"]


def test_every_option_is_one_that_streamlit_knows() -> None:
    from streamlit import config

    known = {name.replace(".", "_") for name in config.get_config_options()}
    assert set(launch.options(8600, open_browser=True)) <= known
