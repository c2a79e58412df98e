"""Pods and Helm values: valid to Kubernetes, and in step with the images and the DAGs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import airflow_home  # noqa: F401  (first: Airflow reads its settings at import)
import kubernetes_validate
import pytest
import yaml
from airflow.configuration import conf

from staticjob.config.airflow import AirflowConfig

KUBERNETES = Path(__file__).parents[1] / "docker" / "kubernetes"
PODS = {"cpu", "gpu"}
VERSIONS = ("1.33", "1.37")  # the oldest that is still maintained by clouds, and the newest known here


def documents(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / path).read_text()))


def pod(name: str) -> dict[str, Any]:
    (document,) = documents(f"pods/{name}.yaml")
    return document


def values() -> dict[str, Any]:
    (document,) = documents("values.yaml")
    return document


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_own_schemas_know_every_field(version: str) -> None:
    for document in [pod("cpu"), pod("gpu"), *documents("cluster.yaml")]:
        kubernetes_validate.validate(document, version, strict=True)


def test_the_schemas_refuse_a_misspelt_field() -> None:
    wrong = pod("gpu")
    wrong["spec"]["nodeSelektor"] = wrong["spec"].pop("nodeSelector")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("name", sorted(PODS))
def test_a_pod_runs_its_image_unprivileged_and_stops_gracefully(name: str) -> None:
    spec = pod(name)["spec"]
    (container,) = spec["containers"]
    assert container["name"] == "base", "Airflow puts the task into the container of this name"
    assert container["image"].endswith(f"/staticjob-{name}:{values()['airflowVersion']}")
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert spec["terminationGracePeriodSeconds"] >= 60
    assert container["lifecycle"]["preStop"]["exec"]["command"] == ["/usr/local/bin/stop_steps.py"]
    assert "stop_steps.py" in (KUBERNETES.parent / "Dockerfile").read_text()
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in spec["volumes"]}
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    assert env["STATICJOB_CACHE"] == mounts["models"]
    assert env["STATICJOB_SCRATCH"] == mounts["scratch"]
    assert env["STATICJOB_JOBS"] == mounts["jobs"]
    assert mounts["config"] == f"{values()['airflowHome']}/airflow.cfg"
    assert f"AIRFLOW_HOME={values()['airflowHome']} " in (KUBERNETES.parent / "Dockerfile").read_text()


def test_the_pod_of_a_chunk_has_one_gpu_a_node_that_has_one_and_shared_memory() -> None:
    spec = pod("gpu")["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert spec["nodeSelector"]
    memory = next(v for v in spec["volumes"] if v["name"] == "shared-memory")
    assert memory["emptyDir"]["medium"] == "Memory"
    assert {m["name"]: m["mountPath"] for m in container["volumeMounts"]}["shared-memory"] == "/dev/shm"
    assert "nvidia.com/gpu" not in str(pod("cpu"))


def test_the_queue_of_a_task_decides_its_pod() -> None:
    chart = values()
    scope: dict[str, Any] = {}
    exec(chart["airflowLocalSettings"], scope)
    chunk = SimpleNamespace(queue=AirflowConfig().queue, executor_config=None)
    other = SimpleNamespace(queue=chart["config"]["operators"]["default_queue"], executor_config=None)
    for instance in (chunk, other):
        scope["task_instance_mutation_hook"](instance)
    assert other.executor_config is None
    templates = [
        chunk.executor_config["pod_template_file"],
        chart["config"]["kubernetes_executor"]["pod_template_file"],
    ]
    assert templates == ["/opt/project/pods/gpu.yaml", "/opt/project/pods/cpu.yaml"]
    assert "COPY docker/kubernetes/pods /opt/project/pods" in (KUBERNETES.parent / "Dockerfile").read_text()


def test_airflow_knows_every_setting_of_the_chart() -> None:
    # The Kubernetes provider, which knows the pods' own, is only in the image.
    sections = {name: s for name, s in values()["config"].items() if name != "kubernetes_executor"}
    known = conf.configuration_description
    unknown = {(s, key) for s, keys in sections.items() for key in keys if key not in known[s]["options"]}
    assert unknown == set()
