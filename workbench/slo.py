"""Service-level objectives: the grammar that every command shares, ``ttft:200 itl:50 e2el:5000``
(milliseconds)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.errors import InvalidInputError

KEYS = ("ttft", "ttft_sched", "itl", "tpot", "stall", "e2el", "e2el_sched")
_ALLOWED = f"pairs KEY:MILLISECONDS, KEY one of {', '.join(KEYS)}, e.g. 'ttft:200 itl:50'"


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper bounds, all of which a good request meets (``<=``), in the order they were written."""

    bounds: tuple[tuple[str, float], ...]
    """(key, milliseconds)."""

    def __str__(self) -> str:
        return " ".join(f"{key}:{bound:g}" for key, bound in self.bounds)


def parse_slo(text: str, field: str = "goodput") -> Slo:
    """Parse ``text``; pairs are separated by blanks or commas.

    Raises:
        InvalidInputError: naming ``field`` and the bad part.
    """
    bounds: dict[str, float] = {}
    for part in text.replace(",", " ").split():
        key, separator, number = part.partition(":")
        if not separator or key not in KEYS:
            raise InvalidInputError(field, part, _ALLOWED)
        try:
            bound = float(number)
        except ValueError:
            raise InvalidInputError(field, part, _ALLOWED) from None
        if not math.isfinite(bound) or bound <= 0:
            raise InvalidInputError(field, part, "milliseconds above 0")
        if key in bounds:
            raise InvalidInputError(field, part, f"{key} once")
        bounds[key] = bound
    if not bounds:
        raise InvalidInputError(field, text, _ALLOWED)
    return Slo(tuple(bounds.items()))
