"""The two revisions as folders of source with a Python that can run them.

A revision is exported with ``git archive`` into a folder of its own: nothing is registered in the repository
and a killed gate leaves nothing behind in it. Both use the Python that runs the gate unless their
dependencies differ; then the revision gets a virtual environment of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

from engine.errors import InvalidInputError
from experiments.gate.models import Side, Unusable

_GIT_S = 60.0
_VENV_S = 1800.0
CODE = (".py", ".cpp", ".h", ".toml", ".txt")
"""Endings of files that can change what is measured."""


def export_revision(repository: Path, revision: str, folder: Path) -> str:
    """Write the tree of ``revision`` to ``folder`` (made anew); returns its commit.

    Raises:
        InvalidInputError: there is no such revision, or no repository.
        Unusable: git can't export it.
    """
    done = _git(repository, "rev-parse", "--verify", "--end-of-options", revision + "^{commit}")
    if done.returncode != 0:
        raise InvalidInputError("revision", revision, f"a commit, branch or tag of {repository}")
    commit = done.stdout.strip()
    folder.mkdir(parents=True)
    archive = folder.with_suffix(".tar")
    packed = _git(repository, "archive", "--format=tar", "-o", str(archive), commit)
    if packed.returncode != 0:
        raise Unusable(f"git archive {revision}: {packed.stderr.strip()}")
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except tarfile.TarError as error:
        raise Unusable(
            f"git archive {revision}: {type(error).__name__}: an empty tree has no baseline"
        ) from None
    finally:
        archive.unlink(missing_ok=True)
    return commit


def repository_of(folder: Path) -> Path:
    """Raises:
    InvalidInputError: ``folder`` lies in no git repository.
    """
    done = _git(folder, "rev-parse", "--show-toplevel")
    if done.returncode != 0:
        raise InvalidInputError(
            "base", str(folder), "run inside a git repository, or give --base-dir and --head-dir"
        )
    return Path(done.stdout.strip())


def commit_of(folder: Path) -> str | None:
    """The checked-out commit of a working folder, marked when files differ from it."""
    done = _git(folder, "rev-parse", "HEAD")
    if done.returncode != 0:
        return None
    dirty = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return done.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def check_folder(name: str, folder: Path) -> Path:
    """Raises:
    InvalidInputError: no source tree of the workbench.
    """
    if not (folder / "engine" / "__init__.py").is_file():
        raise InvalidInputError(name, str(folder), "a source folder with engine/ in it")
    return folder.resolve()


def code_changed(base: Path, head: Path) -> bool:
    """Whether anything differs that could change a measurement: source, build files, dependencies."""
    return _code(base) != _code(head)


def _code(root: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for part in ("engine", "workloads", "pyproject.toml", "constraints.txt"):
        path = root / part
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and file.suffix in CODE and "__pycache__" not in file.parts:
                found[str(file.relative_to(root))] = file.read_bytes()
    return found


def python_for(side: str, folder: Path, out: Path) -> str:
    """The Python of this process when ``folder`` wants the dependencies that are installed here, else that
    of a new virtual environment.

    Raises:
        Unusable: the environment can't be made.
    """
    ours = Path(__file__).resolve().parents[2]
    if _dependencies(folder) == _dependencies(ours):
        return sys.executable
    environment = out / f"venv-{side}"
    python = environment / "bin" / "python"
    constraints = ["-c", "constraints.txt"] if (folder / "constraints.txt").is_file() else []
    for command in (
        [sys.executable, "-m", "venv", str(environment)],
        [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install", *constraints, "."],
    ):
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=_VENV_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unusable(f"{side}: no environment: {error}") from None
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            raise Unusable(f"{side}: no environment: {lines[-1]}")
    return str(python)


def _dependencies(folder: Path) -> Any:
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return None
    constraints = folder / "constraints.txt"
    return (
        sorted(project.get("dependencies", [])),
        constraints.read_text(encoding="utf-8") if constraints.is_file() else "",
    )


def environment_of(side: Side) -> dict[str, str]:
    """Environment of a script inside ``side``: its own packages first, hash order fixed, nothing of ours."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH_")}
    return {
        **inherited, "PYTHONPATH": side.folder, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip


def _git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=_GIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InvalidInputError("git", " ".join(arguments), f"git to work ({error})") from None
