"""The engine's commands: ``workbench serve`` and ``workbench model``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from engine.model_store import StoredModel

EXIT_USAGE = 2


def register(app: typer.Typer) -> None:
    """Add the commands of this package to ``app``."""
    from engine.config import EngineConfig
    from engine.server.flags import add_flags
    from engine.server.options import ServerOptions

    flags = add_flags(ServerOptions, EngineConfig, skip=("api_key",), panels=("Server", "Engine"))
    app.command("serve")(flags(serve))
    model = typer.Typer(no_args_is_help=True, help="Get and list the embedded models.")
    model.command("fetch")(fetch)
    model.command("list")(list_models)
    app.add_typer(model, name="model")


def serve(
    model_name: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="The same as --model, as in vllm serve.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="WORKBENCH_API_KEY",
            help="Require this key (Authorization: Bearer KEY). The variable keeps it off the process list.",
            rich_help_panel="Server",
        ),
    ] = None,
    **fields: Any,
) -> None:
    """Serve a model over OpenAI's API: /v1/completions, /v1/chat/completions, /metrics and more."""
    from engine.config import EngineConfig
    from engine.errors import InvalidInputError
    from engine.server.options import ServerOptions

    try:
        if model_name is not None:
            if fields.get("model", model_name) != model_name:
                raise InvalidInputError("model", fields["model"], f"the same as the argument ({model_name})")
            fields["model"] = model_name
        server_fields = {
            name: fields.pop(name) for name in list(fields) if name in ServerOptions.model_fields
        }
        config = EngineConfig.create(**fields)
        options = ServerOptions.create(**server_fields, api_key=api_key)
    except InvalidInputError as error:
        _fail(str(error))
    from engine.server.runner import run

    raise typer.Exit(run(config, options))


def fetch(
    name: Annotated[str, typer.Argument(help="Name of an embedded model; see: workbench model list.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Download an embedded model into the user's cache and check it (done by itself on first use)."""
    from engine.errors import EngineError
    from engine.model_store import fetch_model

    try:
        path = fetch_model(name)
    except EngineError as error:
        _fail(str(error))
    typer.echo(json.dumps({"name": name, "path": str(path)}) if as_json else str(path))


def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """The embedded models, and which of them lie in the user's cache."""
    from engine.model_store import list_models as stored_models

    models = stored_models()
    if as_json:
        typer.echo(json.dumps({"models": [_as_dict(model) for model in models]}))
        return
    for model in models:
        where = str(model.path) if model.path else "not fetched"
        size = f"{model.num_bytes / 1e6:.0f} MB"
        typer.echo(f"{model.name}  {size}  {model.license}  {model.description}  {where}")


def _as_dict(model: StoredModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "description": model.description,
        "license": model.license,
        "num_bytes": model.num_bytes,
        "path": str(model.path) if model.path else None,
    }


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(EXIT_USAGE)
