"""Stages and ramps: the integral of the rate decides when the next request comes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from workloads import Arrivals, RequestClass, Stage, WorkloadSpec, build
from workloads.arrivals import offsets_ns
from workloads.profile import profile_times

RAMP = (Stage(rate=2.0, seconds=10), Stage(rate=2.0, end_rate=20.0, seconds=60))
CLASSES = (RequestClass(input_tokens=4, output_tokens=1),)


def spec(*stages: Stage, kind: str = "poisson") -> WorkloadSpec:
    return WorkloadSpec(arrivals=Arrivals(kind=kind, stages=stages), classes=CLASSES)


def rate_integral(stages: tuple[Stage, ...], until: float) -> float:
    """Expected arrivals before ``until``, by adding up thin slices of the rate."""
    total, begin = 0.0, 0.0
    for stage in stages:
        edges = np.linspace(0, stage.seconds, 20_001)
        middle = (edges[1:] + edges[:-1]) / 2
        share = middle / stage.seconds
        if stage.shape == "exponential":
            rate = stage.rate * (stage.last_rate / stage.rate) ** share
        else:
            rate = stage.rate + (stage.last_rate - stage.rate) * share
        total += float(rate[begin + middle < until].sum() * (edges[1] - edges[0]))
        begin += stage.seconds
    return total


@pytest.mark.parametrize("shape", ["linear", "exponential"])
def test_constant_arrivals_come_where_the_integral_reaches_whole_numbers(shape):
    stages = (Stage(rate=1.0, end_rate=9.0, seconds=8, shape=shape), Stage(rate=3.0, seconds=4))
    times = offsets_ns(Arrivals(kind="constant", stages=stages), 30, None, np.random.default_rng(0)) / 1e9
    assert times[0] == 0
    for number in (1, 7, 20, 29):
        # The slices of the oracle are 0.4 ms wide, at 9 requests/s.
        assert rate_integral(stages, times[number]) == pytest.approx(number, abs=0.01)


@given(
    st.lists(
        st.builds(
            Stage,
            rate=st.floats(0.01, 100),
            end_rate=st.none() | st.floats(0.01, 100),
            seconds=st.floats(0.1, 100),
            shape=st.just("linear"),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_time_only_moves_forward_and_the_stages_end_where_they_say(stages):
    total = sum(stage.expected for stage in stages)
    times = profile_times(stages, np.linspace(0, total, 200))
    assert (np.diff(times) >= -1e-9).all()
    assert times[-1] == pytest.approx(sum(stage.seconds for stage in stages))


def test_a_poisson_ramp_is_poisson_on_its_own_time():
    """Mapped back through the integral, gaps are exponential with mean 1."""
    offsets = offsets_ns(Arrivals(kind="poisson", stages=RAMP), 650, None, np.random.default_rng(3)) / 1e9
    back = np.array([rate_integral(RAMP, t) for t in offsets if t < 70])
    assert len(back) > 400
    assert stats.kstest(np.diff(back), "expon").pvalue > 0.01


def test_the_rate_climbs_as_asked():
    requests = build(spec(*RAMP), seed=1, nonce="")
    times = np.array([r.offset_ns for r in requests]) / 1e9
    assert times.max() < 70  # the stages end the schedule
    for low, high in ((10, 20), (35, 45), (60, 70)):
        expected = rate_integral(RAMP, high) - rate_integral(RAMP, low)
        counted = int(((times >= low) & (times < high)).sum())
        # Six standard deviations of a Poisson count.
        assert abs(counted - expected) < 6 * np.sqrt(expected)


def test_numbers_and_durations_override_the_stages_end():
    assert len(build(spec(*RAMP), seed=1, nonce="", num_requests=2000)) == 2000
    longer = build(spec(*RAMP), seed=1, nonce="", duration_s=80.0)
    assert 79e9 < longer[-1].offset_ns < 80e9


def test_a_last_stage_of_rate_zero_ends_the_load():
    stages = (Stage(rate=5.0, seconds=2), Stage(rate=0.0, seconds=10))
    requests = build(spec(*stages, kind="constant"), seed=0, nonce="", num_requests=50)
    assert [r.offset_ns for r in requests] == [i * 200_000_000 for i in range(10)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "burst", "stages": [{"rate": 1, "seconds": 1}]}, "only with constant, poisson or gamma"),
        ({"rate": 1.0, "stages": [{"rate": 1, "seconds": 1}]}, "no rate or utilisation"),
        ({"stages": [{"rate": 0, "seconds": 1}]}, "rate above 0"),
        ({"stages": [{"rate": 0, "end_rate": 1, "seconds": 1, "shape": "exponential"}]}, "exponential ramp"),
        ({"stages": [{"rate": 1, "seconds": 0}]}, "greater than 0"),
    ],
)
def test_stages_that_make_no_sense(fields, message):
    with pytest.raises(ValueError, match=message):
        Arrivals(**fields)
