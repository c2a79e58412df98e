#!/usr/bin/env bash
# Builds the three images and tries each, where a container engine runs; says so where none does.
# Usage: docker/check.sh [airflow] [cpu] [gpu]; default: all. ENGINE names the program (docker).
set -euo pipefail
cd "$(dirname "$0")/.."
engine=${ENGINE:-docker}
if ! "$engine" info >/dev/null 2>&1; then
    echo "no container engine answers ($engine info); nothing was built" >&2
    exit 0
fi

try() { # try TARGET COMMAND...: in a container as it is started, without network
    local target=$1
    shift
    "$engine" run --rm --network none "staticjob-$target:check" "$@"
}

(($#)) || set -- airflow cpu gpu
for target; do
    echo "== $target"
    "$engine" build --build-arg "TORCH_INDEX=${TORCH_INDEX-}" --file docker/Dockerfile --target "$target" --tag "staticjob-$target:check" .
    test "$(try "$target" id -u)" = 50000
    try "$target" airflow version
    # The DAGs load, and Airflow's own environment has no torch.
    try "$target" python -c '
import importlib.util, runpy, sys
sys.path.insert(0, "/opt/project/plugins")
assert importlib.util.find_spec("torch") is None
assert runpy.run_path("/opt/project/dags/staticjob_jobs.py")["docstrings"]
runpy.run_path("/opt/project/dags/staticjob_job_errors.py")'
    if [ "$target" != airflow ]; then
        try "$target" /opt/staticjob/bin/python -m staticjob --version
        try "$target" /opt/staticjob/bin/python -c 'import torch, transformers, pyarrow'
    fi
    if [ "$target" = gpu ]; then
        try gpu /opt/staticjob/bin/python -c 'import importlib.metadata as m; print("vllm", m.version("vllm"))'
    fi
done
