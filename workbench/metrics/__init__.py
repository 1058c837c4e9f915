"""Metrics of a run: exactly the definitions of docs/metrics.md. Pure functions over the stored tables.

:func:`flat` needs neither numpy nor pyarrow; the rest is in :mod:`workbench.metrics.compute`.
"""

from workbench.metrics.flat import LATENCIES, STATISTICS, flat

__all__ = ["LATENCIES", "STATISTICS", "flat"]
