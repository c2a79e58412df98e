// The table of chunks, a page at a time: filtered by state, rung and mapped task.

import { fillChoice, fillTable, find, setText } from "./dom.js";
import { logUrl } from "./links.js";
import { duration, whole } from "./units.js";

const PAGE = 50;

let all = [];
let page = 0;
// A link on a chunk task names it; its choice is set once its option is there.
let asked = new URLSearchParams(location.search).get("task");

export function showChunks(chunks) {
  all = chunks;
  const lengths = [...new Set(chunks.map((chunk) => chunk.length))];
  const tasks = [...new Set(chunks.map((chunk) => chunk.map_index).filter((task) => task !== null))];
  fillChoice(find("chunk-rung"), lengths.map((length) => [String(length), String(length)]));
  fillChoice(find("chunk-task"), tasks.map((task) => [String(task), `chunk [${task}]`]));
  if (asked !== null) {
    find("chunk-task").value = asked;
    asked = null;
  }
  draw();
}

function draw() {
  const [state, rung, task] = ["chunk-state", "chunk-rung", "chunk-task"].map((id) => find(id).value);
  const chosen = all.filter(
    (chunk) =>
      (!state || chunk.state === state) &&
      (!rung || String(chunk.length) === rung) &&
      (!task || String(chunk.map_index) === task),
  );
  const pages = Math.max(1, Math.ceil(chosen.length / PAGE));
  page = Math.min(page, pages - 1);
  fillTable(find("chunks"), chosen.slice(page * PAGE, (page + 1) * PAGE).map(line));
  setText(find("chunk-page"), `${page + 1} of ${pages}`);
  find("chunk-back").disabled = page === 0;
  find("chunk-on").disabled = page === pages - 1;
}

function line(chunk) {
  const kept = chunk.kept_batches ? ` (${whole(chunk.kept_batches)} kept)` : "";
  return [
    { text: chunk.id, header: true },
    `${chunk.batch} × ${chunk.length}`,
    { text: [chunk.state, chunk.reason, chunk.texts].filter(Boolean).join(": "), dot: chunk.state },
    { text: `${whole(chunk.batches_done)} of ${whole(chunk.batches)}${kept}`, class: "n" },
    { text: whole(chunk.rows), class: "n" },
    { text: duration(chunk.seconds), class: "n" },
    chunk.worker,
    chunk.map_index === null ? "" : { text: `log [${chunk.map_index}]`, href: `${logUrl("chunk")}/mapped/${chunk.map_index}` },
  ];
}

function turn(by) {
  page += by;
  draw();
}

find("chunk-back").addEventListener("click", () => turn(-1));
find("chunk-on").addEventListener("click", () => turn(1));
for (const id of ["chunk-state", "chunk-rung", "chunk-task"]) {
  find(id).addEventListener("change", () => turn(-page));
}
