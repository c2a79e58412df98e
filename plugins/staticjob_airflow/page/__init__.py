"""The run page: what a job's progress objects say, shown inside Airflow to those who may read the run."""
