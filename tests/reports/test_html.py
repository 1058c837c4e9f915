"""The exported pages: every section, nothing from outside, hostile text stays text, missing numbers are
fine.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from experiments.models import Ratio, SweepResult, Verdict
from reports.html import run_html, sweep_html, write_run_report, write_sweep_report
from reports.render import environment, script_json
from reports.sweep_page import SECTIONS as SWEEP_SECTIONS
from tests.reports.store_factory import HOSTILE, write_run, write_sweep
from workbench.errors import RunCorruptError
from workbench.runstore import RunStore


class Page(HTMLParser):
    """Collects what a browser would make of the page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.data: dict[str, str] = {}
        self._open: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        found = dict(attrs)
        self._open = found.get("id") if found.get("type") == "application/json" else tag

    def handle_endtag(self, tag: str) -> None:
        self._open = None

    def handle_data(self, data: str) -> None:
        if self._open and self._open.startswith("fig"):
            self.data[self._open] = self.data.get(self._open, "") + data
        elif self._open not in ("script", "style"):
            self.text.append(data)

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


@pytest.fixture(scope="module")
def page(sweep_dir: Path) -> Page:
    return Page(sweep_html(sweep_dir))


def test_every_section_is_there_once_and_linked(page: Page) -> None:
    sections = [attrs["id"] for tag, attrs in page.tags if tag == "section"]
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a" and attrs.get("href") != "#main"]
    assert sections == [anchor for anchor, _ in SWEEP_SECTIONS]
    assert links == [f"#{anchor}" for anchor in sections]


def test_the_page_says_what_the_sweep_found(page: Page, sweep: SweepResult) -> None:
    for text in (
        sweep.question,
        sweep.conclusion,
        sweep.reproduce,
        sweep.equivalence.note.capitalize(),
        sweep.slo,
    ):
        assert text in page.words
    for line in sweep.hypothesis:
        assert line.text in page.words
    assert "One factor changed. 24 engines told" in page.words
    assert "+2.1 % from first to last baseline run" in page.words
    assert "Confirmation on fresh seeds" in page.words


