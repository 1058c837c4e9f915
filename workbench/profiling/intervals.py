"""Unions and differences of time intervals, in whole nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals in order that cover the same time."""
    found: list[list[int]] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return [(start, end) for start, end in found]


def length(intervals: Sequence[Interval]) -> int:
    """Total length of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def minus(whole: Sequence[Interval], taken: Sequence[Interval]) -> list[Interval]:
    """What of ``whole`` is not in ``taken``; both disjoint and in order."""
    found: list[Interval] = []
    place = 0
    for start, end in whole:
        while place < len(taken) and taken[place][1] <= start:
            place += 1
        at, i = start, place
        while i < len(taken) and taken[i][0] < end:
            if taken[i][0] > at:
                found.append((at, taken[i][0]))
            at = max(at, taken[i][1])
            i += 1
        if at < end:
            found.append((at, end))
    return found


def gaps(intervals: Sequence[Interval], begin: int, end: int) -> list[Interval]:
    """What of [begin, end) is not covered."""
    return minus([(begin, end)], intervals) if end > begin else []
