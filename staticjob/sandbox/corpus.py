"""The demo data set: every docstring of the installed Python's standard library.

Read through `ast`, so nothing is imported or run. About 6,300 rows of 3 to 1,600 tokens:
arrival order in batches of 32 wastes five slots in six, which is what the demo shows.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import random
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from staticjob import storage
from staticjob.errors import ConfigError
from staticjob.layout import join

# Tests and installed packages, and the parts that Debian packages apart from the standard library:
# the corpus is then of like size on every machine.
SKIPPED = frozenset(
    {"test", "tests", "site-packages", "dist-packages", "_bundled"}
    | {"distutils", "idlelib", "lib2to3", "tkinter", "turtledemo"}
)
FILES = 6
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class DocRow:
    """One docstring. `id` is a 63-bit hash of where it stands: most ids exceed 2^53."""

    id: int
    kind: str
    name: str
    module: str
    text: str


def _identity(module: str, line: int) -> int:
    digest = hashlib.blake2b(f"{module}:{line}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _documented(
    node: ast.Module | Definition, prefix: str, in_class: bool
) -> Iterator[tuple[str, str, int, str]]:
    """(kind, qualified name, line, docstring) of everything defined beneath `node`."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Definition):
            continue
        name = f"{prefix}.{child.name}" if prefix else child.name
        is_class = isinstance(child, ast.ClassDef)
        kind = "class" if is_class else "method" if in_class else "function"
        text = ast.get_docstring(child)
        if text:
            yield kind, name, child.lineno, text
        yield from _documented(child, name, is_class)


@cache
def stdlib_rows() -> tuple[DocRow, ...]:
    """All docstrings, in the order of modules and lines; parsed once (some seconds)."""
    root = Path(sysconfig.get_path("stdlib"))
    rows = []
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED & set(relative.parts):
            continue
        module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in old modules are not ours to report
                tree = ast.parse(path.read_bytes(), filename=str(path))
        except (SyntaxError, OSError):
            continue  # templates and platform files that this interpreter cannot parse
        text = ast.get_docstring(tree)
        if text:
            rows.append(DocRow(_identity(module, 0), "module", module, module, text))
        rows.extend(
            DocRow(_identity(module, line), kind, name, module, text)
            for kind, name, line, text in _documented(tree, "", False)
        )
    return tuple(rows)


def sample_rows(rows: int | None, seed: int) -> list[DocRow]:
    """Shuffled docstrings, at most `rows` of them (None: all); the same for the same seed."""
    if rows is not None and rows < 0:
        raise ConfigError(f"{rows} rows were asked for; give 0 or more")
    found = list(stdlib_rows())
    random.Random(seed).shuffle(found)
    return found[:rows]


def _jsonl_gz(rows: Sequence[DocRow]) -> bytes:
    lines = "".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)
    return gzip.compress(lines.encode("utf-8", "replace"), mtime=0)


def _parquet(rows: Sequence[DocRow]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(DocRow.__dataclass_fields__)
    types = [pa.int64(), *[pa.string()] * (len(names) - 1)]
    schema = pa.schema(list(zip(names, types, strict=True)))
    table = pa.Table.from_pylist([asdict(row) for row in rows], schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=1000)
    return bytes(sink.getvalue())


def write_corpus(uri: str, rows: int | None = None, seed: int = 0) -> list[DocRow]:
    """Write the sample beneath `uri` as Parquet and JSON Lines gz files by turns.

    Files have unequal sizes. The same arguments write the same bytes, so a second demo run
    finds unchanged objects; returns the rows in the order of the files.
    """
    sample = sample_rows(rows, seed)
    total = FILES * (FILES + 1) // 2
    start = 0
    for index in range(FILES):
        stop = len(sample) if index == FILES - 1 else start + len(sample) * (index + 1) // total
        encode, suffix = (_parquet, "parquet") if index % 2 == 0 else (_jsonl_gz, "jsonl.gz")
        storage.put(join(uri, f"docstrings-{index}.{suffix}"), encode(sample[start:stop]))
        start = stop
    return sample
