"""The entry point: Ctrl-C while the commands are still being imported."""

import sys

from workbench.__main__ import main


class Interrupted:
    """A module that the user's Ctrl-C meets half-way."""

    def __getattr__(self, name):
        raise KeyboardInterrupt


def test_an_early_interruption_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "workbench.cli", Interrupted())
    assert main() == 130
    assert capsys.readouterr().err == "error: interrupted\n"
