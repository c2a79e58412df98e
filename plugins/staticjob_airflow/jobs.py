"""Turns a folder of job files into DAGs, and names the files that cannot become one."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass
from pathlib import Path

from airflow.sdk import DAG

from staticjob.config.airflow import AirflowConfig
from staticjob.config.job_file import fill_date, read_job_file, validate_job
from staticjob.errors import ConfigError
from staticjob.evaluation.grid import is_sweep, read_grid
from staticjob_airflow.alerts import check_alerts
from staticjob_airflow.dag import ADHOC, job_dag
from staticjob_airflow.sweep import sweep_dag

SOME_DATE = dt.date(2000, 1, 1)


@dataclass(frozen=True)
class JobFolder:
    """dags: by id, which is the job's name. errors: one line for each file that is no valid job."""

    dags: dict[str, DAG]
    errors: tuple[str, ...]


def jobs_folder(dag_file: str) -> Path:
    """The folder named by STATICJOB_JOBS, else `jobs/` beside the folder of the DAG file."""
    return Path(os.environ.get("STATICJOB_JOBS") or Path(dag_file).parents[1] / "jobs").resolve()


def load_folder(folder: Path) -> JobFolder:
    """Read every `*.yaml` and `*.yml` in the folder; files without an `airflow` block are left alone."""
    dags: dict[str, DAG] = {}
    errors: list[str] = []
    if not folder.is_dir():
        errors.append(f"jobs folder {folder}: not found; set STATICJOB_JOBS to the folder of the job files")
    for path in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
        try:
            dag = _load(path)
            if dag is None:
                continue
            if dag.dag_id in dags or dag.dag_id == ADHOC:
                raise ConfigError(f"{path}: name {dag.dag_id!r} is taken by another DAG; choose another name")
        except ConfigError as error:
            errors.append(str(error))
        except Exception as error:  # of a module with alerts, of Airflow itself: it hides no other job
            errors.append(f"{path}: {type(error).__name__}: {error}")
        else:
            dags[dag.dag_id] = dag
    return JobFolder(dags, tuple(errors))


def _load(path: Path) -> DAG | None:
    data = read_job_file(path)
    if data.get("airflow") is None:
        return None
    # Some date: an unknown placeholder shows now, not at run time.
    grid = read_grid(path, SOME_DATE) if is_sweep(data) else None
    job = grid.base if grid else validate_job(data, str(path))
    check_alerts(job.airflow or AirflowConfig(), str(path))
    text = path.read_text(encoding="utf-8")
    if grid:
        return sweep_dag(str(path), grid, text)
    fill_date(job, SOME_DATE, str(path))
    return job_dag(str(path), job, text)
