#!/usr/bin/env python3
"""Stands in for the interpreter: speaks like `python -m staticjob …`, does what STUB says.

STUB is a JSON object: {"lines": [...], "stdout": "...", "code": n, "wait": true, "child": true,
"deaf": true}. The arguments and environment it saw go to the file named by STUB_SEEN.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

plan = json.loads(os.environ["STUB"])
if plan.get("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
seen = {
    "argv": sys.argv[1:],
    "env": dict(os.environ),
    "group": os.getpgrp(),
    "parent_group": os.getpgid(os.getppid()),
}
if plan.get("child"):
    seen["child"] = subprocess.Popen(["sleep", "300"], start_new_session=False).pid
Path(os.environ["STUB_SEEN"]).write_text(json.dumps(seen))
for line in plan.get("lines", []):
    print(line, file=sys.stderr, flush=True)
if plan.get("wait"):
    time.sleep(300)
print(plan.get("stdout", "{}"))
sys.exit(plan.get("code", 0))
