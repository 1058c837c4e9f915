"""The registry: complete, true to the engine's configuration, and clear about bad levels."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import InvalidInputError
from experiments.design import level_text, make_schedule
from experiments.factors import Factor, get_factor, load_factors, parse_values
from experiments.metric_info import metric_info, response
from experiments.spec import parse_duration, parse_rate, parse_share
from workloads import preset_names

FACTORS = load_factors()
ISSUED = {
    "chunk_size", "max_num_seqs", "block_size", "enable_prefix_caching", "long_prefill_token_threshold",
    "scheduling_policy", "watermark", "async_scheduling", "max_num_partial_prefills", "dtype", "quantization",
    "attention_backend", "num_threads", "kv_cache_memory_bytes", "num_gpu_blocks_override", "stream_interval",
    "enable_chunked_prefill", "scheduler_reserve_full_isl", "request_rate", "max_concurrency",
}  # fmt: skip


def test_every_tunable_is_there() -> None:
    assert set(FACTORS) >= ISSUED


@pytest.mark.parametrize("factor", FACTORS.values(), ids=lambda f: f.name)
def test_a_factor_says_all_that_a_reader_needs(factor: Factor) -> None:
    assert factor.side == "load" or factor.field in EngineConfig.model_fields
    assert 2 <= factor.mechanism.count(". ") + 1 <= 4
    assert len(factor.levels) >= 2
    assert factor.order(factor.levels) == factor.levels
    assert len(factor.expect) >= 2
    assert factor.vllm
    assert factor.sglang
    assert factor.workload in preset_names()
    assert [
        level_text(level) for level in parse_values(factor, ",".join(map(level_text, factor.levels)))
    ] == [level_text(level) for level in factor.levels]


@pytest.mark.parametrize("factor", FACTORS.values(), ids=lambda f: f.name)
def test_the_default_is_the_engines_and_every_level_is_accepted(factor: Factor) -> None:
    if factor.side == "engine":
        assert factor.value(factor.baseline) == EngineConfig.model_fields[factor.field].default
    factor.check(factor.levels, factor.fixed)


def test_chunk_size_fixes_what_its_smallest_level_needs() -> None:
    factor = FACTORS["chunk_size"]
    assert factor.fixed == {"max_num_seqs": 32}
    assert factor.why_fixed
    with pytest.raises(InvalidInputError, match=r"chunk_size=64: at least max_num_seqs \(128\)"):
        factor.check([64], {})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("chunk_size", "2k", 2048),
        ("kv_cache_memory_bytes", "64MiB", 64 << 20),
        ("num_threads", "auto", "auto"),
        ("enable_prefix_caching", "off", False),
        ("dtype", "bfloat16", "bfloat16"),
        ("watermark", "0.05", 0.05),
    ],
)
def test_levels_are_read_as_users_write_them(name: str, text: str, value: object) -> None:
    assert FACTORS[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [("chunk_size", "many"), ("chunk_size", "1.5"), ("enable_prefix_caching", "2"), ("watermark", "x")],
)
def test_a_level_of_the_wrong_type_is_refused_with_one_line(name: str, text: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{name}='{text}': ") as caught:
        FACTORS[name].parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"), [("dtype", "float8"), ("block_size", 0), ("block_size", 512), ("watermark", 1.0)]
)
def test_a_level_out_of_range_is_refused_with_one_line(name: str, value: object) -> None:
    with pytest.raises(InvalidInputError, match=f"^{name}=") as caught:
        FACTORS[name].check([value], {})
    assert "\n" not in str(caught.value)


def test_unlimited_and_auto_are_ordered_last() -> None:
    assert FACTORS["long_prefill_token_threshold"].order([0, 512, 128]) == [128, 512, 0]
    assert FACTORS["num_threads"].order(["auto", 2, 1, 2]) == [1, 2, "auto"]


def test_a_factor_is_found_by_name_field_or_dashes() -> None:
    assert get_factor("max_num_batched_tokens").name == "chunk_size"
    assert get_factor("chunk-size").name == "chunk_size"
    with pytest.raises(InvalidInputError, match=r"param='chunk': one of .*chunk_size"):
        get_factor("chunk")


def test_own_factors_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[queue]\nfield = "max_waiting_requests"\ntitle = "t"\nlevels = [8, 64]\nmechanism = "m"\n'
        'primary = "ttft_p50"\nworkload = "chat"\nexpect = []\n'
    )
    assert get_factor("queue", load_factors(file)).levels == [8, 64]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[x]\nfield = 'nope'\n", "x.field=nope"),
        ("[x]\nfield = 'block_size'\n", "x"),
        ("[x\n", "a readable TOML file"),
        ("x = 1\n", "a table"),
    ],
)
def test_a_bad_factor_file_is_refused_with_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        load_factors(file)


def test_the_schedule_depends_on_the_seed_alone() -> None:
    one = make_schedule([64, 256, 2048], 2048, 5, seed=3)
    assert one == make_schedule([64, 256, 2048], 2048, 5, seed=3)
    other = make_schedule([64, 256, 2048], 2048, 5, seed=4)
    assert not {c.seed for c in one} & {c.seed for c in other}
    assert [c.level for c in one] != [c.level for c in other]


def test_off_is_not_the_level_zero() -> None:
    cells = make_schedule([False, True], False, 2, seed=0)
    assert [c.baseline_copy for c in cells if c.level is True] == [None, None]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("9m", 540), ("1h30m", 5400), ("1.5m", 90)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-3m", "3x", "m", "3m3h"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(InvalidInputError, match="budget="):
        parse_duration(text)


def test_shares_and_rates() -> None:
    assert parse_share("delta", "5%") == parse_share("delta", "0.05") == 0.05
    assert parse_rate("0.25") == 0.25
    for bad in ("0", "-1", "nan", "inf", "fast"):
        with pytest.raises(InvalidInputError, match="request-rate="):
            parse_rate(bad)
    for bad in ("0", "100%", "x"):
        with pytest.raises(InvalidInputError, match="delta="):
            parse_share("delta", bad)


def test_metric_directions() -> None:
    for name in ("ttft_p50", "itl_p99", "chat/tpot_mean", "stall_max", "e2el_sched_p90"):
        info = metric_info(name)
        assert info is not None
        assert not info.higher_is_better
    for name in ("output_tok_s", "goodput_ratio", "chat/goodput_ratio"):
        info = metric_info(name)
        assert info is not None
        assert info.higher_is_better
    assert metric_info("cached_tokens") is None
    assert metric_info("lag_p99_ms") is None


def test_goodput_is_smoothed_so_that_zero_has_a_ratio() -> None:
    counts = {
        "counts_good": 0.0,
        "counts_offered": 39.0,
        "window_s": 20.0,
        "goodput_ratio": 0.0,
        "goodput_s": 0.0,
    }
    assert response("goodput_ratio", counts) == pytest.approx(0.5 / 40)
    assert response("goodput_s", counts) == pytest.approx(0.5 / 40 * 39 / 20)
    assert response("itl_p99", {"itl_p99": 0.0}) is None
    assert response("itl_p99", {}) is None
