"""The factors: what ``workbench sweep --param NAME`` can change, why it should matter, and what is expected.

The registry is data (``factors.toml``); a user's own file has the same shape. Levels are checked against
the engine's configuration before anything starts, so a bad one costs a line, not a run.
"""

from __future__ import annotations

import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from engine.config import EngineConfig
from engine.errors import InvalidInputError
from experiments.design import level_text, same_level
from experiments.metric_info import metric_info
from experiments.models import Frozen

Side = Literal["engine", "load", "command"]
"""engine: a setting of the server; load: of the traffic; command: whatever stands in braces in the user's own
``--target-command``."""
LOAD_FIELDS = ("request_rate", "max_concurrency")
REGISTRY = Path(__file__).with_name("factors.toml")
AUTO = "auto"
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_WORDS = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}


class FactorExpectation(Frozen):
    """What a larger value (a later level) should do to one metric."""

    metric: str
    direction: Literal["up", "down", "none"]
    text: str


class Factor(Frozen):
    """One thing to change. ``levels`` are in order; "auto" leaves the choice to the engine."""

    name: str
    field: str
    title: str
    levels: list[Any]
    mechanism: str
    expect: list[FactorExpectation]
    primary: str
    workload: str
    vllm: str | None = None
    sglang: str | None = None
    fixed: dict[str, Any] = Field(default={})
    """Engine settings for all levels: without them some level would be refused, or would change two
    things."""
    why_fixed: str = ""
    zero_is_unlimited: bool = False
    changes_output: bool = False
    side: Side = "engine"
    default: Any = None
    """The baseline where the engine has no default to tell: sides load and command."""

    @property
    def baseline(self) -> Any:
        """The engine's default; "auto" where the default is to let the engine choose."""
        if self.side != "engine":
            return self.levels[0] if self.default is None else self.default
        default = EngineConfig.model_fields[self.field].default
        return AUTO if default is None else default

    def value(self, level: Any) -> Any:
        """A level as its side takes it: "auto" of a field that may be left out is None."""
        return None if level == AUTO and self._type()[1] else level

    def _type(self) -> tuple[Any, bool]:
        """Type of the levels without None, and whether they may be "auto"."""
        if self.side == "engine":
            return _field_type(self.field)
        kinds = {type(level) for level in self.levels if level != AUTO}
        plain = float if kinds == {int, float} else (kinds.pop() if len(kinds) == 1 else str)
        return plain, AUTO in self.levels

    @property
    def type_name(self) -> str:
        """int, float, bool or the choices, as the engine's configuration has it; "or auto" where it may be
        left out."""
        plain, optional = self._type()
        choices = typing.get_args(plain)
        text = " | ".join(str(c) for c in choices) if choices else getattr(plain, "__name__", str(plain))
        return f"{text} or auto" if optional else text

    def parse(self, text: str) -> Any:
        """A level from the command line: ``256``, ``2k``, ``64M`` (powers of 1024), ``on``, ``fcfs``,
        ``auto``.

        Raises:
            InvalidInputError: not a value of this field's type.
        """
        word = text.strip()
        plain, optional = self._type()
        if optional and word.lower() in (AUTO, "none", "null"):
            return AUTO
        if plain is bool:
            if word.lower() not in _WORDS:
                raise InvalidInputError(self.name, text, "on or off")
            return _WORDS[word.lower()]
        if plain is int:
            match = re.fullmatch(r"([+-]?\d+)([kmg]?)(?:i?b)?", word.lower())
            if match is None:
                raise InvalidInputError(self.name, text, "a whole number" + (" or auto" if optional else ""))
            return int(match[1]) * _UNITS[match[2]]
        if plain is float:
            try:
                return float(word)
            except ValueError:
                raise InvalidInputError(self.name, text, "a number") from None
        return word

    def order(self, values: Sequence[Any]) -> list[Any]:
        """``values`` without repeats in the factor's order: numbers rise, "no cap" and auto come last."""
        unique: list[Any] = []
        for value in values:
            if not any(same_level(value, seen) for seen in unique):
                unique.append(value)

        def key(value: Any) -> tuple[int, float]:
            if value == AUTO:
                return (2, 0.0)
            if isinstance(value, str):
                known = [i for i, level in enumerate(self.levels) if same_level(level, value)]
                return (0, float(known[0] if known else len(self.levels)))
            unlimited = self.zero_is_unlimited and value == 0
            return (1, 0.0) if unlimited else (0, float(value))

        return sorted(unique, key=key)

    def check(self, values: Sequence[Any], engine: Mapping[str, Any]) -> None:
        """Build the configuration of every level, with the settings that all share.

        Raises:
            InvalidInputError: naming the first level that the engine's configuration refuses, and why.
        """
        if self.side == "command":
            return
        if self.side == "load":
            bad = [v for v in values if not isinstance(v, (int, float)) or isinstance(v, bool) or v <= 0]
            if bad:
                raise InvalidInputError(self.name, bad[0], "a number above 0")
            return
        for value in values:
            try:
                EngineConfig.create(**{**engine, self.field: self.value(value)})
            except InvalidInputError as error:
                if error.field == self.field and same_level(error.value, value):
                    raise InvalidInputError(self.name, value, error.allowed) from None
                raise InvalidInputError(self.name, value, f"not with the other settings: {error}") from None


