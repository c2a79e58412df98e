"""Jobs under a real scheduler: one Airflow, whose runs are all triggered before the first test."""
