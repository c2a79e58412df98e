"""Rows of JSON Lines: one object a line, read as a stream, each value kept as the bytes that spell it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from staticjob.dataset.streams import open_file
from staticjob.dataset.text import REPLACEMENT, SURROGATES, not_utf8
from staticjob.errors import DataError
from staticjob.records.prepared import InputFile

BLOCK_BYTES = 1024 * 1024
BATCH_BYTES = 32 * 1024 * 1024
LONGEST_LINE = 1024 * 1024 * 1024
BOM = b"\xef\xbb\xbf"

Row = dict[str, msgspec.Raw]
_decoder = msgspec.json.Decoder(Row)
# Steps over escaped backslashes and whole pairs, so that only a half character matches bare.
_HALF = re.compile(
    rb"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


@dataclass
class Lines:
    """Consecutive rows: parsed objects, None for a row in error, and why by row index in the file."""

    first_row: int
    rows: list[Row | None] = field(default_factory=list)
    errors: dict[int, str] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)  # line of each row, from 1
    bytes: int = 0

    def line_of(self, row: int) -> int:
        """The line, from 1, of the row with this index in the file."""
        return self.numbers[row - self.first_row]


def read_lines(file: InputFile, batch_rows: int) -> Iterator[Lines]:
    """Batches of at most `batch_rows` rows and about BATCH_BYTES.

    Lines end at \\n or \\r\\n; a BOM before the first and lines without content are passed over.
    Raises DataError for a line of LONGEST_LINE, since that is no JSON Lines file.
    """
    batch = Lines(0)
    stream = io.BufferedReader(open_file(file), BLOCK_BYTES)
    for number, line in enumerate(iter(lambda: stream.readline(LONGEST_LINE), b""), start=1):
        if len(line) == LONGEST_LINE:
            raise DataError(
                f"{file.object.uri}: line {number} is {LONGEST_LINE:,} bytes long; is it JSON Lines?"
            )
        text = line.removeprefix(BOM).strip() if number == 1 else line.strip()
        if not text:
            continue
        try:
            batch.rows.append(parse_line(text))
        except ValueError as error:
            batch.errors[batch.first_row + len(batch.rows)] = str(error)
            batch.rows.append(None)
        batch.numbers.append(number)
        batch.bytes += len(text)
        if len(batch.rows) >= batch_rows or batch.bytes >= BATCH_BYTES:
            yield batch
            batch = Lines(batch.first_row + len(batch.rows))
    if batch.rows:
        yield batch


def parse_line(line: bytes) -> Row:
    """The object a line holds, its values unparsed; half characters in it become U+FFFD.

    Raises ValueError saying why the line is not one JSON object in UTF-8.
    """
    try:
        if not line.isascii():
            line.decode()
        return _decoder.decode(line)
    except UnicodeDecodeError as error:
        raise ValueError(not_utf8(error)) from None
    except msgspec.ValidationError as error:
        raise ValueError(f"not a JSON object ({error})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.DecodeError as error:
        reason = str(error)
    try:
        return _parse_lenient(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise ValueError(reason if reason[1:2].isupper() else reason[0].lower() + reason[1:]) from None


def _parse_lenient(line: bytes) -> Row:
    """Also takes what JSON forbids but common writers emit: half characters, NaN and Infinity."""
    mended = _HALF.sub(lambda match: match[1] or rb"\ufffd", line)
    if mended != line:
        return parse_line(mended)
    values = json.loads(line)
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    return {key: msgspec.Raw(_spell(value)) for key, value in values.items()}


def _spell(value: object) -> bytes:
    return SURROGATES.sub(REPLACEMENT, json.dumps(value, ensure_ascii=False)).encode()
