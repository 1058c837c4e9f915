"""Bounds of a profiled window, known to whoever asks for one."""

from __future__ import annotations

MAX_STEPS = 2_000
MAX_SECONDS = 60.0
