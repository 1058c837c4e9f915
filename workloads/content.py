"""Prompts as random token ids of exact length: no tokenizer, so no prompt is longer or shorter than asked.

Text that is made from random ids and tokenised again has another length (several times another on some
tokenizers); ids sent as ids have the length they were built with.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workloads.entropy import hashed_ids
from workloads.errors import WorkloadError
from workloads.spec import WorkloadSpec
from workloads.traces.rows import Blocks

Ints = NDArray[np.int64]
Ids = NDArray[np.int32]

DEFAULT_VOCAB_SIZE = 32_000
"""Assumed of a server that does not tell; most vocabularies are larger, and smaller ids are valid in all of
them."""


def id_range(vocab_size: int) -> tuple[int, int]:
    """Half-open range of ids that are ordinary tokens: control and byte tokens lie at the start, added ones
    at the end."""
    if vocab_size < 8:
        raise WorkloadError("vocab_size", vocab_size, "at least 8")
    return min(512, vocab_size // 4), vocab_size - vocab_size // 4


def prompt_ids(
    spec: WorkloadSpec,
    classes: Ints,
    lengths: Ints,
    vocab_size: int,
    words: list[int],
    shape_rng: np.random.Generator,
) -> list[Ids]:
    """Token ids of each prompt.

    Args:
        classes: [n] class number of each request.
        lengths: [n] prompt length of each request in tokens, shared prefix included.
        words: seed words; the same words give the same ids.
        shape_rng: draws the prefix group of each request of a class with a skew.

    Returns:
        n arrays of int32; ``result[i].shape == (lengths[i],)``.
    """
    span = id_range(vocab_size)
    body_rng, prefix_rng = np.random.default_rng(words).spawn(2)
    prompts = _split(body_rng, lengths, span)
    for number, request_class in enumerate(spec.classes):
        if request_class.prefix_tokens == 0:
            continue
        groups = request_class.num_prefixes
        size = (groups, request_class.prefix_tokens)
        prefixes = prefix_rng.integers(*span, size=size, dtype=np.int32)
        mine = np.flatnonzero(classes == number)
        if request_class.prefix_skew > 0:
            weight = np.arange(1, groups + 1, dtype=np.float64) ** -request_class.prefix_skew
            chosen = shape_rng.choice(groups, size=len(mine), p=weight / weight.sum())
        else:
            chosen = np.arange(len(mine)) % groups
        for group, index in zip(chosen, mine, strict=True):
            prompts[index][: request_class.prefix_tokens] = prefixes[group]
    return prompts


def random_prompts(lengths: Ints, span: tuple[int, int], words: list[int]) -> list[Ids]:
    """[n] prompts that share nothing."""
    return _split(np.random.default_rng(words), lengths, span)


def block_prompts(blocks: Blocks, lengths: Ints, span: tuple[int, int], words: list[int]) -> list[Ids]:
    """[n] prompts of named blocks: the same name is the same content, in every row and every window of a
    trace.

    Args:
        lengths: [n] tokens; the last block of a row is cut to its length.
    """
    low, high = span
    place = np.arange(blocks.tokens, dtype=np.int64)
    prompts = []
    for row, length in enumerate(lengths.tolist()):
        keys = (blocks.of(row)[:, None] * blocks.tokens + place).ravel()[:length]
        prompts.append(hashed_ids(keys, words, low, high))
    return prompts


def _split(rng: np.random.Generator, lengths: Ints, span: tuple[int, int]) -> list[Ids]:
    # One draw for everything, cut into views: 40 million ids take well under a second.
    flat = rng.integers(*span, size=int(lengths.sum()), dtype=np.int32)
    return np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else []


_WORDS = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work number night
point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law
car city name team minute idea body back parent face level office door health person art war
history party result change morning reason research girl guy food moment air teacher
""".split()  # noqa: SIM905 - one word a line would hide the code


def text_of(ids: NDArray[np.int32] | None) -> str:
    """Plain words, one per id: most tokenizers make one token of each. For endpoints that take no token
    ids."""
    if ids is None:
        return ""
    return " ".join([_WORDS[i] for i in (ids % len(_WORDS)).tolist()])
