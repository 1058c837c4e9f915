"""Repetition, frequency and presence penalties, kept sparse: a row pays for the tokens it has seen, not for
the vocabulary.

Meaning as in vLLM: repetition looks at prompt and output, the other two at the output only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.sampling_params import SamplingParams


class Penalties:
    """One row's distinct tokens and how often each stands in its output. Arrays grow by doubling."""

    def __init__(
        self,
        repetition: float,
        frequency: float,
        presence: float,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
    ) -> None:
        self.repetition = repetition
        self.frequency = frequency
        self.presence = presence
        # Without repetition penalty the prompt has no say.
        seen = sorted(set(prompt_token_ids)) if repetition != 1.0 else []
        self._place = {token: place for place, token in enumerate(seen)}
        capacity = max(64, 2 * len(seen))
        self._ids = np.zeros(capacity, dtype=np.int64)
        self._ids[: len(seen)] = seen
        self._counts = np.zeros(capacity, dtype=np.float32)
        for token in output_token_ids:
            self.record(token)

    @classmethod
    def create(
        cls, params: SamplingParams, prompt_token_ids: Sequence[int], output_token_ids: Sequence[int]
    ) -> Penalties | None:
        """None when ``params`` penalise nothing."""
        if (
            params.repetition_penalty == 1.0
            and params.frequency_penalty == 0.0
            and params.presence_penalty == 0.0
        ):
            return None
        return cls(
            params.repetition_penalty,
            params.frequency_penalty,
            params.presence_penalty,
            prompt_token_ids,
            output_token_ids,
        )

    def record(self, token: int) -> None:
        """Count one output token."""
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        self._counts[place] += 1.0

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """Distinct tokens seen, int64 [D]."""
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """Times each stands in the output, float32 [D]."""
        return self._counts[: len(self._place)]


def apply_penalties(logits: torch.Tensor, penalised: Sequence[tuple[int, Penalties]]) -> None:
    """Apply to ``logits`` (float32 [R, V], contiguous, in place).

    Pairs are (row of ``logits``, penalties).
    """
    penalised = [(place, penalties) for place, penalties in penalised if len(penalties.ids)]
    if not penalised:
        return
    vocab_size = logits.shape[1]
    lengths = [len(penalties.ids) for _, penalties in penalised]
    index = np.concatenate([penalties.ids + place * vocab_size for place, penalties in penalised])
    counts = np.concatenate([penalties.counts for _, penalties in penalised])

    def spread(values: Sequence[float]) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.asarray(values, dtype=np.float32), lengths)).to(logits.device)

    flat = logits.view(-1)
    where = torch.from_numpy(index).to(logits.device)
    times = torch.from_numpy(counts).to(logits.device)
    repetition = spread([penalties.repetition for _, penalties in penalised])
    values = flat[where]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= spread([penalties.frequency for _, penalties in penalised]) * times
    values -= spread([penalties.presence for _, penalties in penalised]) * (times > 0)
    flat[where] = values
