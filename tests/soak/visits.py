"""What rude and polite clients do to a server, one connection each, over bare sockets."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

READ_DEADLINE_S = 60.0
PREFIX = "The quick brown fox jumps over the lazy dog. "
QUESTIONS = tuple(f"{PREFIX * (i % 3)}Question {i}: what is {i * 37}?" for i in range(8))
"""Asked greedily again and again: each has one right answer, whoever else is there."""


class Behaviour(StrEnum):
    STAY = "stays to the end"
    LEAVE_AT_ONCE = "leaves right after asking"
    LEAVE_LATER = "leaves a moment later"
    LEAVE_READING = "leaves in the middle of the answer"
    RESET = "resets the connection in the middle of the answer"
    HALF_BODY = "leaves in the middle of the question"
    CONFUSED = "asks for something impossible"


WEIGHTS = {
    Behaviour.STAY: 40, Behaviour.LEAVE_AT_ONCE: 12, Behaviour.LEAVE_LATER: 15, Behaviour.LEAVE_READING: 12,
    Behaviour.RESET: 12, Behaviour.HALF_BODY: 4, Behaviour.CONFUSED: 5,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Visit:
    behaviour: Behaviour
    path: str
    body: dict[str, Any]
    question: int | None
    """Index in :data:`QUESTIONS` when the answer is known."""
    patience: float
    """0 to 1: how long those who leave stay."""


def make_visit(rng: random.Random) -> Visit:
    behaviour = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    question = rng.randrange(len(QUESTIONS)) if rng.random() < 0.5 else None
    chat = question is None and rng.random() < 0.3
    body: dict[str, Any] = {"stream": rng.random() < 0.6, "max_tokens": rng.randint(1, 40)}
    if question is not None:
        body |= greedy(question)
    else:
        body |= _sampled(rng)
        text = PREFIX * rng.randint(0, 4) + "x" * rng.randint(1, 60)
        body |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    body["priority"] = rng.randint(0, 2)
    if behaviour is Behaviour.CONFUSED:
        body |= rng.choice(({"temperature": 9}, {"max_tokens": 10**9}, {"stop": ""}, {"nonsense": 1}))
    path = "/v1/chat/completions" if chat else "/v1/completions"
    return Visit(behaviour, path, body, question, rng.random())


def greedy(question: int) -> dict[str, Any]:
    return {"prompt": QUESTIONS[question], "temperature": 0, "max_tokens": 24, "ignore_eos": True}


def _sampled(rng: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {"temperature": 1.0, "n": rng.choice((1, 1, 1, 3))}
    extras: tuple[dict[str, Any], ...] = (
        {}, {"top_p": 0.8}, {"stop": ["e", "THE"]}, {"repetition_penalty": 1.3}, {"cache_salt": "mine"},
        {"min_tokens": 3, "max_tokens": 30}, {"seed": 5, "ignore_eos": True}, {"logit_bias": {"5": 3.0}},
    )  # fmt: skip
    fields |= rng.choice(extras)
    return fields


@dataclass(frozen=True, slots=True)
class Answer:
    """``text`` is the first choice's; ``ended`` says that the answer was complete."""

    status: int
    text: str
    ended: bool


async def pay(visit: Visit, port: int) -> Answer | None:
    """Behave as told; None of those who left before the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(READ_DEADLINE_S):
            return await _behave(visit, reader, writer)
    except ConnectionError:
        if visit.behaviour in (Behaviour.STAY, Behaviour.CONFUSED):
            raise
        return None
    finally:
        if visit.behaviour is Behaviour.RESET:
            writer.transport.abort()
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def _behave(visit: Visit, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer | None:
    raw = json.dumps(visit.body).encode()
    head = (
        f"POST {visit.path} HTTP/1.1\r\nHost: soak\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    ).encode()
    match visit.behaviour:
        case Behaviour.HALF_BODY:
            writer.write(head + raw[: len(raw) // 2])
            await asyncio.sleep(0.02 * visit.patience)
            return None
        case Behaviour.STAY | Behaviour.CONFUSED:
            writer.write(head + raw)
            return _parse(await reader.read(-1))
        case Behaviour.LEAVE_AT_ONCE:
            writer.write(head + raw)
            await writer.drain()
        case Behaviour.LEAVE_LATER:
            writer.write(head + raw)
            await asyncio.sleep(0.2 * visit.patience)
        case Behaviour.LEAVE_READING | Behaviour.RESET:
            writer.write(head + raw)
            for _ in range(1 + int(6 * visit.patience)):
                if not await reader.read(300):
                    break
    return None


def _parse(raw: bytes) -> Answer:
    head, _, body = raw.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if b"text/event-stream" not in head:
        if status != 200:
            return Answer(status, "", ended=False)
        choice = json.loads(body)["choices"][0]
        return Answer(status, choice.get("text", ""), choice["finish_reason"] in ("stop", "length"))
    lines = [line[6:] for line in body.splitlines() if line.startswith(b"data: ")]
    choices = [choice for line in lines[:-1] for choice in json.loads(line).get("choices", [])]
    text = "".join(choice.get("text", "") for choice in choices if choice["index"] == 0)
    return Answer(status, text, lines[-1:] == [b"[DONE]"])
