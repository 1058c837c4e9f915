"""A whole run as one archive: out of the store and, checked, into another."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path, PurePosixPath

from engine.errors import InvalidInputError
from workbench.atomic import beside
from workbench.errors import RunCorruptError
from workbench.runstore import MANIFEST, Run, RunStore

_MEMBER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_MOST_MEMBERS = 200
_MOST_BYTES = 8 << 30


def write_bundle(run: Run, path: Path) -> None:
    """``path`` (.tar.gz) with the run's files under one folder named by its id.

    Raises:
        InvalidInputError: the place can't be written.
    """
    try:
        with beside(path) as place, tarfile.open(place, "w:gz", compresslevel=6) as archive:
            for file in sorted(run.path.iterdir()):
                if file.is_file() and not file.name.startswith("."):
                    archive.add(file, arcname=f"{run.id}/{file.name}", recursive=False)
    except OSError as error:
        raise InvalidInputError("out", str(path), f"a file that can be written ({error.strerror})") from None


def read_bundle(path: Path, store: RunStore) -> Run:
    """Unpack a bundle into ``store``. Nothing is written outside of one new folder: names with folders,
    links and
    whatever is no plain file are refused.

    Raises:
        InvalidInputError: it is no bundle of a run, or a run of its id is there already.
    """

    def refuse(why: str) -> InvalidInputError:
        return InvalidInputError("file", str(path), f"a bundle of a run ({why})")

    contents: dict[str, bytes] = {}
    size = 0
    try:
        with tarfile.open(path, "r:*") as archive:
            for member in archive:
                parts = PurePosixPath(member.name).parts
                if member.isdir() and len(parts) == 1:
                    continue
                if not member.isfile() or len(parts) != 2 or not _MEMBER.fullmatch(parts[1]):
                    raise refuse(f"{member.name[:80]!r} does not belong into one")
                size += member.size
                if size > _MOST_BYTES or len(contents) >= _MOST_MEMBERS:
                    raise refuse("it is too large")
                file = archive.extractfile(member)
                contents[parts[1]] = file.read() if file is not None else b""
    except (tarfile.TarError, EOFError, OSError):
        raise refuse("it is no tar archive, or a damaged one") from None
    if MANIFEST not in contents:
        raise refuse(f"no {MANIFEST}")
    try:
        return store.adopt(contents)
    except RunCorruptError as error:
        raise refuse(str(error)) from None
