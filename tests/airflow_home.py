"""Makes Airflow importable in a test process: a home of its own, the plugins found and on the path.

Imported before anything of Airflow, which reads its settings at import.
"""

import os
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]

os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="airflow-home-"))
os.environ.setdefault("AIRFLOW__CORE__LOAD_EXAMPLES", "False")
os.environ.setdefault("AIRFLOW__CORE__PLUGINS_FOLDER", str(REPOSITORY / "plugins"))
if str(REPOSITORY / "plugins") not in sys.path:
    sys.path.insert(0, str(REPOSITORY / "plugins"))
