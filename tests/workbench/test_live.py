"""What the live table says."""

from __future__ import annotations

import io

from rich.console import Console

from workbench.commands.live import LiveTable, clock, live_cells, live_table
from workbench.load.progress import BenchProgress

NOW = BenchProgress(
    phase="measuring",
    elapsed_s=20.0,
    planned=100,
    sent=60,
    ok=40,
    failed=10,
    in_flight=10,
    tokens=5000,
    expected_s=50.0,
    recent_ttft_ms=(10.0, 30.0, 400.0),
)


def text_of(renderable) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_figures():
    assert live_cells(NOW) == ("50/100", "10", "10", "2", "250", "30 ms", "0:20", "0:30")
    nothing = BenchProgress(phase="measuring", planned=3)
    assert live_cells(nothing) == ("0/3", "0", "", "", "", "", "0:00", "")


def test_a_table_with_a_header_per_figure():
    shown = text_of(live_table(NOW, 0.0))
    for word in ("measuring", "in flight", "recent ttft p50", "50/100", "30 ms", "0:30"):
        assert word in shown
    assert "1:05" in text_of(live_table(BenchProgress(phase="starting"), 65.0))
    assert clock(59.7) == "1:00"


WAITING = BenchProgress(phase="starting", note="waiting for http://h:1 (Connection refused)")


def test_what_it_waits_for_is_in_the_table():
    assert "0:07  waiting for http://h:1 (Connection refused)" in text_of(live_table(WAITING, 7.0))


def test_without_a_table_a_long_wait_is_told_once():
    out = io.StringIO()
    with LiveTable(Console(file=out, width=200), enabled=False) as table:
        for _ in range(3):
            table.show(WAITING)
        table.show(NOW)
    assert out.getvalue() == "waiting for http://h:1 (Connection refused)\n"


def test_nothing_is_drawn_where_it_is_not_wanted(capsys):
    with LiveTable(Console(force_terminal=True), enabled=False) as table:
        table.show(NOW)
    assert capsys.readouterr().out == ""
