"""Every failure a user can meet, with the exit code that tells a scheduler whether to retry.

A message is one line: what went wrong, where (job, object or row), and what to do about it.
"""


class StaticJobError(Exception):
    """Base of all expected failures; printed without a traceback."""

    exit_code = 1

    def facts(self) -> dict[str, str]:
        """What a program needs to know beyond the message; part of what `--json` prints."""
        return {}


class InfrastructureError(StaticJobError):
    """The store, network, disk or device failed; the same command may succeed later."""

    exit_code = 1


class ConfigError(StaticJobError):
    """The job file, a flag or the model does not fit; retrying cannot help."""

    exit_code = 2


class DataError(StaticJobError):
    """The input is missing, corrupt or changed, or too many rows failed; retrying cannot help."""

    exit_code = 2


class MissingInputError(DataError):
    """No data lies at `uri`, an input.uri; a scheduler may wait for it or skip the run."""

    def __init__(self, uri: str, message: str) -> None:
        super().__init__(message)
        self.uri = uri

    def facts(self) -> dict[str, str]:
        return {"missing": self.uri}


class Stopped(StaticJobError):
    """The command was asked to stop (SIGTERM, SIGINT); finished work is kept for the next run."""

    exit_code = 3


def shortened(error: BaseException) -> str:
    """Another library's error on one line of bounded length, to quote in a message."""
    return " ".join(str(error).split())[:300] or type(error).__name__