def _field_type(field: str) -> tuple[Any, bool]:
    """Type of an engine setting without its None, and whether None is allowed."""
    annotation = EngineConfig.model_fields[field].annotation
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        return kinds[0], True
    return annotation, False


def load_factors(*more: Path) -> dict[str, Factor]:
    """The shipped factors, then those of the files ``more`` (a name met again replaces the earlier one).

    Raises:
        InvalidInputError: a file can't be read, or a factor in it is not well formed.
    """
    factors: dict[str, Factor] = {}
    for path in (REGISTRY, *more):
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidInputError("factors", str(path), f"a readable TOML file ({error})") from None
        for name, table in tables.items():
            factors[name] = _read_factor(path, name, table)
    return factors


def _read_factor(path: Path, name: str, table: object) -> Factor:
    where = f"{path.name}: {name}"
    if not isinstance(table, dict):
        raise InvalidInputError("factors", where, "a table [name] with field, levels, mechanism ...")
    side, field = table.get("side", "engine"), table.get("field")
    known = {"engine": EngineConfig.model_fields, "load": LOAD_FIELDS}.get(side)
    if known is not None and field not in known:
        allowed = "a field of the engine's configuration" if side == "engine" else " or ".join(LOAD_FIELDS)
        raise InvalidInputError("factors", f"{where}.field={field}", allowed)
    try:
        factor = Factor(name=name, **table)
    except (ValidationError, TypeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(error)
        raise InvalidInputError("factors", where, what) from None
    for metric in [factor.primary, *(line.metric for line in factor.expect)]:
        if metric_info(metric) is None:
            raise InvalidInputError(
                "factors", f"{where}: {metric}", "a metric with a better side, such as itl_p99"
            )
    factor.check(factor.levels, factor.fixed)
    return factor


def get_factor(name: str, factors: Mapping[str, Factor] | None = None) -> Factor:
    """The factor called ``name``, or the one that sets the engine field of that name
    (``max_num_batched_tokens``).

    Raises:
        InvalidInputError: there is none; lists those that there are.
    """
    known = load_factors() if factors is None else factors
    wanted = name.strip().lower().replace("-", "_")
    if wanted in known:
        return known[wanted]
    by_field = [factor for factor in known.values() if factor.field == wanted]
    if by_field:
        return by_field[0]
    raise InvalidInputError("param", name, "one of " + ", ".join(sorted(known)))


def parse_values(factor: Factor, text: str) -> list[Any]:
    """Comma-separated levels; at least one.

    Raises:
        InvalidInputError: empty, or a level that is no value of the field.
    """
    parts = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise InvalidInputError(
            "values", text, "levels separated by commas, such as " + ",".join(map(level_text, factor.levels))
        )
    return [factor.parse(part) for part in parts]
