"""What the trace event format asks for, checked event by event."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

_NEEDED = {
    "X": ("name", "ts", "dur", "tid"),
    "i": ("name", "ts", "s", "tid"),
    "C": ("name", "ts", "args"),
    "M": ("name", "args"),
    "s": ("name", "ts", "id", "cat", "tid"),
    "f": ("name", "ts", "id", "cat", "bp", "tid"),
}


def check_trace(trace: dict[str, Any]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Raise AssertionError where the file breaks the format; returns the slices of each track.

    Numbers must have been parsed as :class:`fractions.Fraction`, so that nothing hides in rounding.
    """
    assert trace["displayTimeUnit"] in ("ns", "ms")
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    named, flows = set(), defaultdict(list)
    for event in trace["traceEvents"]:
        phase = event["ph"]
        assert phase in _NEEDED, event
        assert isinstance(event["pid"], int)
        for key in _NEEDED[phase]:
            assert key in event, (key, event)
        if "ts" in event:
            assert event["ts"] >= 0
            assert (Fraction(event["ts"]) * 1000).denominator == 1
        if phase == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append(event)
        elif phase == "C":
            assert event["args"]
            assert all(isinstance(v, (int, Fraction)) for v in event["args"].values())
        elif phase == "M" and event["name"] == "thread_name":
            named.add((event["pid"], event["tid"]))
        elif phase in "sf":
            flows[event["id"]].append(phase)
    assert set(tracks) <= named, "a track without a name"
    assert all(sorted(ends) == ["f", "s"] or ends == ["s"] for ends in flows.values())
    for slices in tracks.values():
        check_nesting(slices)
    return tracks


def check_nesting(slices: list[dict[str, Any]]) -> None:
    """Slices of one track lie inside one another or apart."""
    open_ends: list[Fraction] = []
    for one in sorted(slices, key=lambda s: (s["ts"], -s["dur"])):
        start, end = Fraction(one["ts"]), Fraction(one["ts"]) + Fraction(one["dur"])
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], one
        open_ends.append(end)
