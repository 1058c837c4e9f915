"""The comparison with ``vllm bench serve``: what is computed from the results of both."""

from __future__ import annotations

import math

import pytest

from benchmarks.against_vllm_bench import compare, lines_of, main


def test_a_constant_factor_is_told_apart_and_noise_around_one_is_not():
    line = compare("mean_ttft_ms", [(110.0, 100.0), (55.0, 50.0), (220.0, 200.0)])
    assert (line.ours, line.theirs) == (110.0, 100.0)
    assert [line.ratio, line.low, line.high] == pytest.approx([1.1] * 3)
    assert line.covered == "NO"
    noisy = compare("mean_ttft_ms", [(110.0, 100.0), (100.0, 110.0)])
    assert noisy.ratio == pytest.approx(1.0)
    # t(0.975, 1) = 12.706; the logarithms lie +-ln 1.1 around 0: their standard error is ln 1.1.
    assert noisy.high == pytest.approx(math.exp(12.7062 * math.log(1.1)), rel=1e-4)
    assert noisy.covered == "yes"


def test_one_round_claims_nothing_and_keys_that_one_side_lacks_are_left_out():
    ours = {"mean_ttft_ms": 10.0, "mean_tpot_ms": 2.0, "completed": 24}
    theirs = {"mean_ttft_ms": 8.0, "mean_tpot_ms": 0.0, "completed": 24}
    lines = lines_of([(ours, theirs)])
    assert [(line.key, line.ratio, line.covered) for line in lines] == [
        ("mean_ttft_ms", pytest.approx(1.25), "one round"),
        ("completed", 1.0, "one round"),
    ]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--vllm", "/no/such/file"], "no such file"),
        (["--vllm", "/bin/sh", "--rounds", "0"], "at least 1"),
        (["--vllm", "/bin/sh"], "no server with /v1/models"),
    ],
)
def test_bad_input_is_one_line(flags, told, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["x", "--base-url", "http://127.0.0.1:1", "--tokenizer", "t", *flags])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert told in capsys.readouterr().err
