"""The least time a decode step of a run could take on its machine."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.manifest import Manifest
from workbench.profiling.roofline import ModelBytes


@dataclass(frozen=True)
class Roofline:
    """``fixed_ms`` reads the weights, every token of context adds ``ms_per_token``."""

    fixed_ms: float
    ms_per_token: float
    read_gb_s: float

    def at(self, context: float) -> float:
        """ms for a step that reads ``context`` tokens of KV."""
        return self.fixed_ms + self.ms_per_token * context


def roofline_of(manifest: Manifest) -> Roofline | None:
    """From the bytes of the model that the engine echoed and the read bandwidth measured on the machine
    before the run; None where either is not known.
    """
    echo, bandwidth = manifest.target.echo or {}, manifest.machine.get("memory_read_gb_s")
    if not isinstance(bandwidth, int | float) or isinstance(bandwidth, bool) or not bandwidth > 0:
        return None
    try:
        size = ModelBytes.of(echo)
    except (KeyError, TypeError, ZeroDivisionError):
        return None
    bytes_per_ms = float(bandwidth) * 1e6
    return Roofline(size.weights / bytes_per_ms, size.kv_per_token / bytes_per_ms, float(bandwidth))
