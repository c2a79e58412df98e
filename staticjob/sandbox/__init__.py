"""Real local parts for the demo and the tests: an S3 store, Airflow and a corpus."""
