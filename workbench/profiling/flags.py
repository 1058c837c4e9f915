"""Flags of a profiled window, for ``bench --profile`` and ``profile``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from engine.errors import InvalidInputError
from workbench.profiling.window import ProfileWindow


class ProfileFlags(BaseModel):
    """What ``bench`` takes beside its own flags."""

    profile: bool | None = Field(
        None, description="Watch some steps with torch.profiler; the run is flagged and not valid."
    )
    profile_after: float | None = Field(None, description="Seconds into the load (default 2).")
    profile_steps: int | None = Field(None, description="Most steps of the window (default 50).")
    profile_seconds: float | None = Field(None, description="Most seconds of the window (default 10).")
    profile_stacks: bool | None = Field(
        None, description="Also sample Python stacks with py-spy, where it is installed and may."
    )


def profile_window(flags: Mapping[str, Any]) -> ProfileWindow | None:
    """The window of the flags that were given; None: do not profile.

    Raises:
        InvalidInputError: a bound is out of range, or a bound without ``--profile``.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    if not given.pop("profile", False):
        for name, value in given.items():
            raise InvalidInputError(name.replace("_", "-"), value, "only with --profile")
        return None
    fields = {"profile_after": "after_s", "profile_steps": "num_steps", "profile_seconds": "max_seconds",
              "profile_stacks": "py_spy"}  # fmt: skip
    try:
        return ProfileWindow(**{fields[name]: value for name, value in given.items()})
    except ValidationError as error:
        first = error.errors()[0]
        name = next(flag for flag, own in fields.items() if own == first["loc"][0])
        raise InvalidInputError(name.replace("_", "-"), first.get("input"), first["msg"]) from None
