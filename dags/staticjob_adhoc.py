"""An Airflow DAG that takes a whole job through a form."""

from staticjob_airflow.dag import adhoc_dag

dag = adhoc_dag()
