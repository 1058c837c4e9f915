"""Metrics of a run: exactly the definitions of docs/metrics.md. Pure functions over the stored tables."""

from workbench.metrics.flat import LATENCIES, STATISTICS, flat

__all__ = ["LATENCIES", "STATISTICS", "flat"]
