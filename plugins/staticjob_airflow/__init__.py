"""Airflow operators that run the steps of a static inference job in fresh interpreters."""
