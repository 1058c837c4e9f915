"""What a row may not sample (allowed_token_ids, bad_words, min_tokens) and what it is nudged to
(logit_bias).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.sampling_params import SamplingParams

NEG_INF = float("-inf")


class Constraints:
    """One row's hard masks and bias, with the output that bad words and min_tokens look at.

    When the masks together leave nothing, the row falls back to ``allowed_token_ids`` alone (bad words and
    the min_tokens mask give way); where those are not the cause either, the masks are void for this token.
    The engine never dies of it.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        allowed: Sequence[int],
        bad_words: Sequence[Sequence[int]],
        min_tokens: int,
        stop_ids: Sequence[int],
        logit_bias: dict[int, float],
        output_token_ids: Sequence[int],
    ) -> None:
        self._vocab_size = vocab_size
        self._allowed = frozenset(allowed)
        self._allowed_index = torch.tensor(sorted(self._allowed), dtype=torch.int64)
        self._single_bad = frozenset(word[0] for word in bad_words if len(word) == 1)
        self._phrases = tuple(tuple(word) for word in bad_words if len(word) > 1)
        self._tail_length = max((len(word) - 1 for word in self._phrases), default=0)
        self._min_tokens = min_tokens
        self._stop_ids = frozenset(stop_ids)
        self._num_output = len(output_token_ids)
        self._tail = list(output_token_ids[-self._tail_length :]) if self._tail_length else []
        self.bias_ids: npt.NDArray[np.int64] = np.fromiter(logit_bias.keys(), dtype=np.int64)
        self.bias_values: npt.NDArray[np.float32] = np.fromiter(logit_bias.values(), dtype=np.float32)

    @classmethod
    def create(
        cls,
        params: SamplingParams,
        output_token_ids: Sequence[int],
        eos_token_ids: Sequence[int],
        vocab_size: int,
    ) -> Constraints | None:
        """None when ``params`` constrain nothing, which is the common case."""
        stop_ids = (*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids))
        holds_back_stop = bool(stop_ids) and len(output_token_ids) < params.min_tokens
        if not (
            params.allowed_token_ids or params.bad_words_token_ids or params.logit_bias or holds_back_stop
        ):
            return None
        return cls(
            vocab_size=vocab_size,
            allowed=params.allowed_token_ids,
            bad_words=params.bad_words_token_ids,
            min_tokens=params.min_tokens,
            stop_ids=stop_ids,
            logit_bias=params.logit_bias,
            output_token_ids=output_token_ids,
        )

    def record(self, token: int) -> None:
        self._num_output += 1
        if self._tail_length:
            self._tail.append(token)
            del self._tail[: -self._tail_length]

    def _banned(self) -> frozenset[int]:
        """Tokens that bad words and min_tokens forbid at this position."""
        banned = self._single_bad
        completing = {
            phrase[-1]
            for phrase in self._phrases
            if len(phrase) - 1 <= len(self._tail) and tuple(self._tail[1 - len(phrase) :]) == phrase[:-1]
        }
        if completing:
            banned |= completing
        if self._num_output < self._min_tokens:
            banned |= self._stop_ids
        return banned

    def effective(self) -> tuple[frozenset[int], frozenset[int]]:
        """(allowed, banned) in force at this position; empty ``allowed`` means the whole vocabulary.

        Never leaves nothing.
        """
        banned = self._banned()
        leaves_nothing = self._allowed <= banned if self._allowed else len(banned) >= self._vocab_size
        return self._allowed, frozenset() if leaves_nothing else banned

    def apply_allowed(self, row: torch.Tensor) -> None:
        """Set every logit of ``row`` (float32 [V], in place) outside the allowed set to -inf."""
        if self._allowed:
            index = self._allowed_index.to(row.device)
            kept = row[index]
            row.fill_(NEG_INF)
            row[index] = kept

    def permitted(self, token: int) -> int:
        """``token``, or the lowest permitted id where the model itself offered nothing permitted (all -inf
        or NaN).
        """
        allowed, banned = self.effective()
        if token not in banned and (not allowed or token in allowed):
            return token
        candidates = sorted(allowed) if allowed else range(self._vocab_size)
        return next(candidate for candidate in candidates if candidate not in banned)


def apply_constraints(logits: torch.Tensor, constrained: Sequence[tuple[int, Constraints]]) -> None:
    """Apply masks, then bias, to ``logits`` (float32 [R, V], contiguous, in place).

    Pairs are (row of ``logits``, constraints).
    """
    if not constrained:
        return
    vocab_size = logits.shape[1]
    banned_flat: list[int] = []
    bias_flat: list[npt.NDArray[np.int64]] = []
    bias_values: list[npt.NDArray[np.float32]] = []
    for place, constraints in constrained:
        constraints.apply_allowed(logits[place])
        start = place * vocab_size
        banned_flat.extend(start + token for token in constraints.effective()[1])
        if constraints.bias_ids.size:
            bias_flat.append(constraints.bias_ids + start)
            bias_values.append(constraints.bias_values)
    flat = logits.view(-1)
    if banned_flat:
        flat[torch.tensor(banned_flat, dtype=torch.int64, device=logits.device)] = NEG_INF
    if bias_flat:
        index = torch.from_numpy(np.concatenate(bias_flat)).to(logits.device)
        flat[index] += torch.from_numpy(np.concatenate(bias_values)).to(logits.device)
