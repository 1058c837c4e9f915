"""``workbench diagnose`` over stored runs."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from tests.diagnosis.cases import CACHED, CASES, UNCACHED
from tests.diagnosis.world import World, manifest, tables
from workbench.atomic import write_json
from workbench.cli import main
from workbench.runstore import RunStore
from workbench.timeline.split import split_frame, split_run


def store(root, world: World, name: str) -> None:
    folder = root / name
    folder.mkdir(parents=True)
    write_json(
        folder / "manifest.json", manifest(world).model_copy(update={"id": name}).model_dump(mode="json")
    )
    for table, content in tables(world).items():
        if content is not None:
            pq.write_table(content, folder / f"{table}.parquet")


def world_of(name: str) -> World:
    return next(case.world for case in CASES if case.name == name)


def test_finding_on_stdout_in_the_folder_and_in_words(tmp_path, capsys):
    store(tmp_path, world_of("two places in the batch"), "slow")
    assert main(["diagnose", "slow", "--runs-dir", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    top = found["findings"][0]
    assert (top["family"], top["verdict"], top["cause"]) == ("queueing", "finding", "max_num_seqs")
    assert json.loads((tmp_path / "slow" / "findings.json").read_text()) == found
    assert "1. First tokens are slow under load: the slowest requests wait for 99% of their way" in err
    assert "   to confirm    workbench sweep --param max_num_seqs --values 2,4,8 --baseline 2" in err
    assert "no finding in the other families:" in err
    assert "   cache_correctness   nothing to compare with" in err


def test_against_two_cache_off_runs(tmp_path, capsys):
    from dataclasses import replace

    store(tmp_path, replace(CACHED, hit_salt=3), "on")
    store(tmp_path, UNCACHED, "off1")
    store(tmp_path, UNCACHED, "off2")
    command = [
        "diagnose",
        "on",
        "--against",
        "off1",
        "--against",
        "off2",
        "--runs-dir",
        str(tmp_path),
        "--json",
    ]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["against"] == ["off1", "off2"]
    top = found["findings"][0]
    assert top["cause"] == "wrong_results"
    natural = next(rival for rival in top["rivals"] if rival["name"] == "natural divergence")
    assert "0 of 121 comparisons" in natural["why"]
    assert "2 cache-off runs" in natural["why"]


@pytest.mark.parametrize("arguments", [["nothing"], ["slow", "--against", "nothing"]])
def test_an_unknown_run_is_one_line(tmp_path, capsys, arguments):
    store(tmp_path, World([]), "slow")
    assert main(["diagnose", *arguments, "--runs-dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_without_requests_or_tables_abstains(tmp_path, capsys):
    store(tmp_path, World([]), "empty")
    (tmp_path / "empty" / "requests.parquet").unlink()
    assert main(["diagnose", "empty", "--runs-dir", str(tmp_path), "--json"]) == 0
    assert {f["verdict"] for f in json.loads(capsys.readouterr().out)["findings"]} == {"abstain"}


def test_a_folder_that_can_not_be_written_costs_a_note_not_the_verdict(tmp_path, capsys):
    store(tmp_path, world_of("two places in the batch"), "slow")
    (tmp_path / "slow" / "findings.json").mkdir()
    assert main(["diagnose", "slow", "--runs-dir", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["findings"][0]["cause"] == "max_num_seqs"
    assert "note: findings.json is not stored: " in err


def test_split_of_a_stored_run(tmp_path):
    store(tmp_path, world_of("KV at 40 % of the peak demand"), "run")
    frame = split_frame(split_run(RunStore(tmp_path).open("run")))
    parts = [
        name
        for name in frame.columns
        if name.endswith("_ns") and not name.startswith(("ttft", "e2el", "client"))
    ]
    assert (frame[parts].sum(axis=1) == frame["e2el_ns"]).all()
    assert (frame["num_preemptions"] > 0).any()
