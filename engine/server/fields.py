"""Which request fields exist, beside those that the structs of :mod:`engine.server.protocol` honour.

No field is accepted and ignored: a field is honoured, or it is one of the few that by its own definition
can't change the answer (``HARMLESS``), or it asks for nothing (``UNSUPPORTED`` with a neutral value), or the
request is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.server.errors import bad_request

HARMLESS = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})
"""Labels for the operator's own books; they change no answer anywhere."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A known field that the engine can't honour; ``neutral`` values ask for nothing and are let through."""

    why: str
    neutral: tuple[Any, ...] = ()


_TOOLS = "tool calling is not supported"
_STRUCTURED = "structured output is not supported"
_MEDIA = "only text is supported"
_REASONING = "reasoning controls are not supported"

_SHARED: Mapping[str, Unsupported] = {
    "response_format": Unsupported(_STRUCTURED, ({"type": "text"},)),
    "structured_outputs": Unsupported(_STRUCTURED),
    "guided_json": Unsupported(_STRUCTURED),
    "guided_regex": Unsupported(_STRUCTURED),
    "guided_choice": Unsupported(_STRUCTURED),
    "guided_grammar": Unsupported(_STRUCTURED),
    "logits_processors": Unsupported("custom logits processors are not supported"),
    "best_of": Unsupported("best_of is not supported: use n", (1,)),
    "spaces_between_special_tokens": Unsupported("only true is supported", (True,)),
    "truncate_prompt_tokens": Unsupported("prompts are never cut: shorten it before it is sent"),
    "kv_transfer_params": Unsupported("KV transfer is not supported"),
    "mm_processor_kwargs": Unsupported(_MEDIA),
    "request_id": Unsupported("send the id in the header X-Request-Id"),
    "service_tier": Unsupported("there is one tier", ("auto", "default")),
    "store": Unsupported("nothing is stored", (False,)),
}

_COMPLETION: Mapping[str, Unsupported] = {
    **_SHARED,
    "suffix": Unsupported("insertion is not supported", ("",)),
    "prompt_embeds": Unsupported("prompts are text or token ids"),
}

_CHAT: Mapping[str, Unsupported] = {
    **_SHARED,
    "tools": Unsupported(_TOOLS, ([],)),
    "tool_choice": Unsupported(_TOOLS, ("none", "auto")),
    "parallel_tool_calls": Unsupported(_TOOLS, (True, False)),
    "functions": Unsupported(_TOOLS, ([],)),
    "function_call": Unsupported(_TOOLS, ("none", "auto")),
    "modalities": Unsupported(_MEDIA, (["text"],)),
    "audio": Unsupported(_MEDIA),
    "prediction": Unsupported("predicted output is not supported"),
    "reasoning_effort": Unsupported(_REASONING),
    "include_reasoning": Unsupported(_REASONING),
    "verbosity": Unsupported("verbosity control is not supported", ("medium",)),
    "web_search_options": Unsupported("web search is not supported"),
    "chat_template": Unsupported("the model's own chat template is used"),
    "documents": Unsupported("documents are not supported"),
    "echo": Unsupported("echo exists in /v1/completions only", (False,)),
    "add_special_tokens": Unsupported("the chat template adds the special tokens", (False,)),
}

UNSUPPORTED: Mapping[str, Mapping[str, Unsupported]] = {
    "CompletionRequest": _COMPLETION,
    "ChatCompletionRequest": _CHAT,
}
"""Per struct name."""


def select_fields(body: Mapping[str, Any], struct_name: str, known: frozenset[str]) -> dict[str, Any]:
    """The honoured fields of ``body`` that were given (``null`` = not given).

    Raises:
        ApiError: 400 naming the first field that is unknown or asks for something unsupported.
    """
    unsupported = UNSUPPORTED.get(struct_name, {})
    selected: dict[str, Any] = {}
    for name, value in body.items():
        if name in known:
            if value is not None:
                selected[name] = value
        elif name in HARMLESS or (
            (rule := unsupported.get(name)) and (value is None or value in rule.neutral)
        ):
            continue
        elif rule := unsupported.get(name):
            raise bad_request(name, f"{name}: {rule.why}", code="unsupported_parameter")
        else:
            shown = name[:100]
            raise bad_request(shown, f"{shown}: unknown field", code="unknown_parameter")
    return selected
