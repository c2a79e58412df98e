"""Holds no DAG: shows job files that are no valid job as an Airflow import error of this file."""

from staticjob_airflow.jobs import jobs_folder, load_folder

from staticjob.errors import ConfigError

errors = load_folder(jobs_folder(__file__)).errors
if errors:
    raise ConfigError("\n".join(errors))
