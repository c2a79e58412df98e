"""Images and compose file: pinned, unprivileged, watched, and in step with the DAGs and the pins."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import airflow_home  # first: Airflow reads its settings at import
import pytest
import yaml
from airflow.configuration import conf

from staticjob.config.airflow import AirflowConfig

REPOSITORY = Path(__file__).parents[1]
DOCKER = REPOSITORY / "docker"
IMAGES = ("airflow", "cpu", "gpu")
TAGGED = re.compile(r"^[\w./-]+:[\w.-]*\d[\w.-]*$")


def dockerfile() -> dict[str, list[tuple[str, str]]]:
    """(instruction, rest) by stage, without the stages it starts from; `FROM` is the first."""
    text = (DOCKER / "Dockerfile").read_text().replace("\\\n", " ")
    stages: dict[str, list[tuple[str, str]]] = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            source, _, name = rest.partition(" AS ")
            stages[name] = lines = [("FROM", source)]
        elif word.isupper():
            lines.append((word, rest))
    return stages


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DOCKER / "compose.yaml").read_text()))


def pins(name: str) -> dict[str, str]:
    """Version by canonical name of a requirements file."""
    lines = [line for line in (REPOSITORY / name).read_text().splitlines() if "==" in line and line[0] != "#"]
    return {re.sub(r"[-_.]+", "-", n).lower(): v for n, v in (line.split("==") for line in lines)}


def known_setting(variable: str) -> bool:
    """Whether Airflow reads AIRFLOW__SECTION__KEY; Celery's are its provider's, which only the image has."""
    _, section, key = variable.lower().split("__")
    known = conf.configuration_description.get(section, {"options": {}})["options"]
    return key in known or section.startswith("celery")


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([hadolint, DOCKER / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_image_starts_from_a_pinned_one_runs_unprivileged_and_tells_its_health() -> None:
    stages = dockerfile()
    for lines in stages.values():
        assert lines[0][1] in stages or TAGGED.match(lines[0][1])
    for name in IMAGES:
        chain = [name]
        while stages[chain[0]][0][1] in stages:
            chain.insert(0, stages[chain[0]][0][1])
        lines = [line for stage in chain for line in stages[stage]]
        assert [rest for word, rest in lines if word == "USER"][-1] == "50000:0"
        assert any(word == "HEALTHCHECK" for word, _ in lines)


def test_what_is_pinned_twice_is_pinned_alike() -> None:
    tested = pins("requirements.txt")
    beside = tested | pins("requirements-distributed.txt")
    for image in IMAGES:
        pinned = pins(f"docker/requirements-{image}.txt")
        assert {name: v for name, v in pinned.items() if beside.get(name, v) != v} == {}
    airflow, worker = pins("docker/requirements-airflow.txt"), pins("docker/requirements-cpu.txt")
    assert "torch" not in airflow
    assert worker.items() <= tested.items(), "the constraints fix every package of the CPU worker"


def test_airflows_image_has_all_that_the_dags_and_the_run_page_import() -> None:
    """Runs them with everything blocked that is installed here and not in that image."""
    present = pins("docker/requirements-airflow.txt").keys()
    blocked = sorted(
        package
        for package, distributions in packages_distributions().items()
        if not {re.sub(r"[-_.]+", "-", d).lower() for d in distributions} & present
        and package not in ("staticjob", "pip")
        and package.isidentifier()
    )
    assert "torch" in blocked
    assert "transformers" in blocked
    code = (
        "import json, runpy, sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in blocked: raise ModuleNotFoundError(name)\n"
        "blocked = set(json.loads(sys.argv[1]))\n"
        "sys.meta_path.insert(0, Block())\n"
        "assert runpy.run_path('dags/staticjob_jobs.py')['docstrings']\n"
        "runpy.run_path('dags/staticjob_adhoc.py')\n"
        "import staticjob_plugin\n"
        "assert staticjob_plugin.StaticJobPlugin().fastapi_apps\n"
    )
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": f"{REPOSITORY / 'plugins'}:{REPOSITORY}",
        "AIRFLOW_HOME": str(Path(airflow_home.__file__).parent / "nowhere"),
        "AIRFLOW__CORE__UNIT_TEST_MODE": "True",
    }
    command = [sys.executable, "-c", code, json.dumps(blocked)]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_service_of_the_compose_file_is_pinned_and_watched() -> None:
    for name, service in compose()["services"].items():
        assert TAGGED.match(service["image"]), name
        # The images' own health checks are those of the API server and of a worker.
        own = service.get("command", [])[:2] == ["airflow", "api-server"] or name.startswith("worker-")
        assert own or "healthcheck" in service, name


def test_workers_listen_to_the_queues_of_the_dags_and_the_pool_of_the_dags_is_made() -> None:
    settings = AirflowConfig()
    services = compose()["services"]
    queues = {
        name: service["command"][service["command"].index("--queues") + 1]
        for name, service in services.items()
        if name.startswith("worker-")
    }
    default = services["worker-cpu"]["environment"]["AIRFLOW__OPERATORS__DEFAULT_QUEUE"]
    assert queues == {"worker-cpu": default, "worker-gpu": settings.queue}
    gpu = services["worker-gpu"]
    assert gpu["command"][-2:] == ["--concurrency", "1"]
    assert gpu["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    init = (DOCKER / "init.py").read_text()
    assert f'"pools", "set", "{settings.pool}"' in init


@pytest.mark.parametrize("present", [False, True])
def test_a_pool_that_is_there_keeps_its_slots(present: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    make_pool = runpy.run_path(str(DOCKER / "init.py"))["make_pool"]
    called = []

    def airflow(*words: str, check: bool = True) -> bool:
        called.append(words[:3])
        return present

    monkeypatch.setitem(make_pool.__globals__, "airflow", airflow)
    make_pool()
    assert called == [("pools", "get", "gpu"), ("pools", "set", "gpu")][: 1 if present else 2]


def test_the_buckets_of_the_job_files_are_made(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("input: {uri: s3://in/x}\noutput: {uri: 's3://out-2/{date}/'}")
    (tmp_path / "b.yml").write_text("input: {uri: s3://in-3/y}")
    assert runpy.run_path(str(DOCKER / "init.py"))["buckets"](tmp_path) == ["in", "in-3", "out-2"]


def test_airflow_knows_every_setting_that_images_and_compose_file_make() -> None:
    text = (DOCKER / "Dockerfile").read_text() + (DOCKER / "compose.yaml").read_text()
    named = set(re.findall(r"AIRFLOW__\w+", text))
    assert {name for name in named if not known_setting(name)} == set()


def test_every_secret_of_the_compose_file_is_made_anew_and_shows_in_no_command() -> None:
    text = (DOCKER / "compose.yaml").read_text()
    wanted = set(re.findall(r"\$\{(\w+)[:}]", text))
    made = [
        dict(
            line.split("=", 1) for line in subprocess.check_output(DOCKER / "make_env.sh", text=True).split()
        )
        for _ in range(2)
    ]
    assert made[0].keys() == wanted
    assert all(len(value) >= 32 and value != made[1][name] for name, value in made[0].items())
    for service in compose()["services"].values():
        assert not any("${" in word for word in service.get("command", []))


@pytest.mark.parametrize("script", ["check.sh", "make_env.sh", "healthy.sh"])
def test_scripts_are_executable_and_parse(script: str) -> None:
    assert (DOCKER / script).stat().st_mode & 0o111
    subprocess.run(["bash", "-n", DOCKER / script], check=True)


def test_a_stopping_worker_stops_its_steps_and_waits_for_them(tmp_path: Path) -> None:
    (tmp_path / "staticjob").mkdir()
    (tmp_path / "staticjob" / "__main__.py").write_text(
        "import pathlib, signal, sys, time\n"
        "def stop(*_):\n"
        "    time.sleep(0.5); pathlib.Path('flushed').touch(); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    # The container's first process, and a step beneath it.
    script = f"{sys.executable} -m staticjob; exit $?"
    with subprocess.Popen(["sh", "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        subprocess.run([sys.executable, DOCKER / "stop_steps.py", str(first.pid)], check=True)
        assert (tmp_path / "flushed").exists()
        assert first.wait() == 3
