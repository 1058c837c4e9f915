"""Starts the Streamlit server of the dashboard in this process: 127.0.0.1 only, nothing reported to
anyone.
"""

from __future__ import annotations

import os
import socket
import tomllib
from pathlib import Path
from typing import Any

from workbench.runstore import ROOT_VARIABLE, RunStore

APP = Path(__file__).with_name("app.py")
CONFIG = Path(__file__).with_name("config.toml")
ADDRESS = "127.0.0.1"


class PortTakenError(Exception):
    """Another process listens on the port."""


def options(port: int, open_browser: bool) -> dict[str, Any]:
    """Streamlit options as flat names (``server_port``): those of ``config.toml`` and those of this call."""
    flat: dict[str, Any] = {}
    for section, values in tomllib.loads(CONFIG.read_text(encoding="utf-8")).items():
        _flatten(section, values, flat)
    chosen = {"server_address": ADDRESS, "server_port": port, "server_headless": not open_browser}
    return {**flat, **chosen, "browser_serverAddress": ADDRESS}


def _flatten(prefix: str, values: dict[str, Any], out: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict):
            _flatten(f"{prefix}_{key}", value, out)
        else:
            out[f"{prefix}_{key}"] = value


def check_port(port: int) -> None:
    """Raise ``PortTakenError`` when nothing can be bound there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, port))
        except OSError as error:
            raise PortTakenError(
                f"port={port}: a free port on {ADDRESS} ({error.strerror}); choose another with --port"
            ) from None


def serve(runs_dir: Path | None, port: int, *, open_browser: bool) -> None:
    """Serve the store at ``runs_dir`` until interrupted.

    Raises:
        PortTakenError: another process listens on ``port``.
    """
    check_port(port)
    os.environ[ROOT_VARIABLE] = str(RunStore(runs_dir).root.resolve())
    from streamlit.web import bootstrap

    flags = options(port, open_browser)
    bootstrap.load_config_options(flag_options=flags)
    bootstrap.run(str(APP), False, [], flags)
