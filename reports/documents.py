"""JSON documents of a bundle, read as data from strangers: one line says what is wrong with one."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from workbench.errors import RunCorruptError

T = TypeVar("T", bound=BaseModel)


def read_document(path: Path, kind: type[T], version: int) -> T:
    """The document at ``path``; a ``kind`` without ``schema_version`` has none to be too new.

    Raises:
        RunCorruptError: it is missing, cut short, no ``kind``, or of a newer schema than ``version``.
    """
    where = f"{path.parent.name}: {path.name}"
    try:
        document = kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RunCorruptError(f"{where}: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or path.name
        raise RunCorruptError(f"{where}: {field}: {first['msg']}") from None
    found = getattr(document, "schema_version", 0)
    if found > version:
        raise RunCorruptError(
            f"{where} has schema {found}: a newer schema than {version}, which this workbench reads"
        )
    return document
