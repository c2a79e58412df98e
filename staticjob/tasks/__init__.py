"""What a job can compute: one module per task, which `task_module.py` describes, and a line in `roles.py`."""
