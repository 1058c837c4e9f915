"""What traffic to send: arrivals, lengths, content. Imports nothing of ours."""

from workloads.build import build, build_all
from workloads.catalog import DEFAULT_SWEEP_PRESET, load_workload, preset_names
from workloads.errors import WorkloadError
from workloads.profile import Stage
from workloads.request import Built, WorkloadRequest
from workloads.sources import JsonlSource, SessionsSource, ShareGptSource, SonnetSource, TraceSource
from workloads.spec import Arrivals, Constant, Lognormal, RequestClass, Uniform, WorkloadSpec

__all__ = [
    "DEFAULT_SWEEP_PRESET",
    "Arrivals",
    "Built",
    "Constant",
    "JsonlSource",
    "Lognormal",
    "RequestClass",
    "SessionsSource",
    "ShareGptSource",
    "SonnetSource",
    "Stage",
    "TraceSource",
    "Uniform",
    "WorkloadError",
    "WorkloadRequest",
    "WorkloadSpec",
    "build",
    "build_all",
    "load_workload",
    "preset_names",
]
