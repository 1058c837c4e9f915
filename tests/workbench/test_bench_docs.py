"""Every flag of ``workbench bench`` that is not a setting of the builtin engine is in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from engine.config import EngineConfig
from workbench.cli import build_app
from workbench.profiling.flags import ProfileFlags

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("workloads.md", "metrics.md", "tracing.md")
SELF_EVIDENT = {"--help", "-h", "--progress", "--no-progress"}


def flags() -> list[str]:
    command = typer.main.get_command(build_app()).commands["bench"]
    elsewhere = {*EngineConfig.model_fields, *ProfileFlags.model_fields} - {"seed", "model"}
    return sorted(
        option
        for parameter in command.params
        if parameter.name not in elsewhere
        for option in parameter.opts
        if option not in SELF_EVIDENT
    )


@pytest.mark.parametrize("flag", flags())
def test_it_is_explained(flag):
    text = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
    assert re.search(rf"{flag}\b", text), f"{flag} is in none of {', '.join(PAGES)}"
