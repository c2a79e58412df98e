"""Which objects beneath the input URI are data, in which order, and what their outputs are called."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import PurePosixPath
from typing import Literal

from staticjob import storage
from staticjob.config.job import InputConfig
from staticjob.errors import ConfigError, DataError, MissingInputError
from staticjob.layout import join
from staticjob.records.prepared import InputFile
from staticjob.storage.pinned import PinnedObject

Format = Literal["parquet", "jsonl", "csv"]
Compression = Literal["gzip", "zstd"]

FORMATS: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
}
COMPRESSIONS: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd"}
OUTPUT_SUFFIX = ".parquet"
# Half characters stand for bytes that are not UTF-8; control characters break a line of a log.
UNSPEAKABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def discover(config: InputConfig, output: str | None = None) -> tuple[InputFile, ...]:
    """The data objects of the input, pinned, in natural order (2 before 10).

    output: URI of the job's output; refused where it would be read as input, hold or overwrite it.
    Raises MissingInputError for an input without data, DataError for an empty (0 bytes) data
    object, a suffix that names no format, or a path that cannot be mirrored; ConfigError where input
    and output overlap.
    """
    found = storage.list_objects(config.uri)
    single = [item.uri for item in found] == [config.uri] and not config.uri.endswith("/")
    paths = {_relative(item.uri, config.uri, single): item for item in found}
    data = {path: item for path, item in paths.items() if single or not is_hidden(path)}
    folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    data = {path: item for path, item in data.items() if item.size or path not in folders}
    if not data:
        what = f"{len(found)} objects, all hidden or markers" if found else "it is empty or does not exist"
        raise MissingInputError(
            config.uri,
            f"input.uri {config.uri}: no data there ({what}); expected Parquet, JSON Lines or CSV objects",
        )
    ordered = sorted(data, key=natural_key)
    for path in ordered:
        _check(path, data[path])
    outputs = output_names(ordered)
    files = tuple(
        _input_file(index, path, data[path], outputs[path], config.format)
        for index, path in enumerate(ordered)
    )
    if output is not None:
        _refuse_overlap(config.uri, output, files, single)
    return files


def is_hidden(path: str) -> bool:
    """True for what writers leave beside data: `_SUCCESS`, `.crc`, `_temporary/…`, `x_$folder$`, folders.

    As in Spark, `_name=value` is a partition folder, not a hidden one.
    """
    if not path or path.endswith(("/", "_$folder$")):
        return True
    return any(
        (name.startswith(".") and name.strip(".")) or (name.startswith("_") and "=" not in name)
        for name in path.split("/")
    )


def natural_key(path: str) -> tuple[object, ...]:
    """Sorts names with numbers by value, folder by folder; equal values (01, 1) by spelling."""
    folders = [
        [int(piece) if i % 2 else piece for i, piece in enumerate(re.split(r"([0-9]+)", name))]
        for name in path.split("/")
    ]
    return folders, path


def output_names(paths: Sequence[str]) -> dict[str, str]:
    """Output path of each input path: its suffix replaced by .parquet, or kept where two would collide."""
    names = {path: _stem(path) + OUTPUT_SUFFIX for path in paths}
    while True:
        uses = Counter(names.values())
        # Full names cannot collide with each other, so each round settles at least one path.
        colliding = [p for p, name in names.items() if uses[name] > 1 and name != p + OUTPUT_SUFFIX]
        if not colliding:
            return names
        names.update({path: path + OUTPUT_SUFFIX for path in colliding})


def split_suffix(path: str) -> tuple[str, str, Compression | None]:
    """Stem, format suffix (may be '') and compression of a path: ('a/p0', '.jsonl', 'gzip')."""
    stem, suffix = _cut_suffix(path)
    compression = COMPRESSIONS.get(suffix.lower())
    if compression:
        stem, suffix = _cut_suffix(stem)
    return stem, suffix, compression


def _cut_suffix(path: str) -> tuple[str, str]:
    suffix = PurePosixPath(path).suffix
    return path.removesuffix(suffix), suffix


def _stem(path: str) -> str:
    stem, suffix, _ = split_suffix(path)
    return stem if suffix.lower() in FORMATS else stem + suffix


def _relative(uri: str, base: str, single: bool) -> str:
    if single:
        return uri.rsplit("/", 1)[-1]
    return uri.removeprefix(base.rstrip("/")).removeprefix("/")


def _check(path: str, item: PinnedObject) -> None:
    if not item.size:
        raise DataError(f"{item.uri}: a data object of 0 bytes; write it again or delete it")
    if UNSPEAKABLE.search(item.uri):
        raise DataError(f"{item.uri!r}: a name that is not UTF-8, or has control characters; rename it")
    if not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise DataError(f"{item.uri}: a path with empty or dotted names cannot be mirrored; rename it")


def _input_file(
    index: int, path: str, item: PinnedObject, output: str, wanted: Literal["auto"] | Format
) -> InputFile:
    _, suffix, compression = split_suffix(path)
    format_ = FORMATS.get(suffix.lower()) if wanted == "auto" else wanted
    if format_ is None:
        raise DataError(
            f"{item.uri}: the suffix {suffix!r} names no format; set input.format, or move what is not data "
            f"(known: {', '.join(FORMATS)}, also with .gz or .zst)"
        )
    if format_ == "parquet" and compression:
        raise DataError(f"{item.uri}: Parquet is compressed inside, not outside; unpack it first")
    return InputFile(
        index=index, path=path, object=item, format=format_, compression=compression, output=output
    )


def _refuse_overlap(source: str, output: str, files: Collection[InputFile], single: bool) -> None:
    inputs = {_canonical(file.object.uri) for file in files}
    folder, target = _canonical(source) + "/", _canonical(output) + "/"
    if not single and target.startswith(folder):
        raise ConfigError(
            f"output.uri {output} lies in input.uri {source}: the next run would read results as input; "
            "choose an output outside"
        )
    # A single file may lie beside its result, where the suffixes tell them apart.
    home = folder if not single else folder.rstrip("/").rpartition("/")[0] + "/"
    if home.startswith(target) and home != target:
        raise ConfigError(
            f"input.uri {source} lies in output.uri {output}: who reads the output would take the input for "
            "results; choose an output beside it"
        )
    for file in files:
        if _canonical(join(output, file.output)) in inputs:
            raise ConfigError(
                f"output.uri {output}: {file.output} would overwrite an input object; choose another output"
            )


def _canonical(uri: str) -> str:
    return uri.rstrip("/") if storage.is_s3(uri) else os.path.realpath(uri.removeprefix("file://"))
