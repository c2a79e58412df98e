"""No worker outlives its parent, hangs unseen, or dies without its work being kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from staticjob.errors import InfrastructureError
from staticjob.running.watch import heartbeat

REPOSITORY = Path(__file__).parents[1]


def python(code: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        **options,  # type: ignore[call-overload]
    )


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether the process ends within the time; a zombie counts as ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_command_dies_with_its_parent() -> None:
    parent = python(
        """
        import os, subprocess, sys, time
        child = subprocess.Popen(
            [sys.executable, "-c", "from staticjob.running.watch import die_with_parent; die_with_parent(); "
             "print('ready', flush=True); import time; time.sleep(60)"],
            env={**os.environ, "STATICJOB_DIE_WITH_PARENT": "1"}, stdout=subprocess.PIPE, text=True)
        child.stdout.readline()
        print(child.pid, flush=True)
        time.sleep(60)
        """
    )
    assert parent.stdout
    child = int(parent.stdout.readline())
    assert not gone(child, 0.2)
    parent.kill()
    parent.wait()
    assert gone(child)


def test_without_the_wish_a_command_outlives_its_parent() -> None:
    parent = python(
        """
        import os, subprocess, sys
        env = {k: v for k, v in os.environ.items() if k != "STATICJOB_DIE_WITH_PARENT"}
        child = subprocess.Popen(
            [sys.executable, "-c", "from staticjob.running.watch import die_with_parent; die_with_parent(); "
             "print('ready', flush=True); import time; time.sleep(60)"],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        child.stdout.readline()
        print(child.pid, flush=True)
        """
    )
    assert parent.stdout
    child = int(parent.stdout.readline())
    parent.wait()
    try:
        assert not gone(child, 0.5)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_stalled_engine_is_ended_with_exit_code_1_and_its_stack() -> None:
    hung = python(
        """
        import time
        from staticjob.running.watch import Watchdog
        with Watchdog(0.3) as dog:
            for _ in range(5):
                time.sleep(0.1)
                dog.alive()
            print("alive", flush=True)
            time.sleep(60)
        """
    )
    out, err = hung.communicate(timeout=30)
    assert out == "alive\n", "a slow engine that goes on is left alone"
    assert hung.returncode == 1
    assert "time.sleep" in err or "line" in err


def test_a_heartbeat_goes_on_during_long_work_and_survives_a_store_that_fails() -> None:
    beats = 0
    enough = threading.Event()

    def beat() -> None:
        nonlocal beats
        beats += 1
        if beats == 3:
            enough.set()
        raise InfrastructureError("the store is away")

    with heartbeat(beat, seconds=0.01):
        assert enough.wait(10)
    assert not any(thread.name == "heartbeat" for thread in threading.enumerate())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_request_is_taken_at_the_next_safe_point(number: signal.Signals) -> None:
    worker = python(
        """
        import sys, time
        from staticjob.terminal import console
        from staticjob.running.watch import StopFlag
        flag = StopFlag()
        print("ready", flush=True)
        try:
            while True:
                time.sleep(0.05)
                flag.check()
        except Exception as error:
            console.fail(error, as_json=True)
        """
    )
    assert worker.stdout
    worker.stdout.readline()
    worker.send_signal(number)
    out, err = worker.communicate(timeout=30)
    assert worker.returncode == 3
    assert number.name in err
    assert '"exit_code": 3' in out
