// The page of one run: asks for its document until the run is over, and shows each answer.

import { showChunks } from "./chunks.js";
import { element, fillTable, fillTexts, find, setHidden, setText } from "./dom.js";
import { dagId, logUrl, runId, runUrl } from "./links.js";
import { bar, curve, ladder } from "./pictures.js";
import { fetchJson, poll } from "./poll.js";
import { showTrend } from "./trend.js";
import { count, duration, money, percent, size, time, whole } from "./units.js";

let spoken = "";
let trendOf = "";

function show({ run, notice: said, job }) {
  setText(find("eyebrow"), `Static batch · DAG ${run.dag_id} · run ${run.run_id}`);
  const state = find("state");
  setText(state, run.state);
  state.className = `pill ${run.state}`;
  notice(said?.text ?? "", said?.log_of);
  setHidden(find("job"), !job?.totals);
  if (job) showJob(run, job);
  else setText(find("name"), run.dag_id);
  return run.final;
}

function showJob(run, job) {
  setText(find("name"), job.info.name);
  document.title = `${job.info.name} · Static batch`;
  setText(find("lead"), lead(job));
  const { input, output, work } = job.info;
  fillTexts(find("where"), [["dt", "from"], ["dd", input], ["dt", "to"], ["dd", output], ["dt", "work"], ["dd", work]]);
  showTrouble(job.trouble);
  setHidden(find("actions"), !(job.info.reported && (run.final || job.info.state === "done")));
  if (!job.totals) return;
  showTiles(run, job);
  const label = sentence(run, job.totals);
  find("ladder").replaceChildren(...ladder(job.rungs, `Ladder of ${job.rungs.length} rungs; ${label}`));
  say(label, job.totals, run.state);
  fillTable(find("rungs"), job.rungs.map(rungLine));
  showCompared(run, job);
  showCurves(job.curves);
  showChunks(job.chunks);
  showRows(job);
  askTrend(run, job);
}

function lead({ info, totals }) {
  const where = info.device ? ` on ${info.device} in ${info.dtype}` : "";
  if (!totals) return `Task ${info.task}, model ${info.model}${where}: ${info.state}, no plan yet.`;
  const kept = totals.reused ? `, ${whole(totals.reused)} of them kept from an earlier run` : "";
  return `Task ${info.task}, model ${info.model}${where}: ${info.state}; ${whole(totals.states.done ?? 0)} of ${whole(totals.chunks)} chunks done${kept}.`;
}

function sentence(run, totals) {
  const { states } = totals;
  return `${percent(totals.slots ? totals.slots_done / totals.slots : 1)} of the slots done; chunks: ${states.done ?? 0} done, ${states.running ?? 0} running, ${waiting(states)} waiting`;
}

// Chunks that nobody works on: those never begun, and those to be tried again.
const waiting = (states) => (states.waiting ?? 0) + (states.failed ?? 0) + (states.stopped ?? 0);

// Screen readers are told of every tenth and every new state, not of every answer.
function say(label, totals, state) {
  const mark = `${Math.floor((10 * totals.slots_done) / (totals.slots || 1))} ${state}`;
  if (mark === spoken) return;
  spoken = mark;
  setText(find("spoken"), `Run ${state}: ${label}`);
}

function showTiles(run, { totals, speed, money: paid }) {
  const tiles = [
    [percent(totals.slots ? totals.slots_done / totals.slots : 1), "of the slots done"],
    [`${whole(totals.rows_done)} of ${whole(totals.rows)}`, "rows computed"],
    [count(speed?.rows_per_second), "rows per wall second"],
    [count(speed?.tokens_per_second), "useful tokens per wall second, all workers together"],
    speed?.seconds_left != null && !run.final
      ? [duration(speed.seconds_left), "left, by the slots still to come"]
      : [duration(paid.seconds), `device time${byEarlierRuns(totals)}`],
    [percent(totals.useful_share), `useful so far; ${percent(totals.planned_share)} planned`],
  ];
  if (paid.gpu_hour !== null) {
    tiles.push([money(paid.cost), `so far, at ${money(paid.gpu_hour)} per device hour${byEarlierRuns(totals)}`]);
    tiles.push([money(paid.per_million), "per million useful tokens"]);
  }
  find("tiles").replaceChildren(
    ...tiles.map(([value, name]) => element("div", {}, element("b", {}, value), element("span", {}, name))),
  );
}

