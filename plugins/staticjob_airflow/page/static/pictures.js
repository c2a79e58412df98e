// The pictures: each one SVG of 1000 units across, stretched to its place, with its numbers in a table beside it.

import { drawn, element } from "./dom.js";

const rect = (name, x, y, width, height, title) =>
  drawn("rect", { class: name, x, y, width, height }, ...(title ? [drawn("title", {}, title)] : []));

const picture = (name, height, label, ...children) =>
  drawn("svg", { class: name, viewBox: `0 0 1000 ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, ...children);

// Columns of (share of all slots) × (share of them done), drawn by rung: a thousand chunks cost nothing.
export function ladder(rungs, label) {
  const slots = rungs.reduce((sum, rung) => sum + rung.slots, 0) || 1;
  const columns = [];
  const names = [];
  let x = 0;
  for (const rung of rungs) {
    const width = (1000 * rung.slots) / slots;
    const done = (100 * rung.slots_done) / rung.slots;
    const running = (100 * rung.slots_running) / rung.slots;
    const title = `${rung.batch} × ${rung.length}: ${Math.round(done + running)}% done`;
    columns.push(rect("track", x, 0, width, 100, title));
    columns.push(rect("done", x, 100 - done, width, done, title));
    columns.push(rect("running", x, 100 - done - running, width, running, title));
    const name = element("span", { "aria-hidden": "true" }, String(rung.length));
    name.style.flexGrow = String(rung.slots);
    names.push(name);
    x += width;
  }
  return [picture("", 100, label, ...columns), element("div", {}, ...names)];
}

export function bar(name, value, scale, label) {
  return picture("bar", 10, label, rect(name, 0, 0, scale ? (1000 * (value ?? 0)) / scale : 0, 10));
}

// The share of rows active over decode steps, a line down from where rows left for vLLM.
export function curve({ points, handovers, steps: own }, steps, label) {
  const x = (step) => (1000 * step) / (steps || 1);
  const ends = [...points, [own, 0]].map(([step, share]) => `${x(step)},${100 - 100 * share}`);
  const left = handovers.map(([step, rows]) =>
    drawn("line", { x1: x(step), x2: x(step), y1: 0, y2: 100 }, drawn("title", {}, `step ${step}: ${rows} rows handed to vLLM`)));
  return picture("curve", 100, label, drawn("polyline", { points: ends.join(" ") }), ...left);
}

// One column a run, oldest first. points: [{ value, title, shown, changed }]
export function spark(points, label) {
  const highest = Math.max(...points.map((point) => point.value ?? 0)) || 1;
  const width = 1000 / Math.max(points.length, 10);
  const columns = points.map((point, at) => {
    const height = (100 * (point.value ?? 0)) / highest;
    const name = `${point.shown ? "shown" : ""} ${point.changed ? "changed" : ""}`.trim();
    return rect(name, at * width, 100 - height, width, height, point.title);
  });
  return picture("spark", 100, label, ...columns);
}
