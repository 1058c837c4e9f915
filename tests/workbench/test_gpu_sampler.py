"""GPU telemetry against a fake NVML: values, and every way in which a value can be missing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from workbench.collectors.gpu import METRICS, GpuSampler
from workbench.records import TELEMETRY

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, LOST, UNKNOWN = 3, 4, 13, 15, 999


class FakeNvml:
    """Behaves like the module ``pynvml``; ``broken`` maps a function to the code that it fails with."""

    NVML_ERROR_NOT_SUPPORTED = NOT_SUPPORTED
    NVML_ERROR_NO_PERMISSION = NO_PERMISSION
    NVML_ERROR_FUNCTION_NOT_FOUND = NOT_FOUND
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    nvmlClocksEventReasonSwPowerCap = 4  # noqa: N815
    nvmlClocksEventReasonHwSlowdown = 8  # noqa: N815

    class NVMLError(Exception):
        def __init__(self, value):
            super().__init__(f"nvml error {value}")
            self.value = value

    def __init__(self, count=1, broken=None, reasons=1, bytes_names=False):
        self.count, self.broken, self.reasons = count, dict(broken or {}), reasons
        self.bytes_names = bytes_names
        self.calls: list[str] = []
        self.open = 0

    def __getattr__(self, name):
        answers = {
            "nvmlDeviceGetCount": lambda: self.count,
            "nvmlDeviceGetHandleByIndex": lambda i: i,
            "nvmlDeviceGetUUID": lambda g: b"GPU-%d" % g if self.bytes_names else f"GPU-{g}",
            "nvmlDeviceGetName": lambda g: b"H200" if self.bytes_names else "H200",
            "nvmlSystemGetDriverVersion": lambda: "595.1",
            "nvmlDeviceGetClockInfo": lambda g, kind: 1980 if kind == 1 else 3201,
            "nvmlDeviceGetMaxClockInfo": lambda g, kind: 1980,
            "nvmlDeviceGetPowerUsage": lambda g: 250_500,
            "nvmlDeviceGetEnforcedPowerLimit": lambda g: 700_000,
            "nvmlDeviceGetTotalEnergyConsumption": lambda g: 12_345,
            "nvmlDeviceGetMemoryInfo": lambda g: SimpleNamespace(used=7 << 30, total=140 << 30),
            "nvmlDeviceGetUtilizationRates": lambda g: SimpleNamespace(gpu=91, memory=40),
            "nvmlDeviceGetTemperature": lambda g, sensor: 61,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda g: self.reasons,
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda g: 5,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda g: 16,
            "nvmlDeviceGetPcieThroughput": lambda g, way: 1000 + way,
            "nvmlDeviceGetPersistenceMode": lambda g: 1,
            "nvmlDeviceGetMigMode": lambda g: (0, 0),
        }
        if name not in answers:
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append(name)
            if name in self.broken:
                raise self.NVMLError(self.broken[name])
            return answers[name](*arguments)

        return call

    def nvmlInit(self):  # noqa: N802
        if "nvmlInit" in self.broken:
            raise self.NVMLError(self.broken["nvmlInit"])
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1


def sampled(nvml, times=3, **options):
    """Exactly ``times`` samples; the thread does not come to its turn."""
    sampler = GpuSampler(nvml, interval_s=3600.0, environment=options.pop("environment", {}), **options)
    sampler._open()
    for _ in range(times):
        sampler.sample()
    return sampler


def by_name(sampler):
    found = {}
    for row in sampler.table().to_pylist():
        found.setdefault(row["name"], []).append((row["value"], row["status"]))
    return found


def test_values_and_units():
    sampler = sampled(FakeNvml(), times=1, pcie=True)
    table = sampler.table()
    assert table.schema == TELEMETRY
    rows = {
        row["name"]: (row["value"], row["unit"], row["source"], row["status"]) for row in table.to_pylist()
    }
    assert rows["gpu.clock_sm"] == (1980.0, "MHz", "nvml GPU-0", "ok")
    assert rows["gpu.power"] == (250.5, "W", "nvml GPU-0", "ok")
    assert rows["gpu.energy"] == (12.345, "J", "nvml GPU-0", "ok")
    assert rows["gpu.memory_used"] == (float(7 << 30), "bytes", "nvml GPU-0", "ok")
    assert rows["gpu.utilisation"][0] == 91.0
    assert rows["gpu.pcie_tx"] == (1_024_000.0, "bytes/s", "nvml GPU-0", "ok")
    assert rows["gpu.throttled"] == (0.0, "bool", "nvml GPU-0", "ok")
    assert sampler.gpus == [
        {
            "uuid": "GPU-0",
            "name": "H200",
            "memory_bytes": 140 << 30,
            "driver": "595.1",
            "power_limit_w": 700.0,
            "max_clock_sm_mhz": 1980,
            "persistence": True,
            "mig": False,
        }
    ]


def test_slow_calls_are_made_only_when_asked_for():
    nvml = FakeNvml()
    sampled(nvml)
    assert "nvmlDeviceGetPcieThroughput" not in nvml.calls


@pytest.mark.parametrize(("reasons", "throttled"), [(0, 0.0), (1, 0.0), (4, 1.0), (8 + 1, 1.0)])
def test_throttle_reasons(reasons, throttled):
    assert by_name(sampled(FakeNvml(reasons=reasons), 1))["gpu.throttled"] == [(throttled, "ok")]


@pytest.mark.parametrize(
    ("code", "status"),
    [(NOT_SUPPORTED, "not_supported"), (NOT_FOUND, "not_supported"), (NO_PERMISSION, "no_permission")],
)
def test_what_will_not_change_is_null_with_its_reason_and_said_once(code, status):
    nvml = FakeNvml(broken={"nvmlDeviceGetPowerUsage": code})
    found = by_name(sampled(nvml))
    assert found["gpu.power"] == [(None, status)]
    assert nvml.calls.count("nvmlDeviceGetPowerUsage") == 1
    assert len(found["gpu.clock_sm"]) == 3


def test_a_lost_gpu_is_null_and_may_come_back():
    nvml = FakeNvml(broken=dict.fromkeys(("nvmlDeviceGetClockInfo",), LOST))
    sampler = sampled(nvml, 2)
    nvml.broken.clear()
    sampler.sample()
    assert by_name(sampler)["gpu.clock_sm"] == [(None, "lost"), (None, "lost"), (1980.0, "ok")]


def test_an_unknown_error_is_not_a_zero():
    sampler = sampled(FakeNvml(broken={"nvmlDeviceGetTemperature": UNKNOWN}), 1)
    assert by_name(sampler)["gpu.temperature"] == [(None, "lost")]


def test_everything_forbidden():
    calls = (
        "ClockInfo",
        "PowerUsage",
        "TotalEnergyConsumption",
        "MemoryInfo",
        "UtilizationRates",
        "Temperature",
        "CurrentClocksEventReasons",
        "CurrPcieLinkGeneration",
        "CurrPcieLinkWidth",
        "EnforcedPowerLimit",
        "PersistenceMode",
        "MigMode",
        "MaxClockInfo",
    )
    sampler = sampled(FakeNvml(broken={f"nvmlDeviceGet{name}": NO_PERMISSION for name in calls}))
    rows = sampler.table().to_pylist()
    assert {row["name"] for row in rows} == {metric.name for metric in METRICS}
    assert {(row["value"], row["status"]) for row in rows} == {(None, "no_permission")}
    assert sampler.gpus[0]["power_limit_w"] is None


def test_devices_are_matched_by_uuid_and_index():
    for listed, uuids in (
        (None, ["GPU-0", "GPU-1", "GPU-2"]),
        ("1", ["GPU-1"]),
        ("GPU-2,0", ["GPU-0", "GPU-2"]),
        ("", []),
    ):
        environment = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
        sampler = sampled(FakeNvml(3), 1, environment=environment)
        assert [gpu["uuid"] for gpu in sampler.gpus] == uuids
        assert (sampler.table() is None) == (not uuids)


def test_bytes_and_text_are_the_same():
    assert sampled(FakeNvml(bytes_names=True), 1).gpus[0]["name"] == "H200"


def test_no_driver_is_no_table_and_a_reason():
    with GpuSampler(FakeNvml(broken={"nvmlInit": UNKNOWN})) as sampler:
        pass
    assert sampler.table() is None
    assert sampler.reason == "no GPU telemetry: nvml error 999"


def test_this_machine_with_or_without_a_gpu():
    with GpuSampler() as sampler:
        pass
    assert (sampler.table() is None) == (sampler.reason is not None)


def test_the_thread_samples_and_lets_go_of_the_library():
    nvml = FakeNvml()
    with GpuSampler(nvml, interval_s=0.001, environment={}) as sampler:
        while len(sampler._rows) < 5 * len(METRICS):
            pass
    assert nvml.open == 0
    stamps = [row["t_ns"] for row in sampler.table().to_pylist()]
    assert stamps == sorted(stamps)
