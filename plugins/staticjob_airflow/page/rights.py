"""Who may see what: a mounted app inherits no authentication, so every route asks Airflow itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from airflow.models.dag import DagModel
from fastapi import Depends, Request


@dataclass(frozen=True)
class RunKey:
    """A DAG run that the user of this request may read."""

    dag_id: str
    run_id: str


def readable_run(request: Request, dag_id: str, run_id: str, user: GetUserDep) -> RunKey:
    """The run that the query names; 401 without a login, 403 without the right to read that DAG's runs.

    Ids are query parameters: `scheduler.allowed_run_id_pattern` may allow a slash.
    """
    requires_access_dag("GET", DagAccessEntity.RUN, dag_id)(request, user)
    return RunKey(dag_id, run_id)


def readable_dags(dag_ids: Iterable[str], user: BaseUser) -> list[str]:
    """Those of the DAGs whose runs the user may read."""
    wanted = list(dag_ids)
    teams = DagModel.get_dag_id_to_team_name_mapping(wanted)
    manager = get_auth_manager()
    return [
        dag_id
        for dag_id in wanted
        if manager.is_authorized_dag(
            method="GET",
            access_entity=DagAccessEntity.RUN,
            details=DagDetails(id=dag_id, team_name=teams.get(dag_id)),
            user=user,
        )
    ]


ReadableRun = Annotated[RunKey, Depends(readable_run)]
LoggedIn = Annotated[BaseUser, Depends(get_user)]
