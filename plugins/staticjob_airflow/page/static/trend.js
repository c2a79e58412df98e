// The job's last runs: four small pictures, and a table with what changed in the configuration.

import { element, fillTable, find, setHidden } from "./dom.js";
import { spark } from "./pictures.js";
import { count, duration, money, percent, time, whole } from "./units.js";

const MEASURES = [
  ["useful share", "useful_share", percent],
  ["useful tokens per device second", "tokens_per_second", count],
  ["cost", "cost", money],
  ["device time", "seconds", duration],
];

export function showTrend({ runs }) {
  setHidden(find("trend-section"), runs.length === 0);
  const known = MEASURES.filter(([, key]) => runs.some((run) => run[key] !== null));
  find("trends").replaceChildren(...known.map((measure) => figure(runs, ...measure)));
  fillTable(find("runs"), [...runs].reverse().map(line));
}

function figure(runs, name, key, show) {
  const points = runs.map((run) => ({
    value: run[key],
    title: `${time(run.finished)}: ${show(run[key])}`,
    shown: run.shown,
    changed: run.changes.length > 0,
  }));
  const newest = show(runs.at(-1)[key]);
  const picture = spark(points, `${name} of the last ${runs.length} runs, newest ${newest}`);
  return element("figure", {}, element("figcaption", {}, element("b", {}, newest), ` ${name}`), picture);
}

function line(run) {
  const changes = run.changes.map(({ key, before, after }) => `${key}: ${before ?? "default"} → ${after ?? "default"}`);
  return [
    { text: time(run.finished) + (run.shown ? " (this run)" : ""), header: true },
    { text: whole(run.rows), class: "n" },
    { text: percent(run.useful_share), class: "n" },
    { text: count(run.tokens_per_second), class: "n" },
    { text: duration(run.seconds), class: "n" },
    { text: money(run.cost), class: "n" },
    changes.join("; "),
  ];
}