def test_nothing_is_loaded_from_outside(page: Page) -> None:
    for tag, attrs in page.tags:
        for name in ("src", "href", "action", "data", "poster"):
            value = attrs.get(name)
            assert value is None or value.startswith("#"), (tag, name, value)
        assert not any(name.startswith("on") for name in attrs)
        assert tag not in {"link", "iframe", "img", "object", "embed"}
    policy = next(a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv"))
    assert policy is not None
    assert "default-src 'none'" in policy


def test_figures_are_strict_json_with_their_own_templates(page: Page) -> None:
    def refuse(name: str) -> float:
        raise AssertionError(f"{name} in a figure")

    names = [a["data-figure"] for t, a in page.tags if "data-figure" in a]
    assert names == ["fig-response-data", "fig-levels-data", "fig-pareto-data", "fig-noise-data"]
    for name in names:
        figure = json.loads(page.data[str(name)], parse_constant=refuse)
        assert figure["data"]
        assert "template" not in figure["layout"]


def test_it_is_readable_with_a_screen_reader(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in page.tags if tag == "th")
    assert all(attrs.get("aria-label") for _, attrs in page.tags if attrs.get("role") in ("img", "region"))
    assert next(attrs for tag, attrs in page.tags if tag == "html")["lang"] == "en"
    ids = [attrs["id"] for _, attrs in page.tags if attrs.get("id")]
    assert len(ids) == len(set(ids))


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_the_contrast_of_wcag_aa_in_both_themes() -> None:
    css = Path(environment().get_template("style.css").filename or "").read_text()
    themes = re.findall(r":root \{(.*?)\n\s*\}", css, re.DOTALL)[:2]
    for theme in themes:
        colours = dict(re.findall(r"--([a-z-]+):\s*(#[0-9a-f]{6})", theme))
        pairs = [(text, ground) for text in ("text", "muted") for ground in ("ground", "card", "soft")]
        pairs += [(kind, f"{kind}-bg") for kind in ("good", "bad", "same", "open", "warn")]
        pairs += [(kind, "card") for kind in ("good", "bad", "same", "accent")]
        pairs += [("text", f"{kind}-bg") for kind in ("good", "bad", "warn")] + [("muted", "good-bg")]
        for text, ground in pairs:
            high, low = sorted((_luminance(colours[text]), _luminance(colours[ground])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


def test_hostile_text_stays_text_everywhere(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, blocks=2, count=5, model=HOSTILE)
    sweep = json.loads((folder / "sweep.json").read_text())
    for key in ("question", "conclusion", "reproduce", "slo", "factor", "field"):
        sweep[key] = f"{key} {HOSTILE}"
    sweep["levels"][0]["value"] = HOSTILE
    for cell in sweep["cells"]:
        if cell["level"] == 64:
            cell["level"] = HOSTILE
    sweep["invalid_reasons"], sweep["valid"], sweep["notes"] = [HOSTILE], False, [HOSTILE]
    sweep["hypothesis"][0]["text"] = sweep["equivalence"]["note"] = HOSTILE
    (folder / "sweep.json").write_text(json.dumps(sweep))
    text = sweep_html(folder)
    assert HOSTILE not in text
    assert "<img" not in text.lower().replace("<image", "")
    found = Page(text)
    assert found.words.count(HOSTILE) >= 12
    assert "fig-response-data" in found.data
    assert HOSTILE.replace("<", "\\u003c").replace(">", "\\u003e") not in text  # plotly gets it as an entity
    assert "&lt;/script&gt;" in json.dumps(json.loads(found.data["fig-response-data"]))


def test_missing_numbers_are_dashes_and_reasons(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, blocks=2, count=5)
    sweep = SweepResult.model_validate_json((folder / "sweep.json").read_text())
    gone = Ratio(
        point=None, low=None, high=None, n_blocks=0, verdict=Verdict.INCONCLUSIVE, reason="no tokens at all"
    )
    levels = [
        v.model_copy(update={"ratio": dict.fromkeys(v.ratio, gone), "medians": dict.fromkeys(v.medians)})
        for v in sweep.levels
    ]
    bare = sweep.model_copy(
        update={"levels": levels, "cells": [], "aa": gone, "mde": None, "best": None, "confirmation": None}
        | {
            "boundary": None,
            "drift": None,
            "hypothesis": [],
            "runs": [],
            "status": "interrupted",
            "machine": {},
        }
    )
    (folder / "sweep.json").write_text(bare.model_dump_json())
    words = Page(sweep_html(folder)).words
    assert "no tokens at all" in words
    assert "no run of this sweep has a readable configuration echo" in words
    assert "No hypothesis was stored" in words
    assert "interrupted" in words
    assert "nan" not in words.lower().split()


def test_two_changed_settings_are_not_called_one(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, blocks=2, count=5)
    manifest = next(tmp_path.glob("sweep-chunk-b0p*/manifest.json"))
    stored = json.loads(manifest.read_text())
    stored["target"]["echo"]["block_size"] = 32
    manifest.write_text(json.dumps(stored))
    words = Page(sweep_html(folder)).words
    assert "More than one setting differs between levels: block_size" in words
    assert "One factor changed" not in words


def test_the_report_is_one_file_of_reasonable_size(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, blocks=2, count=5)
    before = {p.name for p in folder.iterdir()}
    path = write_sweep_report(folder)
    assert {p.name for p in folder.iterdir()} - before == {"report.html"}
    assert path == folder / "report.html"
    assert path.stat().st_size < 6_000_000


def test_a_folder_that_is_no_sweep_gives_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunCorruptError, match=r"sweep\.json: No such file"):
        write_sweep_report(tmp_path)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(RunCorruptError) as error:
        write_sweep_report(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("run_id", "said"),
    [
        ("run-a", "This run is valid"),
        ("run-invalid", "3 of 20 requests failed (http_5xx)"),
        ("run-no-traces", "This run has no step trace"),
        ("torn-tables", "steps.parquet:"),
        ("run-hostile", HOSTILE),
    ],
)
def test_run_pages(store_dir: Path, run_id: str, said: str) -> None:
    text = run_html(RunStore(store_dir).open(run_id))
    found = Page(text)
    assert said in found.words or said in " ".join(found.data.values())
    assert HOSTILE not in text
    assert next(a["id"] for t, a in found.tags if t == "section") == "summary"


def test_a_run_without_metrics_or_requests_has_a_page(tmp_path: Path) -> None:
    write_run(tmp_path, "crashed", count=4, status="interrupted")
    for name in ("metrics.json", "requests.parquet", "chunks.parquet", "steps.parquet", "events.parquet"):
        (tmp_path / "crashed" / name).unlink()
    words = Page(write_run_report(RunStore(tmp_path).open("crashed")).read_text()).words
    assert "This run has no computed metrics." in words
    assert "No validity was stored" in words
    assert "interrupted" in words


def test_json_for_a_script_element_cannot_end_it() -> None:
    text = script_json({"a": [float("nan"), float("inf"), "</script>&\u2028"], 1: (1, None)})
    assert not set(text) & set("<>&\u2028")
    assert json.loads(text) == {"a": [None, None, "</script>&\u2028"], "1": [1, None]}
