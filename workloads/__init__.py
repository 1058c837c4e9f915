"""What traffic to send: arrivals, lengths, content. Imports nothing of ours."""

from workloads.build import WorkloadRequest, build
from workloads.catalog import DEFAULT_SWEEP_PRESET, load_workload, preset_names
from workloads.errors import WorkloadError
from workloads.spec import Arrivals, Constant, Lognormal, RequestClass, Uniform, WorkloadSpec

__all__ = [
    "DEFAULT_SWEEP_PRESET",
    "Arrivals",
    "Constant",
    "Lognormal",
    "RequestClass",
    "Uniform",
    "WorkloadError",
    "WorkloadRequest",
    "WorkloadSpec",
    "build",
    "load_workload",
    "preset_names",
]
