"""Pin everything a job reads, name it by fingerprint and claim its output.

After `prepare` a job is a fact: the list of input objects with their versions, the model's
digest and the settings that change results. The same facts give the same fingerprint and so
the same work prefix, which is what makes running again a resume.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from staticjob import __version__, claim, dataset, storage
from staticjob.clock import now
from staticjob.config.job import JobConfig
from staticjob.encoding.tokenizer import require_tokenizer
from staticjob.layout import Output, Work, join
from staticjob.models import model_files
from staticjob.models.max_length import max_length
from staticjob.records.prepared import InputFile, ModelFiles, Prepared, Started
from staticjob.tasks.task_module import task_module

# Raised whenever the engine's arithmetic or what a work prefix holds changes: two revisions never mix.
ENGINE_REVISION = 3
# Settings that change no result, so that a new price or schedule still resumes.
NEUTRAL = (
    "name",
    "cost",
    "airflow",
    "input.uri",
    "output.uri",
    "output.history_uri",
    "limits.max_error_rate",
    "model.path",
    "model.device_memory_gib",
)


def prepare(
    config: JobConfig, output: Output | None = None, *, run: bool = True, shared_tokens: str | None = None
) -> tuple[Work, Prepared, bool]:
    """Pin the job and write `job.json`; return its work prefix, the record and whether it was there.

    `output` replaces the job's own output (a dry run prepares into a temporary folder). With `run`
    the output is claimed, which ends what another run would still publish there; a job that is only
    planned leaves a claim that stands, and what a run of the same job goes by. `shared_tokens` is a
    folder for the tokens of several jobs: those whose texts become the same tokens find each other's there.
    Raises ConfigError or DataError for whatever can be known now: missing input, missing model
    or tokenizer, limits beyond the model's, an output prefix another run is writing.
    """
    target = output or Output(config.output.uri)
    model_dir = model_files.resolve(config.model)
    limit = max_length(config, model_dir)
    require_tokenizer(model_dir)
    # Refuses a model of another kind than the task's before anything of the input is read.
    task_module(config.task).fields(config, model_dir)
    model = model_files.pin(model_dir, config.model)
    files = dataset.discover(config.input, config.output.uri)
    identity = fingerprint(config, files, model)
    tokens = None
    if shared_tokens:
        tokens = join(shared_tokens, token_identity(config, files, model, model_dir, limit))
    work = replace(target.work(identity), shared_tokens=tokens)
    if run or claim.holder(target) is None:
        claim.take(target.uri, identity)
    if run:
        storage.put_json(work.started, Started(started=now()))
    before = storage.find_json(work.job, Prepared)
    record = Prepared(
        staticjob=__version__,
        config=config,
        fingerprint=identity,
        files=files,
        splits=before.splits if before else dataset.plan_splits(files, max_splits=config.max_mapped_tasks),
        model=model,
        tokens=tokens,
        created=before.created if before else now(),
    )
    # Settings that change no result (a price, an error ceiling, where the input lies) may have
    # changed since: the record is the job as it was last run.
    if before is None or (run and record != before):
        resolved = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        storage.put(work.config, resolved.encode())
        storage.put_json(work.job, record)
    return work, record, before is not None


def fingerprint(config: JobConfig, files: tuple[InputFile, ...], model: ModelFiles) -> str:
    """Hash of job, input objects, model contents and engine revision: 64 hex digits.

    Where the dataset lies and what the job is called do not enter; what the objects hold does.
    """
    settings: dict[str, Any] = config.model_dump(mode="json")
    for key in NEUTRAL:
        *sections, last = key.split(".")
        node = settings
        for name in sections:
            node = node[name]
        node.pop(last)
    facts = {
        "engine_revision": ENGINE_REVISION,
        "job": settings,
        "input": _input_facts(files),
        "model": model.digest,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def token_identity(
    config: JobConfig, files: tuple[InputFile, ...], model: ModelFiles, model_dir: Path, limit: int
) -> str:
    """Hash of all that decides a job's tokens, and of no weights: 16 hex digits. `limit`: tokens per row."""
    described = model_files.model_config(model_dir)
    own = {str(Path(file.uri).relative_to(model_dir)): file.version for file in model.files}
    facts = {
        "engine_revision": ENGINE_REVISION,
        "input": _input_facts(files),
        "splits": config.max_mapped_tasks,
        "job": config.model_dump(
            mode="json",
            include={
                "task": True,
                "input": {"columns", "keep"},
                "limits": {"overflow"},
                "embed": {"prompt", "prompt_name"},
                "rerank": {"template"},
            },
        ),
        "limit": limit,
        "ids": {key: value for key, value in described.items() if key.endswith(("_token_id", "vocab_size"))},
        "files": {name: digest for name, digest in own.items() if not model_files.is_weights(name)},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _input_facts(files: tuple[InputFile, ...]) -> list[list[Any]]:
    return [[f.path, f.object.size, f.object.version, f.format, f.compression] for f in files]
