"""``workbench mock-server``: a scripted server, to test clients and to qualify a client machine."""

from __future__ import annotations

import json
from typing import Annotated

import typer

MAX_DELAY_MS = 3_600_000
"""An hour: the longest deadline of a client."""


def mock_server(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 8000,
    ttft_ms: Annotated[float, typer.Option(min=0, max=MAX_DELAY_MS, help="Delay of the first token.")] = 20.0,
    itl_ms: Annotated[float, typer.Option(min=0, max=MAX_DELAY_MS, help="Delay between events.")] = 5.0,
    output_tokens: Annotated[
        int | None, typer.Option(min=0, help="Default: the request's max_tokens.")
    ] = None,
    tokens_per_event: Annotated[int, typer.Option(min=1, help="Tokens in one event.")] = 1,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Requests served at a time; others wait in order.")
    ] = None,
    model: Annotated[str, typer.Option(help="Name in the API.")] = "mock",
    script: Annotated[
        str | None, typer.Option(help="JSON with further fields of the script, such as '{\"cut_after\": 3}'.")
    ] = None,
) -> None:
    """Serve OpenAI's API from a script: fixed delays, errors, cuts. A request's "mock" object overrides it.

    GET /mock/log tells when each request arrived and each event was sent (CLOCK_MONOTONIC ns).
    """
    import asyncio

    from engine.errors import InvalidInputError
    from workbench.mock_server import MockServer, parse_script, serve

    flags = {
        "ttft_ms": ttft_ms,
        "itl_ms": itl_ms,
        "output_tokens": output_tokens,
        "tokens_per_event": tokens_per_event,
    }
    try:
        further = json.loads(script) if script else {}
    except ValueError as error:
        raise InvalidInputError("script", script, f"a JSON object ({error})") from None
    if not isinstance(further, dict):
        raise InvalidInputError("script", script, "a JSON object")
    server = MockServer(parse_script(json.dumps({**flags, **further})), slots=slots, model=model)
    asyncio.run(serve(server, host, port, lambda url: typer.echo(f"mock server on {url}")))
