"""The workbench's own commands. Only signatures are loaded here; each command imports what it needs when it
runs."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add ``bench``, ``profile``, ``forward``, ``compare``, ``runs`` and ``mock-server``."""
    from workbench.commands import bench, compare, forward, mock_server, profile, runs

    app.command("bench")(bench.with_engine_flags(bench.bench))
    app.command("profile")(profile.with_engine_flags(profile.profile))
    app.command("forward")(forward.with_engine_flags(forward.forward))
    app.command("compare")(compare.compare)
    app.add_typer(runs.app, name="runs")
    app.command("mock-server")(mock_server.mock_server)
