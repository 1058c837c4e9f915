"""Token counts of one HTTP request."""

from __future__ import annotations

from typing import Any

from engine.frontend.outputs import RequestOutput


class Usage:
    """Adds up prompt tokens (once per prompt, whatever ``n``), cached ones and generated ones."""

    __slots__ = ("_seen", "cached_tokens", "completion_tokens", "prompt_tokens")

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0

    def add(self, prompt_index: int, output: RequestOutput) -> None:
        if prompt_index not in self._seen:
            self._seen.add(prompt_index)
            self.prompt_tokens += len(output.prompt_token_ids)
            self.cached_tokens += output.num_cached_tokens
        for completion in output.outputs:
            self.completion_tokens += len(completion.token_ids)

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
