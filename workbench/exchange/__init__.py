"""Runs in the formats of other tools, both ways, converted by meaning and not by name (docs/metrics.md)."""
