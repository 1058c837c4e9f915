"""Where requests come from when they are not classes of random tokens: files, traces, sessions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from workloads.fields import Length, Spec

LengthPolicy = Literal["drop", "truncate", "scale"]


class TraceSource(Spec):
    """A published trace: its arrival times, lengths and, where it tells, which content is shared.

    Rows pass, in this order: ``model``/``log_type`` filter → failures and empty rows dropped → ``min_*`` →
    window → length policy → ``max_rows``. The result says how many rows each step touched.
    """

    kind: Literal["trace"] = "trace"
    format: Literal["mooncake", "azure", "burstgpt"]
    path: str
    start_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Window in the trace's own time; its start becomes the start of the run."""
    end_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    speed: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """2 plays the trace twice as fast."""
    spread: Literal["none", "uniform"] = "none"
    """``uniform`` moves each row by a random part of the grid on which the trace's stamps lie (3 s in
    Mooncake's
    conversations, where up to 28 rows bear one millisecond)."""
    max_input_tokens: int | None = Field(default=None, ge=1)
    max_output_tokens: int | None = Field(default=None, ge=1)
    min_input_tokens: int = Field(default=1, ge=1)
    length_policy: LengthPolicy = "drop"
    """Rows over a maximum: left out, cut to it, or all rows scaled by the one factor that makes the
    longest fit."""
    max_rows: int | None = Field(default=None, ge=1)
    model: str | None = None
    """BurstGPT: only rows of this model (``GPT-4``, ``ChatGPT``)."""
    log_type: str | None = None
    """BurstGPT: only rows of this kind (``Conversation log``, ``API log``)."""
    block_tokens: int = Field(default=512, ge=1)
    """Mooncake: tokens that one hash id stands for."""

    @model_validator(mode="after")
    def _window(self) -> TraceSource:
        if self.end_s is not None and self.end_s <= self.start_s:
            raise ValueError(f"end_s={self.end_s:g} is not after start_s={self.start_s:g}")
        if self.format != "burstgpt" and (self.model or self.log_type):
            raise ValueError(f"model and log_type: {self.format} traces have no such column")
        return self


class ShareGptSource(Spec):
    """A file in ShareGPT's format: the first human turn is the prompt, the reply to it sets the output
    length."""

    kind: Literal["sharegpt"] = "sharegpt"
    path: str
    output_tokens: int | None = Field(default=None, ge=1)
    """Instead of the recorded reply's length."""
    min_tokens: int = Field(default=4, ge=1)
    max_input_tokens: int = Field(default=1024, ge=1)
    max_total_tokens: int = Field(default=2048, ge=1)


class SonnetSource(Spec):
    """Text of verse lines; the first ``prefix_tokens`` are the same in every prompt."""

    kind: Literal["sonnet"] = "sonnet"
    path: str | None = None
    """A text file whose lines are used; default: some of Shakespeare's sonnets, shipped."""
    input_tokens: Length
    output_tokens: Length
    prefix_tokens: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _prefix_fits(self) -> SonnetSource:
        if self.prefix_tokens > self.input_tokens.least:
            raise ValueError(
                f"prefix_tokens={self.prefix_tokens} exceeds the shortest prompt ({self.input_tokens.least})"
            )
        return self


class JsonlSource(Spec):
    """One JSON object a line: ``prompt`` (text), ``prompt_token_ids`` or ``messages``; ``output_tokens``;
    ``timestamp`` (ms), ``group``, ``extra_body`` if wanted."""

    kind: Literal["jsonl"] = "jsonl"
    path: str
    output_tokens: int = Field(default=256, ge=1)
    """Of lines that do not tell."""


class SessionsSource(Spec):
    """Conversations of several turns; a turn is sent a think time after the answer to the one before it."""

    kind: Literal["sessions"] = "sessions"
    turns: Length
    first_input_tokens: Length
    """Opening turn, the shared prefix included."""
    input_tokens: Length
    """What each later turn adds."""
    output_tokens: Length
    think_s: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Mean; from the last token of an answer to the sending of the next turn."""
    think_kind: Literal["constant", "exponential"] = "exponential"
    history: Literal["reply", "scripted"] = "reply"
    """What stands for the answers in later prompts: the server's own tokens, or random ones fixed
    beforehand."""
    prefix_tokens: int = Field(default=0, ge=0)
    """System prompt shared by all sessions."""

    @model_validator(mode="after")
    def _prefix_fits(self) -> SessionsSource:
        if self.prefix_tokens > self.first_input_tokens.least:
            least = self.first_input_tokens.least
            raise ValueError(f"prefix_tokens={self.prefix_tokens} exceeds the shortest opening ({least})")
        return self

    @property
    def max_total_tokens(self) -> int:
        later = self.turns.most - 1
        return (
            self.first_input_tokens.most
            + later * self.input_tokens.most
            + self.turns.most * self.output_tokens.most
        )


Source = Annotated[
    TraceSource | ShareGptSource | SonnetSource | JsonlSource | SessionsSource, Field(discriminator="kind")
]
