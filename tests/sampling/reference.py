"""The sampler's oracle: one row, plain Python and numpy in float64, written from the definitions and not
from the code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.sampling_params import SamplingParams

Array = npt.NDArray[np.float64]


def processed_logits(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    eos: Sequence[int] = (),
) -> Array:
    """Logits after masks, bias and penalties, in vLLM's order."""
    row = np.array(logits, dtype=np.float64)
    vocab = len(row)
    allowed = set(params.allowed_token_ids) or set(range(vocab))
    banned = {word[0] for word in params.bad_words_token_ids if len(word) == 1}
    for word in params.bad_words_token_ids:
        start = len(output) - (len(word) - 1)
        if len(word) > 1 and start >= 0 and tuple(output[start:]) == tuple(word[:-1]):
            banned.add(word[-1])
    if len(output) < params.min_tokens:
        banned |= set(params.stop_token_ids) | (set() if params.ignore_eos else set(eos))
    if not allowed - banned:
        banned = set()
    for token in range(vocab):
        if token not in allowed or token in banned:
            row[token] = -np.inf
    for token, bias in params.logit_bias.items():
        row[token] += bias
    for token in set(prompt) | set(output):
        row[token] = (
            row[token] / params.repetition_penalty
            if row[token] > 0
            else row[token] * params.repetition_penalty
        )
    for token in set(output):
        row[token] -= params.frequency_penalty * list(output).count(token) + params.presence_penalty
    return row


def kept_probabilities(logits: Sequence[float] | Array, params: SamplingParams) -> Array:
    """Probabilities after temperature, min_p, top_k and top_p; what is cut is 0 and the rest sums to 1."""
    row = np.asarray(logits, dtype=np.float64) / max(params.temperature, 0.01)
    probs = np.exp(row - row.max())
    probs /= probs.sum()
    order = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
    order = [token for token in order if probs[token] >= params.min_p * probs.max()]
    if params.top_k > 0:
        order = order[: params.top_k]
    mass, total, kept = 0.0, float(sum(probs[token] for token in order)), []
    for token in order:
        if mass >= params.top_p * total and kept and params.top_p < 1.0:
            break
        kept.append(token)
        mass += probs[token]
    result = np.zeros_like(probs)
    result[kept] = probs[kept]
    return result / result.sum()
