"""Requests made of text: ShareGPT-like files, verse, the user's own lines.

Text is the file's, so the run nonce can't change it as it changes random tokens: it is put in front, as a
short tag,
unless content shall be reused. That costs a few tokens and keeps a second run off the prefix cache of the
first.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from workloads.entropy import tag
from workloads.errors import WorkloadError
from workloads.lengths import sample
from workloads.request import WorkloadRequest
from workloads.sources import JsonlSource, ShareGptSource, SonnetSource
from workloads.tokens import TokenCounter

Items = tuple[list[WorkloadRequest], dict[str, Any]]


def sharegpt(
    source: ShareGptSource, count: int, count_tokens: TokenCounter, rng: np.random.Generator
) -> Items:
    """Prompt and output length of the first exchange of each conversation, in an order drawn from ``rng``.

    Conversations are left out when their first two turns are not human then assistant, or their lengths lie
    outside the source's bounds. Nothing is sent twice: a short file gives fewer requests, and says so.
    """
    raw = _read(source.path)
    try:
        conversations = msgspec.json.decode(raw, type=list[dict[str, Any]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WorkloadError("path", source.path, f"a JSON list of conversations ({error})") from None
    pairs = [pair for pair in map(_first_exchange, conversations) if pair is not None]
    notes = {
        "conversations_in_file": len(conversations),
        "dropped_no_exchange": len(conversations) - len(pairs),
    }
    inputs = count_tokens([prompt for prompt, _ in pairs])
    replies = count_tokens([reply for _, reply in pairs])
    outputs = [source.output_tokens or n for n in replies]
    fitting = [
        i
        for i in range(len(pairs))
        if source.min_tokens <= inputs[i] <= source.max_input_tokens
        and replies[i] >= source.min_tokens
        and inputs[i] + outputs[i] <= source.max_total_tokens
    ]
    notes["dropped_by_length"] = len(pairs) - len(fitting)
    if not fitting:
        raise WorkloadError("path", source.path, f"a file with conversations that fit ({notes})")
    order = rng.permutation(len(fitting))[:count]
    if len(fitting) < count:
        notes["asked_for_more_than_there_are"] = count
    chosen = [fitting[i] for i in order]
    return [
        WorkloadRequest(index=k, offset_ns=0, group="sharegpt", max_tokens=outputs[i], prompt=pairs[i][0])
        for k, i in enumerate(chosen)
    ], notes


def _first_exchange(conversation: dict[str, Any]) -> tuple[str, str] | None:
    turns = conversation.get("conversations") or conversation.get("messages") or []
    if len(turns) < 2 or not all(isinstance(turn, dict) for turn in turns[:2]):
        return None
    first, second = ((t.get("from") or t.get("role"), t.get("value") or t.get("content")) for t in turns[:2])
    if first[0] not in ("human", "user") or second[0] not in ("gpt", "assistant", "chatgpt"):
        return None
    if not isinstance(first[1], str) or not isinstance(second[1], str) or not first[1].strip():
        return None
    return first[1], second[1]


def sonnet(
    source: SonnetSource,
    count: int,
    count_tokens: TokenCounter,
    length_rng: np.random.Generator,
    content: list[int],
) -> Items:
    """Prompts of verse lines, each as long as the drawn length allows (never longer).

    Lines are drawn by ``content``; a prefix is a fixed run of lines at the start of every prompt.
    """
    lines = [line for line in _lines(source.path) if line.strip()]
    if not lines:
        raise WorkloadError("path", source.path, "a text file with lines")
    sizes = np.array(count_tokens([line + "\n" for line in lines]), np.int64)
    inputs = sample(source.input_tokens, count, length_rng)
    outputs = sample(source.output_tokens, count, length_rng)
    line_rng, prefix_rng = np.random.default_rng(content).spawn(2)
    prefix, used = _fill(lines, sizes, prefix_rng, source.prefix_tokens)
    requests = []
    for k in range(count):
        body, _ = _fill(lines, sizes, line_rng, int(inputs[k]) - used)
        text = "\n".join((*prefix, *body)) or lines[0]
        requests.append(
            WorkloadRequest(index=k, offset_ns=0, group="sonnet", max_tokens=int(outputs[k]), prompt=text)
        )
    return requests, {"lines_in_file": len(lines)}


def _fill(lines: list[str], sizes: np.ndarray, rng: np.random.Generator, room: int) -> tuple[list[str], int]:
    """Random lines, each as often as drawn, while they fit into ``room`` tokens."""
    if room < int(sizes.min()):
        return [], 0
    drawn = rng.integers(0, len(lines), size=room // int(sizes.min()) + 1)
    upto = np.cumsum(sizes[drawn])
    fit = int(np.searchsorted(upto, room, side="right"))
    return [lines[i] for i in drawn[:fit]], int(upto[fit - 1]) if fit else 0


def _lines(path: str | None) -> list[str]:
    if path is None:
        return (files("workloads") / "data" / "sonnets.txt").read_text(encoding="utf-8").splitlines()
    try:
        return _read(path).decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise WorkloadError("path", path, "a text file in UTF-8") from None


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    prompt: str | None = None
    prompt_token_ids: list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    output_tokens: int | None = None
    timestamp: float | None = None
    group: str = "custom"
    extra_body: dict[str, Any] = {}


def jsonl(source: JsonlSource, count: int) -> Items:
    """The first ``count`` lines of the user's file, in its order (with timestamps: in theirs)."""
    decoder, requests = msgspec.json.Decoder(_Line), []
    lines = [line for line in _read(source.path).splitlines() if line.strip()]
    for number, text in enumerate(lines, 1):
        try:
            line = decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise WorkloadError(
                "path", source.path, f"lines that are requests (line {number}: {error})"
            ) from None
        if sum(part is not None for part in (line.prompt, line.prompt_token_ids, line.messages)) != 1:
            raise WorkloadError(
                "path", source.path, f"one of prompt, prompt_token_ids, messages (line {number})"
            )
        ids = line.prompt_token_ids
        requests.append(
            WorkloadRequest(
                index=number - 1,
                offset_ns=None if line.timestamp is None else round(line.timestamp * 1e6),
                group=line.group,
                max_tokens=max(1, line.output_tokens or source.output_tokens),
                prompt_token_ids=None if ids is None else np.array(ids, np.int32),
                prompt=line.prompt,
                messages=line.messages,
                num_prompt_tokens=None if ids is None else len(ids),
                extra_body=line.extra_body,
            )
        )
    if not requests:
        raise WorkloadError("path", source.path, "a file with at least one line")
    notes = {"lines_in_file": len(requests)}
    if len(requests) > count:
        notes["dropped_beyond_num_requests"] = len(requests) - count
    return requests[:count], notes


def tagged(request: WorkloadRequest, *parts: object) -> dict[str, Any]:
    """Content of ``request`` with a tag of ``parts`` in front (token ids stay as they are)."""
    mark = tag(*parts)
    if request.prompt is not None:
        return {"prompt": f"[{mark}] {request.prompt}"}
    if request.messages is not None:
        first, *rest = request.messages
        text = first.get("content")
        return (
            {"messages": [{**first, "content": f"[{mark}] {text}"}, *rest]} if isinstance(text, str) else {}
        )
    return {}


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise WorkloadError("path", path, f"a readable file ({error.strerror})") from None
