"""Keep a sweep as a small folder that can be committed: result, schedule, reports, and how to run it again.

    python -m benchmarks.publish_sweep RUNS_DIR/sweep-... reports/examples/chunk-size

Runs (parquet tables, logs) stay behind, and the page's figures become pictures: the script that draws them is
larger than all else together. The folder is written whole or not at all.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from experiments.models import SweepResult
from reports.html import sweep_html
from reports.markdown import sweep_markdown

CHROMIUM = os.environ.get("WORKBENCH_CHROMIUM", "/usr/bin/chromium")
_STILL = """async () => {
  for (const node of document.querySelectorAll(".plot[data-figure]")) {
    const size = {width: node.clientWidth, height: node.clientHeight};
    const image = await Plotly.toImage(node, {format: "svg", ...size});
    node.innerHTML = decodeURIComponent(image.slice(image.indexOf(",") + 1));
  }
  document.querySelectorAll("script").forEach((script) => script.remove());
  return "<!doctype html>\\n" + document.documentElement.outerHTML;
}"""
LARGEST_PAGE = 1_500_000
LARGEST_FOLDER = 2_500_000
COPIED = ("schedule.json", "ledger.jsonl")


def publish(sweep: Path, out: Path) -> Path:
    """Raises:
    SystemExit: no finished sweep, something of this machine's folders in it, or too large.
    """
    result = SweepResult.model_validate_json((sweep / "sweep.json").read_bytes())
    if result.status not in ("complete", "budget"):
        raise SystemExit(f"{sweep}: the sweep is {result.status}: workbench sweep --resume {result.id}")
    scratch = out.with_name(out.name + ".part")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    kept = result.model_dump(mode="json") | {"report": "report.html"}
    texts = {name: (sweep / name).read_text(encoding="utf-8") for name in COPIED}
    texts["sweep.json"] = json.dumps(kept, indent=1)
    texts["report.html"] = still_page(sweep_html(sweep), scratch)
    texts["report.md"] = sweep_markdown(sweep)
    for name, text in texts.items():
        # Targets tell where they kept their traces.
        (scratch / name).write_text(text.replace(str(sweep.parent.resolve()), "RUNS_DIR"), encoding="utf-8")
    (scratch / "README.md").write_text(readme(result), encoding="utf-8")
    check(scratch, [str(sweep.resolve()), str(sweep.parent.resolve()), str(Path.home()), str(Path.cwd())])
    if out.exists():
        shutil.rmtree(out)
    os.replace(scratch, out)
    return out


def still_page(html: str, scratch: Path) -> str:
    """The page with its figures as inline pictures, and no script in it.

    Raises:
        SystemExit: no Chromium.
    """
    from playwright.sync_api import sync_playwright

    if not Path(CHROMIUM).exists():
        raise SystemExit(f"{CHROMIUM}: a Chromium is needed (WORKBENCH_CHROMIUM)")
    page_file = scratch / "live.html"
    page_file.write_text(html, encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme="light")
        page.goto(page_file.resolve().as_uri())
        page.wait_for_selector("html[data-ready=yes]", timeout=60_000)
        text: str = page.evaluate(_STILL)
        browser.close()
    page_file.unlink()
    return text


def check(folder: Path, private: list[str]) -> None:
    """Small enough, and with no path of this machine in it."""
    files = sorted(folder.iterdir())
    sizes = {file.name: file.stat().st_size for file in files}
    if sizes["report.html"] > LARGEST_PAGE or sum(sizes.values()) > LARGEST_FOLDER:
        raise SystemExit(f"too large to commit: {sizes}")
    for file in files:
        text = file.read_text(encoding="utf-8")
        for path in private:
            if path != "/" and path + "/" in text:
                raise SystemExit(f"{file.name} names a folder of this machine: {path}")


def readme(result: SweepResult) -> str:
    machine: dict[str, Any] = result.machine
    design = result.design
    same = result.equivalence
    lines = [
        f"# {result.question}",
        "",
        result.conclusion,
        "",
        *([result.boundary.text, ""] if result.boundary else []),
        f"Outputs: {same.identical} of {same.compared} requests identical to the baseline's. "
        f"{design['blocks_done']} of {design['blocks_planned']} blocks, {len(result.runs)} runs, "
        f"{design['elapsed_s'] / 60:.0f} minutes, {result.created[:10]}.",
        "",
        f"{machine.get('cpu') or 'unknown processor'}, {machine.get('cores')} cores. Again, with the same "
        "order and requests:",
        "",
        "```",
        result.reproduce,
        "```",
        "",
        "`report.html`: the page, its figures as pictures (`workbench report` makes the live one) · "
        "`report.md`: the same in words · `sweep.json`: every number · `schedule.json`: the question and the "
        "order, written before the first run · `ledger.jsonl`: what happened. The runs themselves "
        "(tables, logs) are not kept here.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sweep", type=Path, help="folder of the sweep")
    parser.add_argument("out", type=Path, help="folder to write, such as reports/examples/chunk-size")
    arguments = parser.parse_args()
    if not (arguments.sweep / "sweep.json").is_file():
        sys.exit(f"{arguments.sweep}: no sweep.json in it")
    folder = publish(arguments.sweep, arguments.out)
    print(folder, {file.name: file.stat().st_size for file in sorted(folder.iterdir())})


if __name__ == "__main__":
    main()
