"""What a sweep or a capacity search runs against: the builtin engine, vLLM, SGLang, a command of the user's,
or a server that is already there.

Settings are always named as in :class:`engine.config.EngineConfig` (vLLM's names); a template turns them
into the flags of its server.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from engine.errors import InvalidInputError
from experiments.design import level_text
from experiments.factors import AUTO
from experiments.models import Frozen
from workbench.targets.attach import normalise
from workbench.targets.command import ServerCommand, placeholders

BUILTIN = "builtin"
READY_S = 600.0
"""Other servers compile and load for minutes."""


class TargetChoice(Frozen):
    """Fixed before the first run, stored with the question."""

    kind: Literal["builtin", "attach", "command"] = "builtin"
    name: str = BUILTIN
    """builtin, the template's name, "command", or the URL."""
    base_url: str | None = None
    command: str = ""
    """Command line with ``{port}`` and, where it is the user's, the factor's name in braces."""
    extra: str = ""
    """Further flags for a template."""
    served_model: str | None = None
    """Name in the API; None: the first that the server lists."""


@dataclass(frozen=True)
class Template:
    """How a server is started and what it calls our settings.

    Attributes:
        flags: setting to flag; a flag that takes its value as the next word.
        switches: setting to (words when on, words when off).
        echo: setting to the name under which the server tells it.
    """

    command: str
    flags: Mapping[str, str]
    switches: Mapping[str, tuple[str, str]]
    echo: Mapping[str, str] = field(default_factory=dict)


def _same(*names: str) -> dict[str, str]:
    return {name: "--" + name.replace("_", "-") for name in names}


def _switch(name: str) -> tuple[str, str]:
    word = name.replace("_", "-")
    return f"--{word}", f"--no-{word}"


_VLLM_FLAGS = _same(
    "max_num_batched_tokens", "max_num_seqs", "block_size", "long_prefill_token_threshold",
    "scheduling_policy", "max_num_partial_prefills", "dtype", "quantization", "kv_cache_memory_bytes",
    "num_gpu_blocks_override", "stream_interval", "max_model_len", "load_format", "tokenizer",
    "max_logprobs", "gpu_memory_utilization",
)  # fmt: skip
_VLLM_SWITCHES = {
    name: _switch(name) for name in ("enable_prefix_caching", "enable_chunked_prefill", "async_scheduling")
}
_SGLANG_FLAGS = {
    "max_num_batched_tokens": "--chunked-prefill-size",
    "max_num_seqs": "--max-running-requests",
    "block_size": "--page-size",
    "dtype": "--dtype",
    "stream_interval": "--stream-interval",
    "max_model_len": "--context-length",
    "load_format": "--load-format",
    "quantization": "--quantization",
}

TEMPLATES: Mapping[str, Template] = {
    "vllm": Template(
        # The development mode is what makes vLLM tell its configuration.
        command="VLLM_SERVER_DEV_MODE=1 vllm serve {model} --host 127.0.0.1 --port {port}",
        flags=_VLLM_FLAGS,
        switches=_VLLM_SWITCHES,
        echo={name: name for name in ("max_num_batched_tokens", "max_num_seqs", "enable_prefix_caching")},
    ),
    "sglang": Template(
        command="python -m sglang.launch_server --model-path {model} --host 127.0.0.1 --port {port}",
        flags=_SGLANG_FLAGS,
        switches={
            "enable_prefix_caching": ("", "--disable-radix-cache"),
            "async_scheduling": ("", "--disable-overlap-schedule"),
        },
        echo={"max_num_batched_tokens": "chunked_prefill_size", "max_num_seqs": "max_running_requests"},
    ),
}


def choose_target(
    target: str | None, command: str | None, extra: str | None, served_model: str | None
) -> TargetChoice:
    """From ``--target NAME|URL``, ``--target-command``, ``--target-args`` and ``--served-model-name``.

    Raises:
        InvalidInputError: two of them contradict each other, or the name is unknown.
    """
    if command is not None:
        if target is not None:
            raise InvalidInputError("target", target, "nothing beside --target-command")
        if extra:
            raise InvalidInputError("target-args", extra, "with --target vllm or sglang only")
        if "port" not in placeholders(command):
            raise InvalidInputError("target-command", command, "a command with {port} in it")
        return TargetChoice(kind="command", name="command", command=command, served_model=served_model)
    if target in (None, BUILTIN):
        if extra:
            raise InvalidInputError("target-args", extra, "with --target vllm or sglang")
        return TargetChoice(served_model=None)
    if target is not None and target in TEMPLATES:
        return TargetChoice(
            kind="command", name=target, command=TEMPLATES[target].command, extra=extra or "",
            served_model=served_model,
        )  # fmt: skip
    if target is not None and "://" in target:
        url = normalise(target)
        return TargetChoice(kind="attach", name=url, base_url=url, served_model=served_model)
    raise InvalidInputError("target", target, f"{BUILTIN}, {', '.join(TEMPLATES)}, or a URL")


def server_command(
    choice: TargetChoice, model: str, settings: Mapping[str, Any], names: Mapping[str, Any]
) -> ServerCommand:
    """The command line that starts ``choice`` with ``settings``.

    Args:
        settings: engine settings under our names; ``auto`` and None leave the choice to the server.
        names: what a user's own command may put in braces besides (the factor and its level).

    Raises:
        InvalidInputError: a setting that the server has no flag for, or a placeholder that nobody knows.
    """
    values = {name: level_text(value) for name, value in {**settings, **names}.items()}
    template = TEMPLATES.get(choice.name)
    if template is None:
        return ServerCommand.parse(choice.command, {**values, "model": model}, title=choice.name)
    words: list[str] = []
    requested: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None or value == AUTO:
            continue
        words += _words(choice.name, template, name, value)
        if name in template.echo:
            requested[template.echo[name]] = value
    line = " ".join([choice.command, shlex.join(words), choice.extra]).strip()
    return ServerCommand.parse(line, {"model": model}, requested=requested, title=choice.name)


def _words(server: str, template: Template, name: str, value: Any) -> list[str]:
    if name in template.switches and isinstance(value, bool):
        on, off = template.switches[name]
        word = on if value else off
        return [word] if word else []
    if name in template.flags:
        return [template.flags[name], level_text(value)]
    known = ", ".join(sorted({*template.flags, *template.switches}))
    raise InvalidInputError(name, value, f"a setting that {server} has: {known}")
