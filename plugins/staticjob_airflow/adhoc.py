"""A whole job as a form: one typed field per key of `JobConfig`, made from the model itself.

A new key of the job file appears in the form with its help text and its checks. `JobConfig`
validates the job that comes out, so form and file accept the same jobs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from airflow.sdk import Param
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from staticjob.config.job import JobConfig
from staticjob.config.job_file import read_value

# Keys of the job file that a form cannot mean: how the DAG itself is scheduled.
LEFT_OUT = frozenset({"airflow"})
HELP = {
    "name": "Name of the job, in reports and manifests.",
    "task": "What is computed for each row.",
}
FORM_TYPES = ("string", "boolean", "number", "integer", "object")
# A key that takes this or that (auto or a number, all or a list) is a text field, read as YAML; the
# API may send the value itself.
UNION_TYPES = ["string", "number", "boolean", "array", "null"]
CHECKS = ("enum", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "maxLength")


@dataclass(frozen=True)
class _Leaf:
    """A key of the form. `optional`: of a section that a job may lack, with what the job file says of it."""

    key: str
    field: FieldInfo
    optional: str | None


def _leaves(model: type[BaseModel], prefix: str = "", optional: str | None = None) -> Iterator[_Leaf]:
    """Every leaf, in the order of the job file."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        if key in LEFT_OUT:
            continue
        section = _section(field.annotation)
        if section is None:
            yield _Leaf(key, field, optional)
        else:
            lacking = field.default is None
            yield from _leaves(section, f"{key}.", field.description if lacking else optional)


def _section(annotation: Any) -> type[BaseModel] | None:
    """The model of a section, or of a section or nothing; None for a leaf."""
    kinds = [kind for kind in (get_args(annotation) or (annotation,)) if kind is not type(None)]
    one = kinds[0] if len(kinds) == 1 else None
    return one if isinstance(one, type) and issubclass(one, BaseModel) else None


def _leaf_schemas(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """JSON schema of every leaf by dotted key, references resolved."""
    whole = model.model_json_schema()

    def walk(node: dict[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, schema in node["properties"].items():
            reference = next((s["$ref"] for s in schema.get("anyOf", [schema]) if "$ref" in s), None)
            if reference:
                yield from walk(whole["$defs"][reference.rsplit("/", 1)[1]], f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", schema

    return dict(walk(whole, ""))


def _param(leaf: _Leaf, schema: dict[str, Any]) -> Param:
    """One field of the form, with the checks of the model's schema."""
    field = leaf.field
    section, dot, _ = leaf.key.partition(".")
    options: dict[str, Any] = {
        "title": leaf.key,
        "description": field.description or HELP.get(leaf.key, ""),
        "section": section.capitalize() if dot else "Job",
        "type": schema["type"] if schema.get("type") in FORM_TYPES else UNION_TYPES,
    }
    options |= {check: schema[check] for check in CHECKS if check in schema}
    if "const" in schema:
        options["enum"] = [schema["const"]]
    if leaf.optional is not None:
        return _left_empty(leaf, options)
    if field.is_required():
        return Param({}, **options) if options["type"] == "object" else Param(**options, minLength=1)
    return Param(list(field.default) if isinstance(field.default, tuple) else field.default, **options)


def _left_empty(leaf: _Leaf, options: dict[str, Any]) -> Param:
    """A field that says its default and does not hold it: filled, it would make a section."""
    default = (
        f"({leaf.optional})" if leaf.field.is_required() else f"(default: {json.dumps(leaf.field.default)})"
    )
    options["description"] = f"{options['description']} {default}".strip()
    if options["type"] != UNION_TYPES:
        options["type"] = [options["type"], "null"]
    return Param(None, **options)


def _is_text(schema: dict[str, Any]) -> bool:
    """Whether the key takes free text, which must not be read as YAML: a revision may be all digits."""
    return any(s.get("type") == "string" and "const" not in s for s in schema.get("anyOf", [schema]))


def form() -> dict[str, Param]:
    """The form's fields by dotted key of the job file."""
    schemas = _leaf_schemas(JobConfig)
    return {leaf.key: _param(leaf, schemas[leaf.key]) for leaf in _leaves(JobConfig)}


def job_from_form(params: Mapping[str, Any]) -> dict[str, Any]:
    """The job file's mapping from a filled form; fields left empty keep their defaults."""
    schemas = _leaf_schemas(JobConfig)
    job: dict[str, Any] = {}
    for key in (leaf.key for leaf in _leaves(JobConfig)):
        value = params.get(key)
        if value is None or value == "":
            continue
        if isinstance(value, str) and not _is_text(schemas[key]):
            value = read_value(value)
        *parents, last = key.split(".")
        section = job
        for name in parents:
            section = section.setdefault(name, {})
        section[last] = value
    return job
