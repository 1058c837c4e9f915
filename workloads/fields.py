"""Fields that every part of a workload file is made of: the strict base model, and length distributions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


class Spec(BaseModel):
    """Frozen; a key that is not known is an error, never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Constant(Spec):
    kind: Literal["constant"] = "constant"
    value: int = Field(ge=1)

    @property
    def least(self) -> int:
        return self.value

    @property
    def most(self) -> int:
        return self.value


class Uniform(Spec):
    """Every whole number from ``low`` to ``high``, both included, equally likely."""

    kind: Literal["uniform"] = "uniform"
    low: int = Field(ge=1)
    high: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.high < self.low:
            raise ValueError(f"high={self.high} is below low={self.low}")
        return self

    @property
    def least(self) -> int:
        return self.low

    @property
    def most(self) -> int:
        return self.high


class Lognormal(Spec):
    """Log-normal with this mean and coefficient of variation, rounded, then cut to [low, high]."""

    kind: Literal["lognormal"] = "lognormal"
    mean: float = Field(gt=0)
    cv: float = Field(gt=0)
    low: int = Field(default=1, ge=1)
    high: int = Field(ge=1)

    @property
    def least(self) -> int:
        return self.low

    @property
    def most(self) -> int:
        return self.high


def _length(value: Any) -> Any:
    """TOML short forms: ``48`` is constant, ``[1500, 3000]`` is uniform."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"kind": "constant", "value": value}
    if isinstance(value, (list, tuple)):
        if len(value) != 2:
            raise ValueError("a length is a number, a pair [low, high] or a table with kind")
        return {"kind": "uniform", "low": value[0], "high": value[1]}
    return value


Length = Annotated[Constant | Uniform | Lognormal, Field(discriminator="kind"), BeforeValidator(_length)]
"""A number of tokens (or of turns) per request."""
