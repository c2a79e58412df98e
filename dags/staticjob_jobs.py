"""One Airflow DAG for each job file that has an `airflow` block.

The files lie in the folder named by STATICJOB_JOBS, else in `jobs/` beside this folder. What is
wrong with a file is reported by `staticjob_job_errors.py`: an error raised here would hide them all.
"""

from staticjob_airflow.jobs import jobs_folder, load_folder

globals().update(load_folder(jobs_folder(__file__)).dags)
