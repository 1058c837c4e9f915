"""NVML beside the measurements: clocks, power, temperature, what held the clock back."""

from __future__ import annotations

import statistics
import threading
from types import TracebackType
from typing import Any

PERIOD_S = 0.2


class Telemetry:
    """Samples while the ``with`` block lasts; without NVML it says why."""

    def __init__(self, enabled: bool) -> None:
        self._samples: list[dict[str, float]] = []
        self._throttle = 0
        self._reason: str | None = None if enabled else "no device"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Telemetry:
        if self._reason is None:
            try:
                import pynvml

                pynvml.nvmlInit()
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            except Exception as error:  # whatever NVML says, the benchmark goes on without it
                self._reason = f"{type(error).__name__}: {error}"
            else:
                self._thread = threading.Thread(target=self._sample, name="nvml", daemon=True)
                self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)

    def _sample(self) -> None:
        import pynvml

        handle = self._handle
        while not self._stop.wait(PERIOD_S):
            try:
                self._samples.append(
                    {
                        "sm_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
                        "memory_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
                        "power_w": pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
                        "temperature_c": pynvml.nvmlDeviceGetTemperature(handle, 0),
                        "used_gib": pynvml.nvmlDeviceGetMemoryInfo(handle).used / 2**30,
                    }
                )
                self._throttle |= pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            except pynvml.NVMLError as error:
                self._reason = str(error)
                return

    def summary(self) -> dict[str, Any]:
        """Smallest, median and largest of each; None with a reason when nothing was read."""
        if not self._samples:
            return {"samples": 0, "reason": self._reason}
        columns = {name: [sample[name] for sample in self._samples] for name in self._samples[0]}
        return {
            "samples": len(self._samples),
            "reason": self._reason,
            "throttle_reasons": f"{self._throttle:#x}",
            **{
                name: [round(min(values), 1), round(statistics.median(values), 1), round(max(values), 1)]
                for name, values in columns.items()
            },
        }
