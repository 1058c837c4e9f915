"""Command-line flags from settings models: ``max_num_seqs`` becomes ``--max-num-seqs``, its description the
help.

``vllm serve`` names its flags after the same fields, so they are the ones that users know.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

Command = Callable[..., None]


def add_flags(
    *models: type[BaseModel], skip: Collection[str] = (), panels: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Decorator: give a typer command one option per field of ``models``.

    The command receives only the fields that the user gave, as keyword arguments beside its own parameters:
    values are checked, and defaults filled in, by the models, so that every way into the engine refuses the
    same things with the same words.

    Args:
        skip: fields that get no flag.
        panels: title of the help panel of each model, in their order.
    """
    titles = list(panels) or [model.__name__ for model in models]

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        names: set[str] = set()
        parameters = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        for model, title in zip(models, titles, strict=True):
            for name, field in model.model_fields.items():
                if name not in skip:
                    names.add(name)
                    parameters.append(_option(name, field, title))

        def run(**values: Any) -> None:
            command(
                **{name: value for name, value in values.items() if name not in names or value is not None}
            )

        run.__name__ = command.__name__
        run.__doc__ = command.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _option(name: str, field: FieldInfo, panel: str) -> inspect.Parameter:
    kind = _plain_type(field.annotation)
    flag = f"--{name.replace('_', '-')}"
    if kind is bool:
        flag = f"{flag}/--no-{flag[2:]}"
    default = field.default
    shown: bool | str = False if default in (None, PydanticUndefined) else str(default)
    option = typer.Option(flag, help=field.description, show_default=shown, rich_help_panel=panel)
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _plain_type(annotation: Any) -> Any:
    """The type that the command line parses: without None; a secret is text."""
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
        if len(kinds) != 1:
            raise TypeError(f"{annotation}: a flag has one type")
        annotation = kinds[0]
    if annotation is SecretStr or get_origin(annotation) is tuple:  # a list is text with commas
        return str
    if get_origin(annotation) is Literal or annotation in (str, int, float, bool):
        return annotation
    raise TypeError(f"{annotation}: no flag can be made of this type")
