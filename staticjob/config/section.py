"""A part of a job file, and the values that parts have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Strict
from pydantic_core import PydanticKnownError

from staticjob.uris import checked_uri

Auto = Literal["auto"]
Uri = Annotated[str, AfterValidator(checked_uri)]


def _no_boolean(value: object) -> object:
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    return value


# Python counts true as 1. A Number may be text, as YAML reads 1e-3.
Whole = Annotated[int, Strict()]
Number = Annotated[float, BeforeValidator(_no_boolean)]


class Section(BaseModel):
    """A part of the job file; immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
