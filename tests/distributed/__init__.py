"""Airflow as on many machines: Celery workers, PostgreSQL and a broker, all real, on the loopback."""
