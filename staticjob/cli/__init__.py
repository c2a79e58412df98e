"""The command line: every step of a job, and the questions one asks about it.

Kept free of heavy imports: `--help` answers at once, each command loads what it needs.
"""

from staticjob.cli.asking import report, status, verify
from staticjob.cli.group import main
from staticjob.cli.models import import_gguf_
from staticjob.cli.planning import plan, prepare_, tokenize, validate
from staticjob.cli.running import chunk, finish, merge, run
from staticjob.cli.sweeping import sweep, tabulate

__all__ = ["main"]

# In the order of the work, which is the order of `--help`.
STEPS = (validate, prepare_, tokenize, plan, chunk, merge, finish, run)
for _command in (*STEPS, sweep, tabulate, status, verify, report, import_gguf_):
    main.add_command(_command)
