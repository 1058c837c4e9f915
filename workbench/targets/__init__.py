"""Servers under test: the builtin engine in a fresh process, or one that is already there."""
