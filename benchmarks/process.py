"""A program in a process of its own that makes one pass for every line it is sent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# A program that does not end when its input does is ended.
QUIT_SECONDS = 30


class Process:
    """`script` of this directory, told a program's name and an argument; its errors go to `log`."""

    def __init__(self, script: str, name: str, argument: Path, log: Path) -> None:
        self.name, self._log = name, log
        command = [sys.executable, str(HERE / script), name, str(argument)]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def ready(self) -> float:
        """Wait until the program is ready; the seconds it took."""
        return float(self._answer()["start_seconds"])

    def run(self) -> dict[str, Any]:
        """One pass, and what the program says of it."""
        assert self._process.stdin
        self._process.stdin.write("pass\n")
        self._process.stdin.flush()
        return self._answer()

    def quit(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(QUIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended early; its last lines:\n{self._log.read_text()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer
