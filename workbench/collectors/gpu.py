"""GPU telemetry through NVML: clocks, power, energy, memory, utilisation, throttle reasons, temperature.

Only calls that take microseconds are made, twice a second, from a thread outside the engine: queries per
process, and faster polling, hold the driver's lock and slow the application down. What a device does not
support, or this user may not read, is null with the reason; a host without NVIDIA's driver has no table.

``gpu.utilisation`` is NVML's: the share of time in which *some* kernel ran. One small kernel is 100 %.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from workbench.records import TELEMETRY

INTERVAL_S = 0.5
Call = Callable[[Any, Any], float]


@dataclass(frozen=True, slots=True)
class Metric:
    """One value of a device: ``read(nvml, handle)``."""

    name: str
    unit: str
    read: Call


METRICS: tuple[Metric, ...] = (
    Metric("gpu.clock_sm", "MHz", lambda n, gpu: n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_SM)),
    Metric("gpu.clock_memory", "MHz", lambda n, gpu: n.nvmlDeviceGetClockInfo(gpu, n.NVML_CLOCK_MEM)),
    Metric("gpu.power", "W", lambda n, gpu: n.nvmlDeviceGetPowerUsage(gpu) / 1e3),
    Metric("gpu.energy", "J", lambda n, gpu: n.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3),
    Metric("gpu.memory_used", "bytes", lambda n, gpu: n.nvmlDeviceGetMemoryInfo(gpu).used),
    Metric("gpu.utilisation", "%", lambda n, gpu: n.nvmlDeviceGetUtilizationRates(gpu).gpu),
    Metric("gpu.memory_utilisation", "%", lambda n, gpu: n.nvmlDeviceGetUtilizationRates(gpu).memory),
    Metric("gpu.temperature", "°C", lambda n, gpu: n.nvmlDeviceGetTemperature(gpu, n.NVML_TEMPERATURE_GPU)),
    Metric("gpu.throttle_reasons", "bits", lambda n, gpu: n.nvmlDeviceGetCurrentClocksEventReasons(gpu)),
    Metric("gpu.pcie_generation", "", lambda n, gpu: n.nvmlDeviceGetCurrPcieLinkGeneration(gpu)),
    Metric("gpu.pcie_width", "lanes", lambda n, gpu: n.nvmlDeviceGetCurrPcieLinkWidth(gpu)),
)
PCIE_THROUGHPUT: tuple[Metric, ...] = (
    Metric("gpu.pcie_tx", "bytes/s",
           lambda nvml, gpu: nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_TX_BYTES) * 1024),
    Metric("gpu.pcie_rx", "bytes/s",
           lambda nvml, gpu: nvml.nvmlDeviceGetPcieThroughput(gpu, nvml.NVML_PCIE_UTIL_RX_BYTES) * 1024),
)  # fmt: skip
"""Each call averages over 20 ms and blocks for them: only when asked for."""

THROTTLES = (
    *("SwPowerCap", "HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"),
    "SyncBoost",
)
"""Reasons that slow a busy GPU down; idle and settings of the user are none."""

Row = tuple[int, str, float | None, str, str, str]


class GpuSampler:
    """Context manager; afterwards :meth:`table` is ``telemetry_gpu.parquet``, or None without a GPU.

    Args:
        nvml: the module ``pynvml``, or something that behaves like it; None: import it.
        interval_s: seconds between samples.
        pcie: also sample PCIe throughput (blocks 40 ms a sample).
        environment: for ``CUDA_VISIBLE_DEVICES``.
    """

    def __init__(
        self,
        nvml: Any = None,
        interval_s: float = INTERVAL_S,
        *,
        pcie: bool = False,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._interval_s = interval_s
        self._metrics = METRICS + (PCIE_THROUGHPUT if pcie else ())
        self._environment = environment
        self._rows: list[Row] = []
        self._given_up: set[tuple[str, str]] = set()
        self._devices: list[tuple[str, Any]] = []
        self._nvml = nvml
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.reason: str | None = None
        """Why there is no GPU telemetry; None when there is."""
        self.gpus: list[dict[str, Any]] = []
        """Facts about the devices, for the manifest; unknown ones are null."""

    def __enter__(self) -> GpuSampler:
        self._open()
        if self._devices:
            self._thread = threading.Thread(target=self._run, name="gpu-sampler", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self.sample()
            self._nvml.nvmlShutdown()

    def table(self) -> pa.Table | None:
        """All samples; None when there was no device."""
        if not self._devices:
            return None
        columns = list(zip(*self._rows, strict=True)) if self._rows else [()] * len(TELEMETRY)
        arrays = [pa.array(list(c), type=f.type) for c, f in zip(columns, TELEMETRY, strict=True)]
        return pa.Table.from_arrays(arrays, schema=TELEMETRY)

    def sample(self) -> None:
        """One sample of every device."""
        now_ns = time.monotonic_ns()
        for uuid, handle in self._devices:
            for metric in self._metrics:
                if (uuid, metric.name) not in self._given_up:
                    self._read(now_ns, uuid, handle, metric)

    def _open(self) -> None:
        try:
            if self._nvml is None:
                import pynvml

                self._nvml = pynvml
            self._nvml.nvmlInit()
        except Exception as error:  # the driver's library may be missing, too old, or without a device node
            self.reason = f"no GPU telemetry: {error}"
            return
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = _text(self._nvml.nvmlDeviceGetUUID(handle))
            except self._nvml.NVMLError as error:
                self.reason = f"GPU {index}: {error}"
                continue
            if _visible(index, uuid, self._environment.get("CUDA_VISIBLE_DEVICES")):
                self._devices.append((uuid, handle))
                self.gpus.append(self._facts(uuid, handle))
        if not self._devices:
            self.reason = self.reason or "no GPU telemetry: no visible device"
            self._nvml.nvmlShutdown()

    def _facts(self, uuid: str, handle: Any) -> dict[str, Any]:
        nvml = self._nvml
        questions: dict[str, Callable[[], Any]] = {
            "name": lambda: _text(nvml.nvmlDeviceGetName(handle)),
            "memory_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
            "driver": lambda: _text(nvml.nvmlSystemGetDriverVersion()),
            "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
            "max_clock_sm_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            "persistence": lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle)),
            "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
        }
        facts: dict[str, Any] = {"uuid": uuid}
        for name, ask in questions.items():
            try:
                facts[name] = ask()
            except nvml.NVMLError:
                facts[name] = None
        return facts

    def _run(self) -> None:
        next_s = time.monotonic()
        while not self._stop.wait(max(0.0, next_s - time.monotonic())):
            self.sample()
            next_s = max(next_s + self._interval_s, time.monotonic())

    def _read(self, now_ns: int, uuid: str, handle: Any, metric: Metric) -> None:
        source = f"nvml {uuid}"
        try:
            value = float(metric.read(self._nvml, handle))
        except self._nvml.NVMLError as error:
            status = self._status(error)
            if status != "lost":
                self._given_up.add((uuid, metric.name))  # it will not change: said once
            self._rows.append((now_ns, metric.name, None, metric.unit, source, status))
            return
        self._rows.append((now_ns, metric.name, value, metric.unit, source, "ok"))
        if metric.name == "gpu.throttle_reasons":
            throttled = any(int(value) & self._bit(name) for name in THROTTLES)
            self._rows.append((now_ns, "gpu.throttled", float(throttled), "bool", source, "ok"))

    def _status(self, error: Any) -> str:
        nvml, code = self._nvml, getattr(error, "value", None)
        if code in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            return "not_supported"
        return "no_permission" if code == nvml.NVML_ERROR_NO_PERMISSION else "lost"

    def _bit(self, name: str) -> int:
        return int(getattr(self._nvml, f"nvmlClocksEventReason{name}", 0))


def _visible(index: int, uuid: str, listed: str | None) -> bool:
    """Is the device one that CUDA may use? Entries are indices or (beginnings of) UUIDs."""
    if listed is None:
        return True
    entries = [entry.strip() for entry in listed.split(",") if entry.strip()]
    return any(
        entry == str(index) or (entry.startswith(("GPU-", "MIG-")) and uuid.startswith(entry))
        for entry in entries
    )


def _text(value: str | bytes) -> str:
    """The binding returned bytes in some versions."""
    return value.decode() if isinstance(value, bytes) else value
