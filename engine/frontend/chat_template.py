"""Renders a model's chat template (Jinja, Hugging Face's dialect), in a sandbox: models aren't trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import InvalidInputError, ModelLoadError

# The blank behind it shows whether the template trimmed the message.
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


class _GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks a reply for training; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own declaration)

    def parse(self, parser: Parser) -> Node | list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template.

    Args:
        source: the template's text.
        special_tokens: ``bos_token`` and the like, which templates refer to.

    Raises:
        ModelLoadError: the template isn't valid Jinja.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelLoadError(f"the model's chat template is damaged: {error}") from None

    def render(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The conversation as the model's text.

        Raises:
            InvalidInputError: the template refuses the messages, or both endings were asked for.
        """
        if continue_final_message:
            if add_generation_prompt:
                raise InvalidInputError(
                    "continue_final_message",
                    True,
                    "only with add_generation_prompt=false: they exclude each other",
                )
            messages = _with_tag(messages)
        try:
            text = self._template.render(
                {
                    **self._special_tokens,
                    **variables,
                    "messages": list(messages),
                    "tools": list(tools) if tools else None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except Exception as error:  # a template is a program that came with the model: it may raise anything
            reason = str(error).strip().splitlines()
            raise InvalidInputError(
                "messages",
                _roles(messages),
                f"the model's chat template refuses them: {reason[0] if reason else error!r}",
            ) from None
        return _cut_at_tag(text) if continue_final_message else text


def _with_tag(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    if not messages or not isinstance(messages[-1].get("content"), str):
        raise InvalidInputError("continue_final_message", True, "only when the last message has text content")
    return [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + _CONTINUE_TAG}]


def _cut_at_tag(text: str) -> str:
    at = text.rfind(_CONTINUE_TAG.strip())
    if at < 0:
        raise InvalidInputError(
            "continue_final_message", True, "the model's chat template drops the last message"
        )
    kept = text[:at]
    return kept if text.startswith(_CONTINUE_TAG, at) else kept.rstrip()


def _roles(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [message.get("role") for message in messages]


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Jinja's own filter escapes HTML, which would change the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
