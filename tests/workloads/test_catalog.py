"""Workload files: what is accepted, and one clear line for what is not."""

from __future__ import annotations

import numpy as np
import pytest

from workloads import Lognormal, WorkloadError, WorkloadSpec, load_workload
from workloads.lengths import sample

GOOD = """
slo = "ttft:100"
[arrivals]
kind = "gamma"
rate = 3.0
burstiness = 0.5
[[classes]]
name = "a"
input_tokens = [10, 20]
output_tokens = { kind = "lognormal", mean = 30, cv = 0.5, low = 5, high = 90 }
"""


def test_a_file_of_the_user(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    spec = load_workload(str(path))
    assert spec.name == "mine"
    assert spec.arrivals.burstiness == 0.5
    assert spec.classes[0].input_tokens.low == 10


def test_identity_is_the_traffic_not_the_name(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    spec = load_workload(str(path))
    renamed = spec.model_copy(update={"name": "other", "description": "x", "slo": None})
    faster = spec.model_copy(update={"arrivals": spec.arrivals.model_copy(update={"rate": 4.0})})
    assert spec.sha256 == renamed.sha256
    assert spec.sha256 != faster.sha256
    assert WorkloadSpec.create(spec.model_dump()).sha256 == spec.sha256


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "valid TOML"),
        ("", "classes"),
        (GOOD.replace("[10, 20]", "[20, 10]"), "high=10 is below low=20"),
        (GOOD.replace("[10, 20]", "0"), "greater than or equal to 1"),
        (GOOD.replace("burstiness", "burstyness"), "burstyness"),
        (GOOD.replace('"gamma"', '"closed"'), "max_concurrency"),
        (GOOD + "prefix_tokens = 11\n", "exceeds its shortest prompt"),
        (GOOD + GOOD[GOOD.index("[[classes]]") :], "same name"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, text, message):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(WorkloadError) as caught:
        load_workload(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value).replace("\\n", "")


@pytest.mark.parametrize("name", ["nope", "nope.toml", "../presets/random"])
def test_unknown_names(name):
    with pytest.raises(WorkloadError, match="workload"):
        load_workload(name)


def test_lognormal_has_its_mean_and_bounds():
    length = Lognormal(mean=100, cv=0.5, low=1, high=100_000)
    drawn = sample(length, 20_000, np.random.default_rng(0))
    # Standard error: 50/sqrt(20000) = 0.35; six of them.
    assert abs(drawn.mean() - 100) < 2.2
    cut = sample(length.model_copy(update={"low": 90, "high": 110}), 1000, np.random.default_rng(0))
    assert (cut.min(), cut.max()) == (90, 110)
