"""Chat templates: the same text as transformers', in a sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import InvalidInputError, ModelLoadError
from engine.frontend.chat_template import ChatTemplate
from tests.helpers.tiny_model import CHAT_TEMPLATE

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    {"role": "system", "content": "Be brief & <kind>."},
    {"role": "user", "content": " Hi 🙂 "},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "What's 1 < 2?"},
]
TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "größer", "parameters": {"type": "object"}}}
]
TEMPLATES = {
    "tiny": CHAT_TEMPLATE,
    "blocks": """{{ bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{% continue %}{% endif %}
    {% generation %}[{{ message.role | upper }}] {{ message.content | trim }}{% endgeneration %}
{% endfor %}
{% if add_generation_prompt %}
[ASSISTANT]
{% endif %}
""",
    "tools": (
        "{% if tools %}{{ tools | tojson }}{{ tools[0] | tojson(indent=2) }}{% endif %}"
        "{{ messages | length }}{{ extra }}"
    ),
    "namespace": (
        "{% set ns = namespace(last='') %}{% for m in messages %}"
        "{% if m.role == 'user' %}{% set ns.last = m.content %}{% endif %}{% endfor %}"
        "{{ ns.last }}{{ eos_token }}"
    ),
}


def oracle(template: str, messages: list[dict[str, Any]], **options: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template([messages], chat_template=template, **options, **SPECIAL)
    return rendered[0]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_rendering_equals_transformers(
    name: str, add_generation_prompt: bool, tools: list[Any] | None
) -> None:
    options: dict[str, Any] = {"add_generation_prompt": add_generation_prompt, "tools": tools, "extra": "x"}
    ours = ChatTemplate(TEMPLATES[name], SPECIAL).render(CHAT, **options)
    assert ours == oracle(TEMPLATES[name], CHAT, **options)
    assert ours


@pytest.mark.parametrize("content", ["The answer", "The answer ", "", "a\n\n"])
@pytest.mark.parametrize("trimmed", [False, True])
def test_continuing_the_final_message_equals_transformers(content: str, trimmed: bool) -> None:
    template = (
        CHAT_TEMPLATE.replace("message['content']", "message['content'] | trim") if trimmed else CHAT_TEMPLATE
    )
    messages = [*CHAT, {"role": "assistant", "content": content}]
    ours = ChatTemplate(template, SPECIAL).render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert ours == oracle(template, messages, continue_final_message=True)
    assert not ours.endswith("<|im_end|>\n")


def test_the_date_comes_from_the_clock() -> None:
    text = ChatTemplate("{{ strftime_now('%Y') }}", {}).render(CHAT)
    assert text.isdigit()
    assert len(text) == 4


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].nothing.more }}",
        "{{ messages[9]['content'] }}",
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_that_refuses_is_bad_input(template: str) -> None:
    with pytest.raises(InvalidInputError, match="the model's chat template refuses them") as caught:
        ChatTemplate(template, SPECIAL).render(CHAT)
    assert "\n" not in str(caught.value)
    assert "'system', 'user', 'assistant', 'user'" in str(caught.value)


def test_a_damaged_template_is_the_models_fault() -> None:
    with pytest.raises(ModelLoadError, match="the model's chat template is damaged"):
        ChatTemplate("{% for %}", {})


@pytest.mark.parametrize(
    ("messages", "generation", "message"),
    [
        (CHAT, True, "only with add_generation_prompt=false"),
        ([], False, "only when the last message has text content"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
            False,
            "only when the last message has text",
        ),
    ],
)
def test_continue_final_message_needs_one(
    messages: list[dict[str, Any]], generation: bool, message: str
) -> None:
    template = ChatTemplate(CHAT_TEMPLATE, {})
    with pytest.raises(InvalidInputError, match=message):
        template.render(messages, add_generation_prompt=generation, continue_final_message=True)


def test_a_template_that_drops_the_message_cannot_continue() -> None:
    with pytest.raises(InvalidInputError, match="drops the last message"):
        ChatTemplate("{{ messages[0].content }}", {}).render(
            CHAT, add_generation_prompt=False, continue_final_message=True
        )
