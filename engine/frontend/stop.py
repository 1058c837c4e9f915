"""Stop strings: found across token borders, and never shown to anyone before they are found."""

from __future__ import annotations

from collections.abc import Sequence


class _Matcher:
    """Knuth-Morris-Pratt over a stream: ``depth`` is the longest end of the text that is a start of
    ``pattern``.

    So it says at once whether the pattern is complete and how much must be held back, in constant
    amortised time a character whatever pattern a user sends.
    """

    __slots__ = ("_border", "depth", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.depth = 0
        self._border = [0] * len(pattern)
        depth = 0
        for i in range(1, len(pattern)):
            while depth and pattern[i] != pattern[depth]:
                depth = self._border[depth - 1]
            depth += pattern[i] == pattern[depth]
            self._border[i] = depth

    def step(self, char: str) -> bool:
        """Take one character; True when the pattern ends with it (``depth`` is then that of its longest
        border).
        """
        depth = self.depth
        while depth and char != self.pattern[depth]:
            depth = self._border[depth - 1]
        depth += char == self.pattern[depth]
        complete = depth == len(self.pattern)
        self.depth = self._border[depth - 1] if complete else depth
        return complete


class StopStrings:
    """Holds back the end of a text as long as it may turn out to be the start of a stop string (so at most
    ``max(len) - 1`` characters).

    The first stop string to be *complete* wins (of several that end on the same character, the longest),
    so the outcome doesn't depend on how the text was cut into pieces. Only generated text is looked at: a
    prompt's text never counts, nor does a stop string that begins in it.

    Args:
        stop: the stop strings, none empty.
        include: leave the stop string in the text (``include_stop_str_in_output``); nothing is held back
            then.
    """

    def __init__(self, stop: Sequence[str], *, include: bool) -> None:
        self._matchers = [_Matcher(pattern) for pattern in sorted(stop, key=len, reverse=True)]
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def append(self, piece: str, *, may_stop: bool = True) -> str:
        """Add text; return what may be shown now. After a match ``matched`` is set and the text is complete.

        ``may_stop=False`` (min_tokens not reached): a stop string that ends in this piece does not count.
        """
        if not self._matchers:
            return piece
        for i, char in enumerate(piece):
            complete = [matcher.pattern for matcher in self._matchers if matcher.step(char)]
            if complete and may_stop:
                self.matched = complete[0]
                text = self._held + piece[: i + 1]
                self._held = ""
                return text if self._include else text[: -len(self.matched)]
        text = self._held + piece
        pending = 0 if self._include else max(matcher.depth for matcher in self._matchers)
        self._held = text[len(text) - pending :]
        return text[: len(text) - pending]

    def finish(self) -> str:
        """What was held back, when the output ends without a match."""
        rest, self._held = self._held, ""
        return rest
