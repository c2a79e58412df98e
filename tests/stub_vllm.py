"""Speaks vllm_worker's protocol without a model: row i gets the tokens i, i + 1, … up to its limit.

    python tests/stub_vllm.py FOLDER [FAULT …]

The n-th start takes the n-th fault: `stall` or `crash` after half of the rows, `deaf` before it is ready,
`none`. It starts a child that would outlive it and writes all process ids to FOLDER/pids.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from staticjob.generating.guard import run_guarded


def send(message: object) -> None:
    print(json.dumps(message), flush=True)


def fail(fault: str) -> None:
    if fault == "crash":
        print("out of memory: the stub says so", file=sys.stderr, flush=True)
        os._exit(9)
    time.sleep(3600)


def main() -> int:
    folder, faults = Path(sys.argv[1]), sys.argv[2:]
    starts = folder / "starts"
    start = len(starts.read_text()) if starts.exists() else 0
    starts.write_text("x" * (start + 1))
    fault = faults[start] if start < len(faults) else "none"
    child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    with (folder / "pids").open("a") as pids:
        print(os.getppid(), os.getpid(), child.pid, file=pids)
    sys.stdin.readline()
    if fault == "deaf":
        fail(fault)
    send({"ready": 0.1})
    for line in sys.stdin:
        requests = json.loads(line)
        (folder / f"requests-{start}.json").write_text(json.dumps([r["id"] for r in requests]))
        for number, request in enumerate(requests):
            if fault in ("stall", "crash") and number >= len(requests) / 2:
                fail(fault)
            send({"step": {"seconds": 0.01, "rows": len(requests), "prefilled": 0, "waiting": 0}})
            tokens = list(range(request["id"], request["id"] + request["max_new_tokens"]))
            send({"row": request["id"], "tokens": tokens, "finish": "length", "logprobs": []})
        send({"done": True})
    return 0


if __name__ == "__main__":
    run_guarded(main)
