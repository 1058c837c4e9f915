"""Tables read back: against an independent computation over the raw columns, and against damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from reports.run_data import RunData
from reports.run_view import Tables
from tests.reports.store_factory import write_run
from workbench.errors import RunCorruptError
from workbench.runstore import Run, RunStore


def test_latencies_equal_the_raw_stamps(run_a: Run, data_a: RunData) -> None:
    raw = pq.read_table(run_a.path / "requests.parquet").to_pandas()
    frame = data_a.requests()
    assert frame is not None
    by_id = raw.set_index("request_id").loc[frame["request_id"]]
    np.testing.assert_allclose(frame["ttft_ms"], (by_id["first_token_ns"] - by_id["sent_ns"]) / 1e6)
    np.testing.assert_allclose(frame["e2el_ms"], (by_id["last_token_ns"] - by_id["sent_ns"]) / 1e6)
    assert frame["sent_s"].iloc[0] == 0.0
    assert data_a.origin_ns == raw["sent_ns"].min()


def test_gaps_are_those_between_events_of_one_request(run_a: Run, data_a: RunData) -> None:
    raw = pq.read_table(run_a.path / "chunks.parquet").to_pandas().sort_values(["request_id", "recv_ns"])
    expected = np.sort(raw.groupby("request_id")["recv_ns"].diff().dropna().to_numpy() / 1e6)
    gaps = data_a.gaps()
    assert gaps is not None
    np.testing.assert_allclose(np.repeat(gaps["itl_ms"], gaps["gaps"]), expected)  # equal ones are one row


@pytest.mark.parametrize("bucket", [0.1, 0.5, 2.0])
def test_tokens_over_time_lose_no_token_and_no_empty_bucket(
    run_a: Run, data_a: RunData, bucket: float
) -> None:
    tokens = data_a.tokens_over_time(bucket)
    assert tokens is not None
    raw = pq.read_table(run_a.path / "chunks.parquet")["n_tokens"].to_numpy()
    assert tokens["tokens"].sum() == raw.sum()
    np.testing.assert_allclose(np.diff(tokens["t_s"]), bucket)


def test_step_phases_add_up_to_the_step(data_a: RunData) -> None:
    steps = data_a.steps()
    assert steps is not None
    parts = steps[["schedule_ms", "prepare_ms", "forward_ms", "sample_ms", "output_ms"]].sum(axis=1)
    np.testing.assert_allclose(parts, steps["step_ms"])


def test_stamps_far_from_zero_keep_their_nanoseconds(tmp_path: Path) -> None:
    write_run(tmp_path, "late", count=6)
    folder = tmp_path / "late"
    table = pq.read_table(folder / "requests.parquet").to_pandas()
    for column in ("intended_ns", "sent_ns", "headers_ns", "first_token_ns", "last_token_ns", "close_ns"):
        table[column] += 9_000_000_000_000_000_000 - 6_000_000_000_000
    table["first_token_ns"] = table["sent_ns"] + 1
    table.to_parquet(folder / "requests.parquet")
    run = RunStore(tmp_path).open("late")
    frame = RunData.of(run.path, run.manifest).requests()
    assert frame is not None
    assert set(frame["ttft_ms"]) == {1e-6}


def test_damaged_tables_are_named_and_the_rest_is_read(store_dir: Path) -> None:
    run = RunStore(store_dir).open("torn-tables")
    tables = Tables.read(RunData.of(run.path, run.manifest))
    assert tables.requests is None
    assert tables.steps is None
    assert tables.events is not None
    assert [p.split(":")[0] for p in tables.problems] == ["requests.parquet", "steps.parquet"]


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, "old", count=4)
    path = tmp_path / "old" / "steps.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["kv_used"]), path)
    run = RunStore(tmp_path).open("old")
    with pytest.raises(RunCorruptError, match=r"steps\.parquet: column kv_used is missing"):
        RunData.of(run.path, run.manifest).steps()


def test_a_link_out_of_the_run_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "store", "run", count=4)
    outside = tmp_path / "outside.parquet"
    inside = tmp_path / "store" / "run" / "steps.parquet"
    shutil.move(inside, outside)
    inside.symlink_to(outside)
    run = RunStore(tmp_path / "store").open("run")
    with pytest.raises(RunCorruptError, match="outside the run's folder"):
        RunData.of(run.path, run.manifest).steps()
