"""Prompts that the server itself turns into token ids: chats, long texts, and texts without special
tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from engine.frontend.validate import RequestBounds, validate_text_length
from engine.server.chat_messages import normalize_messages
from engine.server.errors import bad_request
from engine.server.protocol import ChatCompletionRequest, TokenizeRequest

if TYPE_CHECKING:
    from engine.frontend.async_llm import AsyncLLM
    from engine.frontend.tokenizer import Tokenizer

T = TypeVar("T")
LONG_TEXT = 20_000
"""Characters above which a text is tokenised on a thread, so that the streams of other requests don't wait
for it.
"""
_TEMPLATE_ARGUMENTS = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})


async def encode(
    tokenizer: Tokenizer, text: str, add_special_tokens: bool, bounds: RequestBounds | None = None
) -> list[int]:
    """Token ids of ``text``; never keeps the event loop for long.

    Raises:
        InvalidInputError: the text is certain to exceed ``bounds``.
    """
    if bounds is not None:
        validate_text_length(text, tokenizer.longest_token, bounds)
    return await _off_loop_if_long(
        len(text), lambda: tokenizer.encode(text, add_special_tokens=add_special_tokens)
    )


async def encode_prompts(
    engine: AsyncLLM, prompts: list[str | list[int]], add_special_tokens: bool
) -> list[str | list[int]]:
    """Texts become token ids where the front end would not do it the way that the request wants."""
    return [
        await encode(engine.tokenizer, prompt, add_special_tokens, engine.bounds)
        if isinstance(prompt, str) and (not add_special_tokens or len(prompt) > LONG_TEXT)
        else prompt
        for prompt in prompts
    ]


async def render_chat(
    tokenizer: Tokenizer,
    body: ChatCompletionRequest | TokenizeRequest,
    bounds: RequestBounds | None = None,
) -> list[int]:
    """Token ids of ``body.messages`` under the model's chat template.

    Raises:
        ApiError: a bad message.
        InvalidInputError: no template, the template's own refusal, or a text that is
            certain to exceed ``bounds``.
    """
    messages = normalize_messages(body.messages or [])
    variables = body.chat_template_kwargs or {}
    if reserved := _TEMPLATE_ARGUMENTS & variables.keys():
        name = f"chat_template_kwargs.{min(reserved)}"
        raise bad_request(name, f"{name}: is a field of the request itself")

    def work() -> list[int]:
        text = tokenizer.apply_chat_template(
            messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            **variables,
        )
        if bounds is not None:
            validate_text_length(text, tokenizer.longest_token, bounds, "messages")
        return tokenizer.encode(text, add_special_tokens=False)

    return await _off_loop_if_long(sum(len(message["content"]) for message in messages), work)


def prompt_text(tokenizer: Tokenizer, prompt: str | None, token_ids: list[int]) -> str:
    """The prompt as text, for ``echo``."""
    return prompt if prompt is not None else tokenizer.decode(token_ids, skip_special_tokens=False)


async def _off_loop_if_long(length: int, work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work) if length > LONG_TEXT else work()
