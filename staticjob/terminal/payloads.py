"""A job as the objects that `--json` prints: planned, under way, finished."""

from __future__ import annotations

from typing import Any

from staticjob.layout import Output
from staticjob.plan import pack_name
from staticjob.records.output import Manifest
from staticjob.records.plan import Plan
from staticjob.records.prepared import Prepared
from staticjob.status import JobStatus, alive


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as the object that `plan --json` prints."""
    rungs = [rung.model_dump(include={"length", "batch", "rows", "batches"}) for rung in plan.rungs]
    return {
        "fingerprint": plan.fingerprint,
        "token_budget": plan.token_budget,
        "rows": {str(status): count for status, count in plan.statuses.items()},
        "ledger": plan.ledger.model_dump(),
        "useful_share": plan.ledger.useful_share,
        "rungs": rungs,
        "orders": plan.orders.model_dump(),
        "memory": plan.memory.model_dump(),
        "forecast": plan.forecast.model_dump(),
        "chunks": len(plan.chunks),
        "packs": [
            {"index": i, "name": pack_name(plan, i), "chunks": list(pack)}
            for i, pack in enumerate(plan.packs)
        ],
        "groups": [group.id for group in plan.groups],
    }


def status_json(status: JobStatus) -> dict[str, Any]:
    """What `status --json` prints beside the plan; `rows` are those planned, per status."""
    plan, paid = status.plan, status.ledger
    return {
        "state": status.state,
        "job": status.prepared.config.name,
        "fingerprint": status.prepared.fingerprint,
        "output": status.prepared.config.output.uri,
        "work": status.work.uri,
        "splits": {"done": status.splits_done, "total": len(status.prepared.splits)},
        "chunks": {
            "done": len(status.commits),
            "reused": status.reused,
            "running": sum(1 for p in status.progress if p.state == "running" and alive(p)),
            "total": len(plan.chunks) if plan else None,
        },
        "rows": {str(s): n for s, n in plan.statuses.items()} if plan else None,
        "statuses": {str(s): n for s, n in status.statuses.items()},
        "report": status.report,
        "computed": {"done": status.rows_done, "total": sum(c.rows for c in plan.chunks) if plan else None},
        "ledger": paid.model_dump(),
        "slots_planned": plan.ledger.slots if plan else None,
        "useful_share": paid.useful_share,
        "errors": [e.model_dump(mode="json") for e in status.first_errors()],
        "trouble": status.trouble(),
    }


def manifest_json(prepared: Prepared, manifest: Manifest) -> dict[str, Any]:
    """A finished job as the object that `finish --json` and `run --json` print."""
    output = Output(prepared.config.output.uri)
    return {
        "output": output.uri,
        "report": output.report_html,
        "rows": manifest.rows,
        "statuses": {str(status): count for status, count in manifest.statuses.items()},
        "ledger": manifest.ledger.model_dump(),
        "useful_share": manifest.ledger.useful_share,
        "seconds": manifest.seconds,
        "cost": manifest.cost,
        "fingerprint": manifest.fingerprint,
    }
