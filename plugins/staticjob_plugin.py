"""What staticjob adds to Airflow: the run page with its tab and its entry in the navigation, and the note.

Every component of Airflow loads this file, so it imports nothing that the page alone needs.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin
from staticjob_airflow import note
from staticjob_airflow.names import MOUNT


class StaticJobPlugin(AirflowPlugin):
    """Found by Airflow in its plugins folder."""

    name = "staticjob"
    listeners = [note]  # noqa: RUF012  (Airflow's own spelling)
    # Addresses relative to Airflow's, which may lie beneath a prefix.
    external_views = [  # noqa: RUF012
        {
            "name": "Static batch",
            "href": f"{MOUNT}/run?dag_id={{DAG_ID}}&run_id={{RUN_ID}}",
            "destination": "dag_run",
            "url_route": "static-batch",
        },
        {
            "name": "Static batch jobs",
            "href": f"{MOUNT}/",
            "destination": "nav",
            "category": "browse",
            "url_route": "static-batch-jobs",
        },
    ]

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Only the API server asks."""
        from staticjob_airflow.page.app import make_app

        return [{"name": "staticjob", "app": make_app(), "url_prefix": f"/{MOUNT}"}]
