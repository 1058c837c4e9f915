"""The documentation names what exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from engine.server.fields import HARMLESS
from engine.server.options import ServerOptions
from engine.server.protocol import ChatCompletionRequest, CompletionRequest

DOCS = Path(__file__).parents[2] / "docs"
NAME = re.compile(r"\b(?:vllm|workbench):\w+")


@pytest.fixture(scope="module")
def text() -> str:
    return (DOCS / "server.md").read_text()


async def _exported(http: aiohttp.ClientSession) -> set[str]:
    async with http.get("metrics") as response:
        names = NAME.findall(await response.text())
    return {name for name in names if not name.endswith("_created")}  # prometheus_client's own stamps


async def test_board_asks_only_for_what_is_exported(http: aiohttp.ClientSession) -> None:
    board = json.loads((DOCS / "grafana.json").read_text())
    exported = await _exported(http)
    for panel in board["panels"]:
        for target in panel["targets"]:
            names = set(NAME.findall(target["expr"]))
            assert names
            assert names <= exported, panel["title"]
    spots = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(spots)) == len(spots)


async def test_metrics_table_is_complete(http: aiohttp.ClientSession, text: str) -> None:
    table = text.partition("## Metrics")[2]
    exported = {re.sub(r"_(bucket|sum|count)$", "", name) for name in await _exported(http)}
    named = set(NAME.findall(table)) - {"workbench:resumed_prefix_cache_"}
    assert named <= exported
    families = {"queue", "prefill", "decode", "inference"}  # abbreviated in the table
    short = {f"vllm:request_{family}_time_seconds" for family in families}
    resumed = {f"workbench:resumed_prefix_cache_{what}_total" for what in ("queries", "hits")}
    assert exported - named - short - resumed == set()


def test_every_field_is_documented(text: str) -> None:
    words = set(re.findall(r"\w+", text))
    fields = {*CompletionRequest.__struct_fields__, *ChatCompletionRequest.__struct_fields__, *HARMLESS}
    assert fields <= words


def test_every_route_and_option_is_documented(server: TestServer, text: str) -> None:
    for resource in server.app.router.resources():
        assert resource.canonical.replace("{model}", "{id}") in text
    for name in ServerOptions.model_fields:
        assert f"--{name.replace('_', '-')}" in text
