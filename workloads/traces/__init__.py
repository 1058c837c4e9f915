"""Published request traces as columns: readers, and the selection of what is replayed."""

from workloads.traces.read import read_trace
from workloads.traces.rows import TraceRows
from workloads.traces.select import select

__all__ = ["TraceRows", "read_trace", "select"]
