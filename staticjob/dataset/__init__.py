"""Rows in: which objects are input, how they are cut into splits, and their rows in order.

Formats and what their values become:

- Parquet: the file's own types. Text may be string, large_string, dictionary or binary.
- JSON Lines: one object a line. Strings, integers, floats and booleans become columns of that
  type; objects, arrays and columns of mixed type become JSON text, and so do columns with an
  integer beyond 64 bits, so that no digit is lost. A missing key is null. A line that is not
  UTF-8 or not JSON is a row error; an empty line is no row.
- CSV: a header, then rows; every column is text, since the format has no types. An unquoted
  empty field is null, a quoted one the empty string; NA, None, null and nan are ordinary text.
  A row with other fields than the header is a row error; a quote left open refuses the file.

JSON Lines and CSV may be compressed with gzip or Zstandard, in one member or many.
"""

from staticjob.dataset.batches import RowBatch, check_kept_keys, read_kept, read_slice
from staticjob.dataset.discover import discover
from staticjob.dataset.schema import decode_schema, encode_schema, kept_schema, unify
from staticjob.dataset.splits import plan_splits
from staticjob.dataset.text import structured_values, text_values

__all__ = [
    "RowBatch",
    "check_kept_keys",
    "decode_schema",
    "discover",
    "encode_schema",
    "kept_schema",
    "plan_splits",
    "read_kept",
    "read_slice",
    "structured_values",
    "text_values",
    "unify",
]
