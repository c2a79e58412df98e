"""A job file read into a `JobConfig`: YAML, `--set` overrides, `{date}` filled in, and errors in one line."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from staticjob import storage
from staticjob.config.explain import explain
from staticjob.config.job import JobConfig
from staticjob.errors import ConfigError
from staticjob.layout import history_uri
from staticjob.uris import absolute_uri

PLACEHOLDER = re.compile(r"\{(\w+)\}")


def validate_job(data: Any, where: str) -> JobConfig:
    """Validate a mapping; raise ConfigError naming `where` and every bad key."""
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: expected a mapping of job settings, found {type(data).__name__}")
    try:
        return JobConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, where, JobConfig)) from None


def fill_date(config: JobConfig, date: dt.date | None, where: str) -> JobConfig:
    """Replace `{date}` in the input and output URIs; any other placeholder is refused.

    An output in a relative folder is made absolute: other commands, from other folders, look there too.
    The history keeps to the undated part of the output, so every date's run finds it.
    """

    def fill(uri: str, key: str) -> str:
        for name in PLACEHOLDER.findall(uri):
            if name != "date":
                raise ConfigError(f"{where}: {key}: unknown placeholder {{{name}}}; only {{date}} is known")
            if date is None:
                raise ConfigError(f"{where}: {key} contains {{date}}; give --date YYYY-MM-DD")
        return uri.replace("{date}", date.isoformat()) if date else uri

    source = config.input.model_copy(update={"uri": fill(config.input.uri, "input.uri")})
    history = config.output.history_uri or history_uri(absolute_uri(config.output.uri), config.name)
    dated = absolute_uri(fill(config.output.uri, "output.uri"))
    output = config.output.model_copy(update={"uri": dated, "history_uri": history})
    return config.model_copy(update={"input": source, "output": output})


def apply_override(data: dict[str, Any], assignment: str) -> None:
    """Apply one `--set key.sub=value` in place; the value is read as YAML.

    Raises ConfigError when the assignment has no `=` or steps into something that is not a mapping.
    """
    key, equals, value = assignment.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {assignment!r}: expected key=value, e.g. limits.max_length=256")
    *parents, last = key.split(".")
    node = data
    for name in parents:
        child = node.setdefault(name, {})
        if not isinstance(child, dict):
            raise ConfigError(f"--set {key}: {name!r} is a value, not a section")
        node = child
    node[last] = read_value(value)


def read_value(text: str) -> Any:
    """What YAML reads in `text`; the text itself where it is no YAML: its field says what it expects."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):  # ValueError: a date that no calendar has
        return text


def read_job_file(path: str | Path) -> dict[str, Any]:
    """Read a job file, local or `s3://`, without validating it; ConfigError when missing or not YAML."""
    if str(path).startswith("s3://"):
        return _parse_job(storage.read(str(path)).decode("utf-8", "replace"), path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"job file {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"job file {path}: not UTF-8 text") from None
    return _parse_job(text, path)


class _UniqueKeys(yaml.SafeLoader):
    """YAML whose mappings name each key once: of two sections of one name, the first would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        for at, (key, _) in enumerate(node.value):
            if key.value in names[:at]:
                problem = f"the key {key.value!r} stands there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        return super().construct_mapping(node, deep)


def _parse_job(text: str, path: str | Path) -> dict[str, Any]:
    try:
        data = yaml.load(text, _UniqueKeys)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f" at line {mark.line + 1}" if mark else ""
        raise ConfigError(
            f"job file {path}: not valid YAML{at}: {getattr(error, 'problem', error)}"
        ) from None
    except ValueError as error:  # a date that no calendar has
        raise ConfigError(f"job file {path}: not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"job file {path}: expected a mapping of job settings")
    return data


def load_job(path: str | Path, *, overrides: tuple[str, ...] = (), date: dt.date | None = None) -> JobConfig:
    """Read, override, validate and date a job file. Raises ConfigError in one line."""
    return fill_date(_load_undated(path, overrides), date, str(path))


def job_with_defaults(
    path: str | Path, *, overrides: tuple[str, ...] = (), date: dt.date | None = None
) -> JobConfig:
    """The job file with its defaults for people to read; dated only when a date is given."""
    config = _load_undated(path, overrides)
    dated = fill_date(config, date or dt.date.min, str(path))  # refuses other placeholders, date or not
    return dated if date else config


def _load_undated(path: str | Path, overrides: tuple[str, ...]) -> JobConfig:
    data = read_job_file(path)
    for assignment in overrides:
        apply_override(data, assignment)
    return validate_job(data, str(path))
