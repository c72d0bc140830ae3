"""What all sections of a scenario share: strict, frozen, and named types for their numbers."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """One table of a scenario. An unknown key or a value of another type is an error."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        # Compiled on first use: a command that reads no scenario does not pay for the schema.
        defer_build=True,
    )


Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Nanoseconds = Annotated[int, Field(ge=0, le=10**15)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
"""Up to 31 years: well inside what int64 nanoseconds hold."""
Fraction = Annotated[float, Field(ge=0, le=1)]


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


sequence = BeforeValidator(_tuple)
"""TOML has arrays, a frozen scenario holds tuples; strict validation alone would refuse them."""


def conflict(message: str) -> PydanticCustomError:
    """The error of keys that are each right and together wrong."""
    # The message is data: pydantic would read braces in it as places to fill.
    return PydanticCustomError("conflict", "{message}", {"message": message})
