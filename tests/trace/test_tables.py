"""Tables that are none: one line, whoever reads them."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.diagnosis.cases import HEALTHY
from tests.diagnosis.test_command import store
from workbench.cli import main
from workbench.errors import RunCorruptError
from workbench.runstore import RunStore
from workbench.timeline.perfetto import export
from workbench.timeline.split import split_run
from workbench.timeline.tables import SCHEMAS, read_checked


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    root = tmp_path_factory.mktemp("good")
    store(root, HEALTHY, "run")
    return root / "run"


@pytest.fixture
def folder(good, tmp_path):
    return shutil.copytree(good, tmp_path / "run")


def damage(folder, table, change):
    path = folder / f"{table}.parquet"
    pq.write_table(change(pq.read_table(path)), path)


def text(column):
    def change(table):
        place = table.schema.get_field_index(column)
        return table.set_column(place, column, pa.array(["x"] * table.num_rows))

    return change


def holes(column):
    def change(table):
        place = table.schema.get_field_index(column)
        return table.set_column(place, column, pa.nulls(table.num_rows, table.schema.field(column).type))

    return change


DAMAGES = [
    ("steps", lambda table: table.drop_columns(["t_start"]), "no column t_start"),
    ("steps", text("t_end"), "column t_end is string, not int64"),
    ("steps", holes("t_end"), "column t_end has missing values"),
    ("events", lambda table: table.drop_columns(["kind"]), "no column kind"),
    ("events", holes("core_id"), "column core_id has missing values"),
    ("requests", text("sent_ns"), "column sent_ns is string, not int64"),
    ("requests", holes("phase"), "column phase has missing values"),
]


@pytest.mark.parametrize(("table", "change", "says"), DAMAGES)
def test_every_reader_names_the_file_and_the_column(folder, capsys, tmp_path, table, change, says):
    damage(folder, table, change)
    run = RunStore(folder.parent).open("run")
    with pytest.raises(RunCorruptError, match=says) as caught:
        read_checked(run, table)
    assert f"{table}.parquet" in str(caught.value)
    with pytest.raises(RunCorruptError, match=says):
        split_run(run)
    with pytest.raises(RunCorruptError, match="column"):
        export(run, tmp_path / "out.json")
    assert main(["diagnose", "run", "--runs-dir", str(folder.parent)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert says in err


@pytest.mark.parametrize("table", ["steps", "events", "requests"])
def test_a_file_that_was_cut(folder, capsys, table):
    path = folder / f"{table}.parquet"
    path.write_bytes(path.read_bytes()[:2000])
    arguments = ["--runs-dir", str(folder.parent)]
    for command in (["diagnose", "run"], ["runs", "export", "run", "--format", "perfetto"]):
        assert main([*command, *arguments]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert str(folder) in err


def test_columns_of_later_versions_may_be_missing(folder):
    damage(folder, "requests", lambda table: table.drop_columns(["session", "turn", "attempts"]))
    run = RunStore(folder.parent).open("run")
    assert read_checked(run, "requests").num_rows == len(split_run(run)) == 120


def test_every_table_of_a_run_is_known():
    assert set(SCHEMAS) == {
        *("requests", "chunks", "steps", "events", "telemetry_cpu", "telemetry_gpu", "kernels")
    }
