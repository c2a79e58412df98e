"""Names that the DAGs give and the run page looks for."""

TAG = "staticjob"
PREPARE = "prepare"
CHUNK = "chunk"
FINISH = "finish"
FINISH_POINT = "finish_point"
# What `prepare` pushes when it fails: why.
FAILURE = "failure"
# What `prepare` pushes when it skips all that follows: the input's URI.
MISSING = "missing_input"
# Where the API server mounts the page, beneath Airflow's own address.
MOUNT = "staticjob"
