"""What pydantic says about a job file, in one line a person can act on."""

from __future__ import annotations

import re
from types import UnionType
from typing import Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from staticjob.nearest import meant, nearest


def _sections(field: FieldInfo) -> list[type[BaseModel]]:
    """The sections a field may hold: none for a plain setting."""
    nested = [a for a in (field.annotation, *get_args(field.annotation)) if isinstance(a, type)]
    return [a for a in nested if issubclass(a, BaseModel)]


def _field_names(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """Valid keys of the section that `path` points into."""
    for step in path:
        field = model.model_fields.get(str(step))
        sections = _sections(field) if field else []
        if not sections:
            return []
        model = sections[0]
    return list(model.model_fields)


def _key_of(model: type[BaseModel], path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The path without what pydantic adds to name the alternatives of a setting that has some."""
    for depth, step in enumerate(path):
        field = model.model_fields.get(str(step))
        if field is None:
            return path
        sections = _sections(field)
        if not sections:
            return path[: depth + 1] if get_origin(field.annotation) in (Union, UnionType) else path
        model = sections[0]
    return path


# What pydantic expected, by the type of its error; {gt} and the like are filled in.
_EXPECTED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "string_pattern_mismatch": "text that matches {pattern}",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a section",
    "date_parsing": "a date like 2026-01-31",
    "date_from_datetime_parsing": "a date like 2026-01-31",
    "literal_error": "{expected}",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
}
_SHOWN_VALUE = 60


def _found(value: object) -> str:
    """A setting's value as a message shows it, where it is one word and not a section or a list."""
    shown = repr(value)
    return f" {shown}" if isinstance(value, str | int | float) and len(shown) <= _SHOWN_VALUE else ""


def explain(error: ValidationError, where: str, model: type[BaseModel]) -> str:
    """All problems of a job in one line: key, value, what is expected and the nearest valid key or word."""
    problems: list[str] = []
    stated: list[str] = []
    expected: dict[str, list[str]] = {}
    hints: dict[str, str] = {}
    for item in error.errors():
        path = _key_of(model, tuple(item["loc"]))
        key = ".".join(str(p) for p in path)
        if item["type"] == "extra_forbidden":
            problems.append(f"unknown key {key!r}{nearest(str(path[-1]), _field_names(model, path[:-1]))}")
        elif item["type"] == "missing":
            problems.append(f"{key} is required")
        elif item["type"] in _EXPECTED:
            shown = f"{key}{_found(item['input'])}"
            context = item.get("ctx", {})
            expected.setdefault(shown, []).append(_EXPECTED[item["type"]].format(**context))
            words = re.findall("'([^']*)'", context.get("expected", ""))  # those of a literal
            hints[shown] = hints.get(shown) or meant(str(item["input"]), words)
        else:
            message = item["msg"].removeprefix("Value error, ")
            stated.append(f"{key}: {message}" if key else message)
    problems += [f"{key}: expected {' or '.join(words)}{hints[key]}" for key, words in expected.items()]
    return f"{where}: " + "; ".join([*problems, *stated])
