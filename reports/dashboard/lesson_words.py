"""The lesson in words: what happens in a step, and what is seen there for the first time."""

from __future__ import annotations

from collections.abc import Iterator

from reports.dashboard.lesson import Lesson, LessonStep
from reports.figures.strips import STOP_TEXT
from reports.lifecycle import DECODE, PREFILL


def sentences(play: Lesson, index: int) -> list[str]:
    """What happens in the step, in the order in which the scheduler decides."""
    step = play.steps[index]
    return [
        *_arrivals(play, step),
        *_preemptions(play, step),
        *_shares(play, step),
        *_reuse(step),
        *_waiting(step),
        *_ends(play, step),
    ]


def _arrivals(play: Lesson, step: LessonStep) -> Iterator[str]:
    for event in step.of("queued"):
        player = play.player(event.request)
        yield (
            f"{event.request} arrives: {player.about}; {player.prompt} prompt tokens, "
            f"{player.output} wanted as output."
        )


def _preemptions(play: Lesson, step: LessonStep) -> Iterator[str]:
    for event in step.of("preempted"):
        needing = next(s.request for s in step.shares if s.before % play.block_size == 0)
        yield (
            f"{needing} needs a new block and none is free. The request that entered last, {event.request}, "
            f"gives up all of its blocks: {event.tokens} computed tokens are lost, and it waits at the head "
            "of the queue."
        )


def _shares(play: Lesson, step: LessonStep) -> Iterator[str]:
    for event in step.of("prefix_hit"):
        hit = event.tokens or 0
        blocks = hit // play.block_size
        with_whom = sorted(
            {o for b in step.tables[event.request][:blocks] for o in step.owners(b)} - {event.request}
        )
        how = f"shared with {', '.join(with_whom)}" if with_whom else "taken back from the free list"
        yield f"{event.request} finds {hit} tokens of its prompt in the prefix cache: {blocks} blocks, {how}."
    for event in step.of("resumed"):
        lost = next(s.target for s in step.shares if s.request == event.request) - (event.tokens or 0)
        yield (
            f"{event.request} comes back. {event.tokens} of its tokens are still in the cache, {lost} are "
            "computed again."
        )
    for share in step.shares:
        if share.phase == DECODE:
            continue
        done = share.before + share.tokens
        if done < share.target:
            yield (
                f"{share.request} computes {share.tokens} tokens ({done} of {share.target} are done then): "
                "more does not fit into this step's budget."
            )
        else:
            yield f"{share.request} computes {share.tokens} tokens; that is all, and a token is sampled."
    decoding = [s.request for s in step.shares if s.phase == DECODE]
    if decoding:
        each = "one token" if len(decoding) == 1 else "one token each"
        yield f"{_names(decoding)} decode{'s' if len(decoding) == 1 else ''} {each}."


def _reuse(step: LessonStep) -> Iterator[str]:
    if step.evicted:
        blocks = "1 cached block is" if step.evicted == 1 else f"{step.evicted} cached blocks are"
        yield f"{blocks} used again for something else: what they held can't be found any more."


def _waiting(step: LessonStep) -> Iterator[str]:
    for place, (request, tokens, _) in enumerate(step.waiting):
        why = STOP_TEXT.get(step.stop, step.stop) if place == 0 else f"it is behind {step.waiting[0][0]}"
        yield f"{request} waits ({tokens} tokens to compute): {why}."


def _ends(play: Lesson, step: LessonStep) -> Iterator[str]:
    for event in step.of("finished"):
        last = next(s for s in step.shares if s.request == event.request)
        full = (last.before + last.tokens) // play.block_size
        yield (
            f"{event.request} has its {event.tokens} tokens and leaves after this step. Its {full} full "
            "blocks stay findable until they are needed."
        )


def _names(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


CONCEPTS: tuple[tuple[str, str, str], ...] = (
    (
        "chunked",
        "Chunked prefill",
        "A step has a token budget (max_num_batched_tokens). A prompt that is longer is computed in chunks "
        "over several steps, so that it can't hold up everybody else for long. A small budget means short "
        "steps and smooth decoding, a large one a faster first token.",
    ),
    (
        "mixed",
        "No prefill phase, no decode phase",
        "A step mixes prompt chunks and decodes. Every request only has a target and a progress mark; the "
        "scheduler hands out tokens until they meet. Running requests come first.",
    ),
    (
        "shared",
        "Shared prefix",
        "Full blocks are found by a hash over their tokens and all tokens before them. Two requests with the "
        "same beginning read the same blocks; only what differs is computed and stored twice.",
    ),
    (
        "max_num_seqs",
        "A full batch",
        "At most max_num_seqs requests run at the same time, whatever room is left in budget and KV pool. "
        "Queueing here means that a larger max_num_seqs may help.",
    ),
    (
        "cached",
        "Free, but cached",
        "A request that ends frees its blocks, but they are not wiped: until someone needs them, a new "
        "request with the same tokens takes them back and skips that part of its prefill.",
    ),
    (
        "evicted",
        "Eviction",
        "Empty blocks are handed out first, then cached ones, the longest unused first. Handing one out "
        "removes it from the cache.",
    ),
    (
        "preempted",
        "Preemption",
        "Outputs grow by a token a step, and nobody knows for how long: KV blocks may run out while all "
        "requests are running. The one that entered last gives way and is computed again later. That is lost "
        "work: many preemptions mean that max_num_seqs is too large for the KV pool.",
    ),
    (
        "kv_blocks",
        "Head-of-line blocking",
        "A waiting request enters only when its whole prompt fits into free blocks, and nobody passes the "
        "head of the queue: a big request can't starve.",
    ),
    (
        "resumed",
        "Resuming",
        "What a preempted request had computed often still lies in the cache. It takes back what is left and "
        "computes only the rest, its own output tokens included.",
    ),
    (
        "from_cache",
        "A hit after everyone has gone",
        "No running request holds the document any more, but its blocks lie in the cache. The prefill of 24 "
        "tokens costs 4.",
    ),
)
"""(key, title, text) of what the lesson teaches."""


def concepts(play: Lesson) -> dict[int, list[tuple[str, str]]]:
    """Step index to the (title, text) of what is seen there for the first time."""
    found: dict[int, list[tuple[str, str]]] = {}
    seen: set[str] = set()
    for index, step in enumerate(play.steps):
        for key, title, text in CONCEPTS:
            if key not in seen and _shows(play, index, step, key):
                seen.add(key)
                found.setdefault(index, []).append((title, text))
    return found


def _shows(play: Lesson, index: int, step: LessonStep, key: str) -> bool:
    held = {block for table in step.tables.values() for block in table}
    hits = step.of("prefix_hit")
    shared = bool(hits) and any(len(step.owners(b)) > 1 for b in step.tables[hits[0].request])
    return {
        "chunked": any(s.before + s.tokens < s.target for s in step.shares),
        "mixed": {s.phase for s in step.shares} == {PREFILL, DECODE},
        "shared": shared,
        "max_num_seqs": step.stop == "max_num_seqs",
        "cached": bool(set(step.findable) - held),
        "evicted": step.evicted > 0,
        "preempted": bool(step.of("preempted")),
        "kv_blocks": step.stop == "kv_blocks",
        "resumed": bool(step.of("resumed")),
        "from_cache": bool(hits) and not shared,
    }[key]
