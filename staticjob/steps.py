"""The steps of a job in order, each idempotent: what has its marker is not done again.

These are the functions behind the commands; Airflow's tasks and `staticjob run` call the same ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from staticjob import dataset, storage, tasks
from staticjob.clock import now
from staticjob.config import JobConfig
from staticjob.engine.shape import Shape
from staticjob.errors import ConfigError, DataError
from staticjob.generating.curve_history import Earlier
from staticjob.layout import Output, Work
from staticjob.memory import Target
from staticjob.merging.publish import output_schema
from staticjob.models import model_files
from staticjob.models.max_length import max_length
from staticjob.plan import make_plan
from staticjob.planning import history
from staticjob.planning.basis import Basis
from staticjob.planning.decoding import growth_of
from staticjob.planning.device import can_run, target_of
from staticjob.planning.head_sizes import head_sizes
from staticjob.records import Commit, Manifest, MergeCommit, Plan, Prepared, Rates, SplitStats

log = logging.getLogger(__name__)


def load_prepared(work: Work) -> Prepared:
    """`job.json` of a work prefix; ConfigError when there is none."""
    prepared = storage.find_json(work.job, Prepared)
    if prepared is None:
        raise ConfigError(f"{work.uri}: no job.json here; give the work URI that `staticjob prepare` printed")
    return prepared


def load_plan(work: Work) -> Plan:
    """`plan.json` of a work prefix; ConfigError when the job is not planned yet."""
    plan = storage.find_json(work.plan, Plan)
    if plan is None:
        raise ConfigError(f"{work.uri}: not planned yet; run `staticjob plan {work.uri}` first")
    return plan


def tokenize(work: Work, prepared: Prepared, splits: Sequence[str]) -> tuple[tuple[SplitStats, ...], int]:
    """Tokenize the named splits; return their statistics and how many were there before."""
    # Deferred: pyarrow and tokenizers, which a reused split does not need.
    from staticjob.tokenizing import tokenize_split

    known = {split.id: split for split in prepared.splits}
    unknown = [name for name in splits if name not in known]
    if unknown:
        raise ConfigError(f"split {unknown[0]}: not in this job, which has {len(known)} splits")
    stats: list[SplitStats] = []
    reused = 0
    encoder: tasks.RowEncoder | None = None
    for name in splits:
        before = storage.find_json(work.split(name), SplitStats)
        if before is not None:
            stats.append(before)
            reused += 1
            continue
        if encoder is None:
            model_dir = model_files.resolve_pinned(prepared.config.model, prepared.model)
            limit = max_length(prepared.config, model_dir)
            encoder = tasks.module(prepared.config.task).encoder(prepared.config, model_dir, limit)
        stats.append(tokenize_split(work, prepared, known[name], encoder))
        log.info("split %s: %d rows, %d tokens", name, *split_size(stats[-1]))
    return tuple(stats), reused


def split_size(stats: SplitStats) -> tuple[int, int]:
    """Rows read and tokens to run of one split."""
    return sum(s.rows for s in stats.slices), sum(p.tokens for p in stats.parts)


def plan(work: Work, prepared: Prepared, calibrate: bool = True) -> tuple[Plan, bool]:
    """Plan the job and store the plan; return it and whether it was there before.

    A plan is made once per fingerprint: rates measured later never move a chunk.
    """
    before = storage.find_json(work.plan, Plan)
    if before is not None:
        return before, True
    plan = draft_plan(work, prepared, calibrate)
    if not storage.put_json_if_absent(work.plan, plan):
        return storage.read_json(work.plan, Plan), True
    return plan, False


def draft_plan(work: Work, prepared: Prepared, calibrate: bool = True) -> Plan:
    """Compute the plan from the splits' statistics; DataError when a split is not tokenized.

    Rates come from the job's last run of the same model; with `calibrate`, a first run measures a
    few shapes on this machine instead, when this machine can run the job.
    """
    stats = [_split_stats(work, split.id) for split in prepared.splits]
    schemas = [dataset.decode_schema(s.kept_schema) for st in stats for s in st.slices]
    config = prepared.config
    kept = dataset.kept_schema(schemas, every=config.input.keep == "all")
    model_dir = model_files.resolve_pinned(config.model, prepared.model)
    # Refuses a kept column named like a result.
    fields = tasks.module(config.task).fields(config, model_dir)
    output_schema(kept, fields)
    past = history.read(config.output.history_uri) if config.output.history_uri else None
    known = past.rates if past and past.model_digest == prepared.model.digest else None
    target = target_of(config.model, known.device if known else None, past.device_memory if past else None)
    if known is not None and (known.device.split(":")[0] != target.kind or known.dtype != target.dtype):
        known = None

    model_config = model_files.model_config(model_dir)
    limit = max_length(config, model_dir)
    growth = growth_of(config, target.lanes)
    head = head_sizes(config, model_dir, model_config, fields, target.kind, growth.cap if growth else limit)

    basis = Basis(
        kept_schema=dataset.encode_schema(kept),
        max_length=limit,
        model_config=model_config,
        head=head,
        target=target,
        rates=known,
        growth=growth,
    )
    first = make_plan(prepared, stats, basis)
    if known is not None or growth or not calibrate or not first.rungs or not can_run(target):
        return first
    rates = _calibrated(config, model_dir, [Shape(rung.length, rung.batch) for rung in first.rungs], target)
    return make_plan(prepared, stats, replace(basis, rates=rates))


def _calibrated(config: JobConfig, model_dir: Path, shapes: Sequence[Shape], target: Target) -> Rates:
    """Rates of a few of the shapes, and what the device can do at best, measured on this machine."""
    began = time.perf_counter()
    from staticjob.engine import StaticEngine
    from staticjob.engine.calibrate import ceilings, measure

    log.info("no rates of an earlier run: measuring a few of %d shapes on %s", len(shapes), target.device)
    engine = StaticEngine(model_dir, config, shapes)
    # As a worker's start: imports count, though this process may have done some of them already.
    start = time.perf_counter() - began
    rates = measure(engine, shapes, start)
    return rates.model_copy(update={"ceilings": ceilings(rates.device, rates.dtype)})


def _split_stats(work: Work, split: str) -> SplitStats:
    stats = storage.find_json(work.split(split), SplitStats)
    if stats is None:
        raise DataError(f"split {split}: not tokenized; run `staticjob tokenize {work.uri} --split {split}`")
    return stats


def merge(
    work: Work, prepared: Prepared, plan: Plan, groups: Sequence[str] = ()
) -> tuple[tuple[MergeCommit, ...], int]:
    """Publish the named merge groups (all when none is named); return their commits and how many stood."""
    from staticjob.merge import merge_group
    from staticjob.merging.gather import read_commits

    known = {group.id: group for group in plan.groups}
    unknown = [name for name in groups if name not in known]
    if unknown:
        raise ConfigError(f"group {unknown[0]}: not in the plan, which has {len(known)} merge groups")
    commits = cache(partial(read_commits, work, plan.chunks))  # once for all groups, if for any
    names = dict.fromkeys(groups or known)
    merged = [merge_group(work, prepared, plan, known[name], commits) for name in names]
    return tuple(commit for commit, _ in merged), sum(kept for _, kept in merged)


def finish(work: Work, prepared: Prepared, plan: Plan) -> tuple[Manifest, bool]:
    """Check the whole output, describe it and write `_SUCCESS`; also whether that was done before."""
    from staticjob.finish import finish as check_and_publish
    from staticjob.report.texts import useful_tokens

    def record(manifest: Manifest, commits: Sequence[Commit]) -> None:
        config = prepared.config
        if config.output.history_uri is None:
            return
        run = history.Run(
            fingerprint=prepared.fingerprint,
            output=config.output.uri,
            rows=manifest.rows,
            ledger=manifest.ledger,
            seconds=manifest.seconds,
            cost=manifest.cost,
            finished=manifest.finished,
            tokens=sum(map(useful_tokens, commits)),
            settings=history.settings_of(
                config,
                model_digest=prepared.model.digest,
                device=manifest.rates.device if manifest.rates else plan.memory.device,
                versions=manifest.versions,
            ),
        )
        outcomes = [(c.length, c.generation) for c in commits if c.generation]
        before = history.earlier_texts(config.output.history_uri, prepared.model.digest)
        history.append(
            config.output.history_uri,
            run,
            prepared.model.digest,
            manifest.rates,
            plan.memory.available,
            Earlier.of(config.generate.max_new_tokens, outcomes, before) if config.generate else None,
        )

    return check_and_publish(
        work,
        prepared,
        plan,
        command=rerun_command(prepared),
        write_report=lambda commits: _write_report(prepared, plan, commits),
        write_history=record,
    )


def report(work: Work, prepared: Prepared, plan: Plan) -> None:
    """Write the report of the chunks committed so far."""
    from staticjob.running.commit import committed

    found = (committed(work, chunk) for chunk in plan.chunks)
    _write_report(prepared, plan, [commit for commit in found if commit])


def _write_report(prepared: Prepared, plan: Plan, commits: Sequence[Commit]) -> None:
    from staticjob.report import build, render_html

    output = Output(prepared.config.output.uri)
    built = build(
        prepared,
        plan,
        commits,
        model_config=model_files.model_config(model_files.resolve(prepared.config.model)),
        command=rerun_command(prepared),
        generated=now(),
    )
    storage.put_json(output.report_json, built)
    storage.put(output.report_html, render_html(built).encode())


def rerun_command(prepared: Prepared) -> str:
    """The command that runs exactly this job again, from the resolved job file in its work prefix."""
    work = Output(prepared.config.output.uri).work(prepared.fingerprint)
    return f"staticjob run {work.config}"
