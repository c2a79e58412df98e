// The overview: every job whose runs the user may read, with its newest run.

import { fillTable, find, setHidden, setText } from "./dom.js";
import { logUrl, runUrl } from "./links.js";
import { spark } from "./pictures.js";
import { poll } from "./poll.js";
import { count, money, percent, time, whole } from "./units.js";

function show({ jobs }) {
  setText(find("lead"), jobs.length ? `${jobs.length} job${jobs.length === 1 ? "" : "s"} with runs.` : "No job has run yet.");
  fillTable(find("jobs"), jobs.map(line));
  jobs.forEach((job, at) => {
    const cell = find("jobs").tBodies[0].rows[at].cells[6];
    cell.replaceChildren(...(job.trend.runs.length ? [picture(job)] : []));
  });
}

function line({ run, notice, facts_of: facts, rows_done: done, rows, useful_share: share, cost }) {
  return [
    { text: run.dag_id, href: runUrl("run", run.dag_id, run.run_id), header: true },
    time(run.started),
    { text: run.state, dot: { success: "done", failed: "failed", running: "running" }[run.state] ?? "pending" },
    { text: rows === null ? "–" : `${whole(done)} of ${whole(rows)}`, class: "n" },
    { text: percent(share), class: "n" },
    { text: money(cost), class: "n" },
    "",
    note(run, notice, facts),
  ];
}

// Why the newest run has no numbers, a link to the log that says more, and whose numbers stand there then.
function note(run, notice, facts) {
  const whose = facts ? `Numbers of the run of ${time(facts.started)}.` : "";
  const text = [notice?.text, whose].filter(Boolean).join(" ");
  return notice?.log_of ? { text, href: logUrl(notice.log_of, run.dag_id, run.run_id) } : text;
}

function picture({ run, trend }) {
  const points = trend.runs.map((past) => ({
    value: past.tokens_per_second,
    title: `${time(past.finished)}: ${count(past.tokens_per_second)} tokens per device second`,
    shown: past.shown,
    changed: past.changes.length > 0,
  }));
  return spark(points, `Useful tokens per device second of the last runs of ${run.dag_id}, newest ${count(points.at(-1).value)}`);
}

poll("api/jobs", show, (error) => {
  setHidden(find("message"), !error);
  setText(find("message"), error ? error.message : "");
});
