"""Runs one `python -m staticjob …` in a process group of its own; knows nothing of Airflow.

A fresh interpreter, never a fork: CUDA does not survive a fork, and Airflow's environment then
needs neither torch nor vLLM.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

LAST_LINES = 20


@dataclass(frozen=True)
class Outcome:
    """How the command ended.

    code: its exit code; negative is the signal that ended it. stopped: `stop` was called.
    stdout: everything it printed there. last_lines: the end of its stderr.
    """

    code: int
    stopped: bool
    stdout: str
    last_lines: tuple[str, ...]

    @property
    def reason(self) -> str:
        """Why it failed: what it says so on stdout, else (it died early) the last line of its log."""
        with suppress(ValueError, KeyError):
            return str(self.result()["error"])
        return self.last_lines[-1] if self.last_lines else "it printed nothing"

    def result(self) -> dict[str, Any]:
        """The one JSON object on stdout; ValueError when there is not exactly that."""
        value = json.loads(self.stdout)
        if not isinstance(value, dict):
            raise ValueError(f"expected one JSON object, found {type(value).__name__}")
        return value


class Command:
    """One command; `run` waits for it, `stop` may be called from a signal handler meanwhile.

    argv, env: as for `subprocess.Popen`. grace: seconds between SIGTERM and SIGKILL.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], grace: float) -> None:
        self.argv = list(argv)
        self.env = {**env, "STATICJOB_DIE_WITH_PARENT": "1", "STATICJOB_PARENT_PID": str(os.getpid())}
        self.grace = grace
        self._process: subprocess.Popen[str] | None = None
        self._stopped = threading.Event()
        self._killer: threading.Timer | None = None

    def run(self, on_line: Callable[[str], None]) -> Outcome:
        """Start, hand every line of stderr to `on_line` as it comes, and wait for the end.

        Nothing of the process group is left afterwards. Raises OSError when it cannot start.
        """
        # The process that starts the command is its parent for PR_SET_PDEATHSIG: no helper thread here.
        self._process = process = subprocess.Popen(
            self.argv,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        if self._stopped.is_set():  # asked to stop while it was being started
            self.stop()
        last: deque[str] = deque(maxlen=LAST_LINES)
        out: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [
            threading.Thread(target=_read_lines, args=(process.stderr, last, on_line), daemon=True),
            threading.Thread(target=_read_all, args=(process.stdout, out), daemon=True),
        ]
        for reader in readers:
            reader.start()
        try:
            code = process.wait()
        finally:
            if self._killer is not None:
                self._killer.cancel()  # its process id may soon be another's
            self._signal(signal.SIGKILL)  # descendants that outlived it hold its pipes and the device
        for reader in readers:
            reader.join()
        return Outcome(code, self._stopped.is_set(), "".join(out), tuple(last))

    def stop(self) -> None:
        """Send SIGTERM to the group, and SIGKILL when it is still there after the grace."""
        self._stopped.set()
        if self._process is None:
            return
        self._signal(signal.SIGTERM)
        self._killer = threading.Timer(self.grace, self._signal, args=(signal.SIGKILL,))
        self._killer.daemon = True
        self._killer.start()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _read_lines(stream: IO[str], last: deque[str], on_line: Callable[[str], None]) -> None:
    for line in stream:
        text = line.rstrip()
        if text:
            last.append(text)
            on_line(text)


def _read_all(stream: IO[str], out: list[str]) -> None:
    out.append(stream.read())
