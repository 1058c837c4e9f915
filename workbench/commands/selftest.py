"""Shows the client's own card (``workbench bench --self-test``)."""

from __future__ import annotations

import json
from typing import Any

import typer

from workbench.commands.display import make_console


def self_test(as_json: bool) -> None:
    """Measure and print; everything but the JSON goes to stderr."""
    from rich.table import Table

    from workbench.manifest import machine_info
    from workbench.selftest import client_card

    console = make_console(stderr=True)
    card = client_card(say=lambda text: console.print(text, style="dim"))
    machine = machine_info()
    if as_json:
        typer.echo(json.dumps({"machine": machine, **card}))
        return
    table = Table(title=f"the load generator on {machine['cpu']}, {machine['usable_cpus']} CPUs", box=None)
    columns = (
        "load",
        "delivered",
        "late p50 / p99 ms",
        "lag p99 ms",
        "loop lag p99 ms",
        "CPU %",
        "workers",
        "fit",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "load" else "right")
    for row in card["rates"]:
        late = f"{row['arrival_late_p50_ms']:.2f} / {row['arrival_late_p99_ms']:.2f}"
        delivered = f"{row['delivered_share']:.1%}"
        table.add_row(f"{row['requested_rate']:g} requests/s", delivered, late, *_tail(row))
    for row in card["streams"]:
        asked = f"{row['requested_events_s']:.0f} events/s"
        table.add_row(asked, f"{row['events_s']:.0f}", "", *_tail(row))
    ceiling = card["ceiling"]
    table.add_row("32 in a closed loop", f"{ceiling['request_s']:.0f} requests/s", "", *_tail(ceiling))
    console.print(table)
    console.print("lateness is from the schedule to the request's first byte at the server", style="dim")


def _tail(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{row['lag_p99_ms']:.2f}",
        f"{row['loop_lag_p99_ms'] or 0:.2f}",
        f"{row['cpu_percent']:.0f}",
        str(row["workers"]),
        "yes" if row["fit"] else "no",
    )
