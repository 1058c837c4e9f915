"""Errors of the workbench that end a command with one line instead of a traceback."""

from __future__ import annotations


class WorkbenchError(Exception):
    """Something went wrong that the user can act on. ``exit_code`` is what the command line returns."""

    exit_code = 1


class TargetError(WorkbenchError):
    """The server under test did not start, died, or does not answer."""


class RunCorruptError(WorkbenchError):
    """A stored run, or a file that was named, can't be read: bad input."""

    exit_code = 2
