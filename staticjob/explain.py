"""What pydantic says about a job file, in one line a person can act on."""

from __future__ import annotations

import difflib
from types import UnionType
from typing import Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo


def nearest(word: str, words: list[str]) -> str:
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; valid: {', '.join(sorted(words))}"


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


def explain(error: ValidationError, where: str, model: type[BaseModel]) -> str:
    """All problems of a job in one line: key, problem and, for unknown keys, the nearest valid one."""
    problems: list[str] = []
    wrong: dict[str, str] = {}
    for item in error.errors():
        path = _key_of(model, tuple(item["loc"]))
        key = ".".join(str(p) for p in path)
        if item["type"] == "extra_forbidden":
            problems.append(f"unknown key {key!r}{nearest(str(path[-1]), _field_names(model, path[:-1]))}")
        elif item["type"] == "missing":
            problems.append(f"{key} is required")
        else:
            message = item["msg"].removeprefix("Value error, ")
            alternative = message.removeprefix("Input should be ")
            wrong[key] = f"{wrong[key]} or {alternative}" if key in wrong else message
    problems += [f"{key}: {message}" if key else message for key, message in wrong.items()]
    return f"{where}: " + "; ".join(problems)