// Time and cost are those of all chunks, whichever run computed them.
function byEarlierRuns({ reused, chunks }) {
  if (!reused) return "";
  return reused === chunks ? ", all of it by earlier runs" : ", a part of it by earlier runs";
}

function rungLine(rung) {
  const done = rung.slots ? (rung.slots_done + rung.slots_running) / rung.slots : 1;
  const numbers = [
    whole(rung.slots), percent(done), percent(rung.useful_share), whole(rung.states.done ?? 0),
    whole(rung.states.running ?? 0), whole(waiting(rung.states)), size(rung.predicted_bytes), size(rung.measured_bytes),
  ];
  return [{ text: `${rung.batch} × ${rung.length}`, header: true }, ...numbers.map((text) => ({ text, class: "n" }))];
}

function showCompared(run, { memory, money: paid }) {
  const pairs = [
    ["Peak memory", memory.predicted, memory.measured, size],
    ["Device time", paid.predicted_seconds, paid.seconds, duration],
    ...(paid.gpu_hour === null ? [] : [["Cost", paid.predicted_cost, paid.cost, money]]),
  ];
  const rows = pairs.flatMap(([name, predicted, measured, show]) => {
    const scale = Math.max(predicted ?? 0, measured ?? 0);
    return [["predicted", predicted, "ghost"], [run.final ? "measured" : "so far", measured, "useful"]].map(([what, value, kind]) =>
      element("tr", {},
        element("th", { scope: "row" }, `${name} ${what}`),
        element("td", { class: "wide" }, bar(kind, value, scale, `${name}, ${what}`)),
        element("td", { class: "n" }, show(value)),
      ));
  });
  find("compare").tBodies[0].replaceChildren(...rows);
}

function showCurves(curves) {
  setHidden(find("curves-section"), curves.length === 0);
  const steps = Math.max(...curves.map((rung) => rung.steps));
  find("curves").replaceChildren(...curves.map((rung) => {
    const half = rung.half_step === null ? "" : `, half of them ended by step ${whole(rung.half_step)}`;
    const left = rung.handovers.reduce((sum, [, rows]) => sum + rows, 0);
    const words = `${rung.batch} × ${rung.length}: ${whole(rung.rows)} rows${half}${left ? `, ${whole(left)} handed to vLLM` : ""}`;
    return element("figure", {}, element("figcaption", {}, words), curve(rung, steps, words));
  }));
}

function showRows({ statuses, rows_pending: pending, errors }) {
  const lines = Object.entries(statuses).map(([status, rows]) => [
    { text: status, dot: status, header: true }, { text: whole(rows), class: "n" },
  ]);
  if (pending) lines.push([{ text: "not yet computed", dot: "pending", header: true }, { text: whole(pending), class: "n" }]);
  fillTable(find("statuses"), lines);
  setHidden(find("errors-block"), errors.length === 0);
  fillTable(find("errors"), errors.map((error) => [
    { text: error.file, header: true }, { text: error.row, class: "n" }, error.status, error.reason,
  ]));
}

function showTrouble(lines) {
  setHidden(find("trouble"), lines.length === 0);
  fillTexts(find("trouble"), lines.map((line) => ["li", line]));
}

// The trend grows when a run ends: asked for once at first, and once more then.
function askTrend(run, job) {
  const mark = `${job.info.state} ${run.final}`;
  if (mark === trendOf) return;
  trendOf = mark;
  fetchJson(runUrl("api/trend")).then(showTrend, () => {});
}

// A line above all numbers; task: the one whose log says more.
function notice(text, task) {
  setHidden(find("message"), !text);
  setText(find("message-text"), text);
  setHidden(find("message-log"), !task);
  if (task) find("message-log").href = logUrl(task);
}

find("report").href = runUrl("report");
find("manifest").href = runUrl("manifest");
setText(find("name"), dagId);
setText(find("eyebrow"), `Static batch · DAG ${dagId} · run ${runId}`);
poll(runUrl("api/run"), show, (error) => {
  if (error) notice(`${error.message}${error.refused ? "" : "; asking again"}`);
  else setText(find("foot"), `Read ${time(new Date())}.`);
});
