"""A whole job as a form: one typed field per key of `JobConfig`, made from the model itself.

A new key of the job file appears in the form with its help text and its checks. `JobConfig`
validates the job that comes out, so form and file accept the same jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from airflow.sdk import Param
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from staticjob.config import JobConfig

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
CHECKS = ("enum", "pattern", "minimum", "maximum", "exclusiveMinimum", "maxLength")


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """(dotted key, field) of every leaf, in the order of the job file."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{name}"
        if key in LEFT_OUT:
            continue
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _fields(field.annotation, f"{key}.")
        else:
            yield key, field


def _leaf_schemas(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """JSON schema of every leaf by dotted key, references resolved."""
    whole = model.model_json_schema()

    def walk(node: dict[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, schema in node["properties"].items():
            reference = schema.get("$ref")
            if reference:
                yield from walk(whole["$defs"][reference.rsplit("/", 1)[1]], f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", schema

    return dict(walk(whole, ""))


def _param(key: str, field: FieldInfo, schema: dict[str, Any]) -> Param:
    """One field of the form, with the checks of the model's schema."""
    section, dot, _ = key.partition(".")
    options: dict[str, Any] = {
        "title": key,
        "description": field.description or HELP.get(key, ""),
        "section": section.capitalize() if dot else "Job",
        "type": schema["type"] if schema.get("type") in FORM_TYPES else UNION_TYPES,
    }
    options |= {check: schema[check] for check in CHECKS if check in schema}
    if "const" in schema:
        options["enum"] = [schema["const"]]
    if field.is_required():
        return Param({}, **options) if options["type"] == "object" else Param(**options, minLength=1)
    return Param(list(field.default) if isinstance(field.default, tuple) else field.default, **options)


def _is_text(schema: dict[str, Any]) -> bool:
    """Whether the key takes free text, which must not be read as YAML: a revision may be all digits."""
    return any(s.get("type") == "string" and "const" not in s for s in schema.get("anyOf", [schema]))


def form() -> dict[str, Param]:
    """The form's fields by dotted key of the job file."""
    schemas = _leaf_schemas(JobConfig)
    return {key: _param(key, field, schemas[key]) for key, field in _fields(JobConfig)}


def job_from_form(params: Mapping[str, Any]) -> dict[str, Any]:
    """The job file's mapping from a filled form; fields left empty keep their defaults."""
    schemas = _leaf_schemas(JobConfig)
    job: dict[str, Any] = {}
    for key, _ in _fields(JobConfig):
        value = params.get(key)
        if value is None or value == "":
            continue
        if isinstance(value, str) and not _is_text(schemas[key]):
            value = yaml.safe_load(value)
        *parents, last = key.split(".")
        section = job
        for name in parents:
            section = section.setdefault(name, {})
        section[last] = value
    return job
