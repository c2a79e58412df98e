"""The process that runs vLLM, as its parent sees it: how it is started, spoken to, watched and ended."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from staticjob.generating.vllm_worker import WorkerSettings

TICK_SECONDS = 1.0
LAST_LINES = 5


class VllmFailed(Exception):
    """The process stalled or ended; the message says how."""


class VllmProcess:
    """The worker and the pipes to it."""

    def __init__(self, command: list[str], settings: WorkerSettings) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        cpu = settings.device == "cpu"
        # The same staticjob as this one, wherever the process is started from.
        paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            **({"CUDA_VISIBLE_DEVICES": ""} if cpu else {}),
        }
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            # A group of its own: a Ctrl-C at the terminal is for the job, which then ends this process.
            start_new_session=True,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._input: IO[bytes] = self._process.stdin
        self._output: IO[bytes] = self._process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        self._buffer = b""
        self.send(asdict(settings))

    def send(self, message: Any) -> None:
        try:
            self._input.write(json.dumps(message).encode() + b"\n")
            self._input.flush()
        except OSError:
            raise VllmFailed(self._how_it_ended()) from None

    def receive(self, seconds: float, tick: Callable[[], None]) -> dict[str, Any]:
        """The next message; VllmFailed when none comes in time or the process ends."""
        deadline = time.monotonic() + seconds
        tick()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if not self._selector.select(max(0.0, min(left, TICK_SECONDS))):
                if left <= 0:
                    raise VllmFailed(f"silent for {seconds:.0f} s")
                tick()
                continue
            data = os.read(self._output.fileno(), 1 << 16)
            if not data:
                raise VllmFailed(self._how_it_ended())
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _how_it_ended(self) -> str:
        self.end()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        last = " | ".join(line.strip() for line in lines[-LAST_LINES:])
        return f"ended with code {self._process.returncode}: {last}"

    def end(self) -> None:
        """Ask the guard to end everything; it and what it guards are gone on return."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
