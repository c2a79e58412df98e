"""When to try again: pure decisions about delays, and one loop that applies them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from staticjob.environment import positive

Result = TypeVar("Result")

ATTEMPTS = "STATICJOB_STORE_ATTEMPTS"
TIMEOUT = "STATICJOB_STORE_TIMEOUT"
DELAY = "STATICJOB_STORE_DELAY"


@dataclass(frozen=True)
class Patience:
    """How long the store is waited for; read from the environment by `from_environment`."""

    attempts: int = 10  # with these delays, a store that is down for half a minute is waited out
    timeout: float = 60.0  # seconds to connect, and seconds without a byte
    delay: float = 0.2  # seconds before the second attempt; doubles up to MAX_DELAY

    MAX_DELAY = 20.0

    def delays(self) -> Iterator[float]:
        """Seconds to wait before each further attempt: exponential, each between half and all of it.

        The spread keeps many tasks that were throttled together from coming back together.
        """
        for attempt in range(self.attempts - 1):
            full = min(self.delay * 2**attempt, self.MAX_DELAY)
            yield full * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret


def from_environment() -> Patience:
    """Patience as the environment sets it; ConfigError naming a variable that is not a positive number."""
    default = Patience()
    return Patience(
        attempts=max(1, int(positive(ATTEMPTS, default.attempts))),
        timeout=positive(TIMEOUT, default.timeout),
        delay=positive(DELAY, default.delay),
    )


def attempt(
    call: Callable[[int], Result], patience: Patience, worth_repeating: Callable[[Exception], bool]
) -> Result:
    """The result of `call(n)`, n counting attempts from 0; the last exception when all fail."""
    delays = patience.delays()
    tried = 0
    while True:
        try:
            return call(tried)
        except Exception as error:
            delay = next(delays, None)
            if delay is None or not worth_repeating(error):
                raise
        time.sleep(delay)
        tried += 1
