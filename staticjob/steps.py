"""The steps of a job in order, each idempotent: what has its marker is not done again.

These are the functions behind the commands; Airflow's tasks and `staticjob run` call the same ones. The
chunks between plan and merge are `running/pack.py`'s, the last step is `finish.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

from staticjob import claim, dataset, storage
from staticjob.engine.shape import Shape
from staticjob.errors import ConfigError, DataError
from staticjob.layout import Work
from staticjob.merging.publish import output_schema
from staticjob.merging.ranks import require_groups
from staticjob.models import model_files
from staticjob.models.max_length import max_length
from staticjob.plan import make_plan
from staticjob.planning import calibration, history
from staticjob.planning.basis import Basis
from staticjob.planning.decoding import growth_of
from staticjob.planning.device import can_run, target_of
from staticjob.planning.head_sizes import head_sizes
from staticjob.records.output import MergeCommit
from staticjob.records.plan import Plan
from staticjob.records.prepared import Prepared
from staticjob.records.tokens import SplitStats
from staticjob.tasks.task_module import RowEncoder, task_module
from staticjob.units import plural

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
    from staticjob.encoding.known_tokens import KnownTokens
    from staticjob.tokenizing import tokenize_split

    known = {split.id: split for split in prepared.splits}
    unknown = [name for name in splits if name not in known]
    if unknown:
        raise ConfigError(f"split {unknown[0]}: not in this job, which has {len(known)} splits")
    stats: list[SplitStats] = []
    reused = 0
    encoder: RowEncoder | None = None
    for name in splits:
        before = storage.find_json(work.split(name), SplitStats)
        if before is not None:
            stats.append(before)
            reused += 1
            continue
        if encoder is None:
            model_dir = model_files.resolve_pinned(prepared.config.model, prepared.model)
            limit = max_length(prepared.config, model_dir)
            keep = prepared.config.input.keep
            # By one task of many: it may have to read all of the input.
            if keep != "all" and name == prepared.splits[0].id:
                dataset.check_kept_keys(prepared.files, keep)
            encoder = task_module(prepared.config.task).encoder(prepared.config, model_dir, limit)
            vocabulary = model_files.vocabulary_size(model_files.model_config(model_dir))
            encoder = KnownTokens(encoder, vocabulary) if vocabulary else encoder
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
    fields = task_module(config.task).fields(config, model_dir)
    output_schema(kept, fields)
    if config.rerank.group_by:
        require_groups(kept, config.rerank.group_by)
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
    shapes = [Shape(rung.length, rung.batch) for rung in first.rungs]
    log.info("no rates of an earlier run: measuring a few of %d shapes on %s", len(shapes), target.device)
    return make_plan(prepared, stats, replace(basis, rates=calibration.calibrate(config, model_dir, shapes)))


def warn_without_rows(prepared: Prepared, plan: Plan) -> None:
    """Say so where the input has files and no row: the run goes well and its output is as empty."""
    if not plan.items:
        files = plural(len(prepared.files), "file")
        log.warning("warning: input.uri %s: the input has no rows (%s)", prepared.config.input.uri, files)


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


def report(work: Work, prepared: Prepared, plan: Plan) -> None:
    """Write the report of the chunks committed so far.

    Raises DataError when another run holds the output: the report beside it is that run's.
    """
    from staticjob.report.store import make_report, store_report
    from staticjob.running.commit import committed

    claim.hold(prepared.config.output.uri, prepared.fingerprint)
    found = (committed(work, chunk) for chunk in plan.chunks)
    store_report(prepared, make_report(prepared, plan, [commit for commit in found if commit]))
