"""Files of procfs that are read again and again, at the price of one system call each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_FIRST_SIZE = 4096


class ProcFile:
    """Opened once: to look a path up in procfs costs more than to read the file. A file of a process that has
    ended reads as empty for good, whoever gets its number next.
    """

    __slots__ = ("_fd", "_path", "_size")

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._fd = -1
        self._size = _FIRST_SIZE

    def read(self) -> bytes:
        """What it says now; nothing when it can't be read."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            found = os.pread(self._fd, self._size, 0)
            while len(found) == self._size:
                self._size *= 2
                found = os.pread(self._fd, self._size, 0)
            return found
        except OSError:
            return b""

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


def read_once(path: str | Path) -> bytes:
    """A file that is not worth an open descriptor; nothing when it can't be read."""
    file = ProcFile(path)
    try:
        return file.read()
    finally:
        file.close()


def field(text: bytes, key: bytes) -> int | None:
    """The whole number behind ``key`` at the beginning of a line; None when there is none."""
    place = 0 if text.startswith(key) else text.find(b"\n" + key) + 1
    if place == 0 and not text.startswith(key):
        return None
    words = text[place + len(key) : place + len(key) + 40].split(None, 1)
    return int(words[0]) if words and words[0].isdigit() else None


class ProcessTree:
    """Descendants of processes. Only processes that are new since the last look are read: a look at all of
    them takes as long as a dozen samples.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._parents: dict[int, int] = {}

    def of(self, roots: Iterable[int]) -> list[int]:
        """``roots`` that live, and their descendants."""
        try:
            live = {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        except OSError:
            return []
        for pid in self._parents.keys() - live:
            del self._parents[pid]
        for pid in live - self._parents.keys():
            words = read_once(f"{self._proc}/{pid}/stat").rpartition(b")")[2].split(None, 2)
            if len(words) > 1:
                self._parents[pid] = int(words[1])
        children: dict[int, list[int]] = {}
        for pid, parent in self._parents.items():
            children.setdefault(parent, []).append(pid)
        found: dict[int, None] = {}
        todo = [pid for pid in roots if pid in self._parents]
        while todo:
            pid = todo.pop(0)
            if pid not in found:
                found[pid] = None
                todo += children.get(pid, [])
        return list(found)
