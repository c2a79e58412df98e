"""The few calls to Airflow's REST API that the demo and the tests make."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import httpx

from staticjob.errors import InfrastructureError

# SQLite answers "locked" while another component writes; what may be sent twice is sent again.
TRIES = 4
PAUSE_SECONDS = 1.0
HEALTHY_PARTS = ("metadatabase", "scheduler", "dag_processor", "triggerer")


class AirflowApi:
    """A client of `/api/v2`; it logs in at its first call."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self._login = {"username": user, "password": password}
        self._http = httpx.Client(base_url=url, timeout=120, trust_env=False)

    def unhealthy(self) -> list[str]:
        """Names of the components that are not healthy."""
        try:
            response = self._http.get("/api/v2/monitor/health")
            report = response.raise_for_status().json()
        except httpx.HTTPError:
            return ["api_server"]
        return [part for part in HEALTHY_PARTS if (report.get(part) or {}).get("status") != "healthy"]

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """GET an object beneath /api/v2."""
        return self._call("GET", path, params=query)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST an object beneath /api/v2."""
        return self._call("POST", path, json=body)

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """PATCH an object beneath /api/v2."""
        return self._call("PATCH", path, json=body)

    def find(self, path: str) -> dict[str, Any] | None:
        """GET an object, or None where there is none."""
        response = self._send("GET", path)
        return None if response.status_code == httpx.codes.NOT_FOUND else _body(response)

    def set_pool(self, name: str, slots: int) -> None:
        """Make the pool, or set its number of slots."""
        if self.find(f"/pools/{name}") is None:
            self.post("/pools", {"name": name, "slots": slots, "include_deferred": False})
        else:
            self.patch(f"/pools/{name}", {"pool": name, "slots": slots, "include_deferred": False})

    def log(
        self, dag_id: str, run_id: str, task: Mapping[str, Any], try_number: int | None = None
    ) -> list[str]:
        """Lines of a task instance's log. task: the API's object; try_number: None is the last."""
        number = try_number or task["try_number"]
        page = self.get(
            f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task['task_id']}/logs/{number}",
            map_index=task["map_index"],
            full_content=True,
        )
        return [text for line in page["content"] for text in _log_lines(line)]

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        return _body(self._send(method, path, **options))

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            if "Authorization" not in self._http.headers:
                token = _body(self._http.post("/auth/token", json=self._login))["access_token"]
                self._http.headers["Authorization"] = f"Bearer {token}"
            for _ in range(TRIES - 1 if method != "POST" else 0):
                response = self._http.request(method, f"/api/v2{path}", **options)
                if not response.is_server_error:
                    return response
                time.sleep(PAUSE_SECONDS)
            return self._http.request(method, f"/api/v2{path}", **options)
        except httpx.HTTPError as error:
            raise InfrastructureError(f"Airflow API {method} {path}: {error}") from None


def _log_lines(line: str | Mapping[str, Any]) -> list[str]:
    """A line of a task log as text, and under it the exceptions that it reports."""
    if isinstance(line, str):
        return [line]
    errors = line.get("error_detail") or []
    return [str(line.get("event", "")), *(f"{e['exc_type']}: {e['exc_value']}" for e in errors)]


def _body(response: httpx.Response) -> dict[str, Any]:
    if response.is_error:
        raise InfrastructureError(
            f"Airflow API {response.request.method} {response.request.url.path}: "
            f"{response.status_code} {response.text[:500]}"
        )
    body: dict[str, Any] = response.json()
    return body
