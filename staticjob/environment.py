"""Numbers that environment variables set."""

from __future__ import annotations

import math
import os

from staticjob.errors import ConfigError


def positive(name: str, default: float, *, zero: bool = False) -> float:
    """The variable's value, `default` where it is unset or empty.

    Raises ConfigError naming the variable unless it is a positive number (or 0, with `zero`).
    """
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    if math.isfinite(value) and (value > 0 or (zero and value == 0)):
        return value
    raise ConfigError(f"{name}={text!r}: expected a positive number")
