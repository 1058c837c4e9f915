"""Prompts as random token ids of exact length: no tokenizer, so no prompt is longer or shorter than asked.

Text that is made from random ids and tokenised again has another length (several times another on some
tokenizers); ids sent as ids have the length they were built with.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workloads.errors import WorkloadError
from workloads.spec import WorkloadSpec

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
    classes: NDArray[np.int64],
    lengths: NDArray[np.int64],
    vocab_size: int,
    entropy: list[int],
) -> list[NDArray[np.int32]]:
    """Token ids of each prompt.

    Args:
        classes: [n] class number of each request.
        lengths: [n] prompt length of each request in tokens, shared prefix included.
        entropy: seed words; the same words give the same ids.

    Returns:
        n arrays of int32; ``result[i].shape == (lengths[i],)``.
    """
    low, high = id_range(vocab_size)
    body_rng, prefix_rng = np.random.default_rng(entropy).spawn(2)
    # One draw for everything, cut into views: 40 million ids take well under a second.
    flat = body_rng.integers(low, high, size=int(lengths.sum()), dtype=np.int32)
    prompts = np.split(flat, np.cumsum(lengths)[:-1]) if len(lengths) else []
    for number, request_class in enumerate(spec.classes):
        if request_class.prefix_tokens == 0:
            continue
        size = (request_class.num_prefixes, request_class.prefix_tokens)
        prefixes = prefix_rng.integers(low, high, size=size, dtype=np.int32)
        for turn, index in enumerate(np.flatnonzero(classes == number)):
            prompts[index][: request_class.prefix_tokens] = prefixes[turn % request_class.num_prefixes]
    return prompts


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
