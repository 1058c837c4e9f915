"""Every page over every kind of store: no exception, the right message, and nothing read from outside the
store.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from reports.dashboard import store
from tests.reports.page_opener import open_page, said
from tests.reports.store_factory import HOSTILE, write_broken, write_run, write_store
from workbench.errors import RunCorruptError
from workbench.runstore import RunStore

VIEWS = ("runs", "run", "sweep", "compare", "xray")


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    return monkeypatch


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("dashboard"))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", ["missing", "empty", "one", "broken"])
def test_small_stores(view: str, kind: str, tmp_path: Path, use: pytest.MonkeyPatch) -> None:
    root = tmp_path / "runs"
    if kind != "missing":
        root.mkdir()
    if kind == "one":
        write_run(root, "only", count=6)
    if kind == "broken":
        write_broken(root)
    use.setenv("WORKBENCH_RUNS", str(root))
    text = said(open_page(view))
    expected = {
        ("runs", "one"): "1 of 1 runs",
        ("run", "one"): "chunk 256",
        ("xray", "one"): "Admission stopped",
        ("runs", "broken"): "corrupt-run can't be read: manifest.json",
        ("run", "broken"): "steps.parquet",
        ("sweep", "broken"): "sweep-broken can't be read",
        ("xray", "broken"): "This run has no step trace",
    }
    nothing = {
        "runs": "This store has no runs yet",
        "run": "no readable run yet",
        "sweep": "no readable sweep yet",
        "compare": "Two readable runs are needed",
        "xray": "no readable run yet",
    }
    assert expected.get((view, kind), nothing[view]) in text


TABS = (
    *("Latency", "Where time goes", "Findings", "Timeline", "Requests", "Steps", "Hardware"),
    "Configuration",
)


@pytest.mark.parametrize(
    ("run", "tab"),
    [(run, tab) for run in ("run-a", "run-no-traces", "torn-tables") for tab in TABS]
    + [("run-invalid", "Requests"), ("run-hostile", "Timeline"), ("run-hostile", "Requests")],
)
def test_every_tab_of_every_run(many: Path, use: pytest.MonkeyPatch, run: str, tab: str) -> None:
    use.setenv("WORKBENCH_RUNS", str(many))
    page = open_page("run", run=run, tab=tab)
    assert page.query_params["run"] == run
    assert page.query_params["tab"] == tab
    text = said(page)
    if run == "run-invalid":
        assert "3 of 20 requests failed" in text.replace("\\", "")
    if run == "run-no-traces" and tab == "Timeline":
        assert "no engine trace" in text
    if run == "torn-tables":
        assert "requests.parquet" in text
    assert HOSTILE not in text


@pytest.mark.parametrize("tab", ["Response", "Levels", "Noise", "Hypothesis", "Changed factor", "Runs"])
def test_every_tab_of_a_sweep(many: Path, use: pytest.MonkeyPatch, tab: str) -> None:
    use.setenv("WORKBENCH_RUNS", str(many))
    page = open_page("sweep", sweep="sweep-chunk", tab=tab)
    text = said(page)
    assert "chunk_size 64 cuts ITL p99" in text
    assert page.query_params["tab"] == tab
    if tab == "Changed factor":
        assert "One factor changed" in text


def test_unknown_and_outside_ids_open_nothing(many: Path, use: pytest.MonkeyPatch) -> None:
    use.setenv("WORKBENCH_RUNS", str(many))
    for view, key in (("run", "run"), ("xray", "run"), ("sweep", "sweep")):
        for bad in ("nobody", "../run-a", HOSTILE):
            page = open_page(view, **{key: bad})
            assert f"There is no {key} called" in said(page)
            assert not page.get("plotly_chart")


def test_only_folders_of_the_store_are_opened(many: Path, tmp_path: Path, use: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, "elsewhere", count=4)
    root = tmp_path / "store"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere")
    use.setenv("WORKBENCH_RUNS", str(root))
    for name in ("link", "..", ".", "", "../elsewhere", str(tmp_path / "elsewhere"), "a/b"):
        with pytest.raises(RunCorruptError, match="no folder of this run store"):
            store.open_run(name)


def test_compare_puts_the_config_diff_first(many: Path, use: pytest.MonkeyPatch) -> None:
    use.setenv("WORKBENCH_RUNS", str(many))
    page = open_page("compare", runs=["run-a", "run-b", "nobody"])
    text = said(page)
    assert [s.value for s in page.subheader] == [
        "What differs",
        "What they measured",
        "Latency distributions",
    ]
    assert "max_num_batched_tokens" in text
    assert "engine.block_size" not in text
    assert "Not in this store, or not readable: nobody" in text
    assert len(page.get("plotly_chart")) == 2


def test_compare_wants_two(many: Path, use: pytest.MonkeyPatch) -> None:
    use.setenv("WORKBENCH_RUNS", str(many))
    assert "Choose 2 to 6 runs" in said(open_page("compare", runs=["run-a"]))


def test_xray_walks_through_the_steps(many: Path, use: pytest.MonkeyPatch) -> None:
    use.setenv("WORKBENCH_RUNS", str(many))
    page = open_page("xray", run="run-a", step="3")
    assert page.slider[0].value == 3
    next(b for b in page.button if b.label == "Next").click().run()
    assert page.slider[0].value == 4
    assert page.query_params["step"] == "4"
    page.slider[0].set_value(0).run()
    assert next(b for b in page.button if b.label == "Previous").disabled
    assert not page.exception
    assert open_page("xray", run="run-a", step="999999").slider[0].value > 0


def test_filter_finds_by_words_and_state(many: Path, use: pytest.MonkeyPatch) -> None:
    use.setenv("WORKBENCH_RUNS", str(many))
    page = open_page("runs")
    assert "7 of 31 runs, 24 runs of sweeps hidden" in said(page)
    page.text_input[0].set_value("chunk 64").run()
    assert "1 of 31 runs" in said(page)
    page.text_input[0].set_value("no such thing").run()
    assert "No run fits this filter." in said(page)
    page.text_input[0].set_value("").run()
    page.toggle[0].set_value(True).run()
    assert "31 of 31 runs" in said(page)


def test_a_changed_file_is_read_again(tmp_path: Path, use: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, "live", count=5)
    use.setenv("WORKBENCH_RUNS", str(tmp_path))
    assert "1 of 1 runs" in said(open_page("runs"))
    write_run(tmp_path, "later", count=5)
    assert "2 of 2 runs" in said(open_page("runs"))


def test_only_a_changed_run_is_read_again(tmp_path: Path, use: pytest.MonkeyPatch) -> None:
    for name in ("run-a", "run-b"):
        write_run(tmp_path, name, count=2)
    use.setenv("WORKBENCH_RUNS", str(tmp_path))
    read: list[str] = []
    info = RunStore.info
    use.setattr(RunStore, "info", lambda self, run_id: read.append(run_id) or info(self, run_id))
    assert [found.id for found in store.runs()] == ["run-b", "run-a"]
    assert read == ["run-a", "run-b"]
    manifest = tmp_path / "run-a" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"complete"', '"failed"'))
    assert {found.id: found.status for found in store.runs()} == {"run-a": "failed", "run-b": "complete"}
    assert read == ["run-a", "run-b", "run-a"]
    store.remove_run("run-b")
    assert [found.id for found in store.runs()] == ["run-a"]


def test_a_long_list_begins_with_the_newest(tmp_path: Path, use: pytest.MonkeyPatch) -> None:
    write_run(tmp_path, "run-000", count=2)
    manifest = (tmp_path / "run-000" / "manifest.json").read_text()
    for number in range(1, 205):
        folder = tmp_path / f"run-{number:03d}"
        folder.mkdir()
        (folder / "manifest.json").write_text(manifest.replace("run-000", folder.name))
    use.setenv("WORKBENCH_RUNS", str(tmp_path))
    page = open_page("runs")
    assert "205 of 205 runs; the newest 200 are listed" in said(page)
    assert page.dataframe[0].value["run"].tolist() == [f"run-{n:03d}" for n in range(204, 4, -1)]
    page = open_page("runs", every="true")
    assert len(page.dataframe[0].value) == 205
    assert "newest" not in said(page)
