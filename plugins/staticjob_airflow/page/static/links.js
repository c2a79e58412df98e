// Addresses, and how a page inside Airflow's sandboxed frame leads out of it.

const query = new URLSearchParams(location.search);
export const dagId = query.get("dag_id") ?? "";
export const runId = query.get("run_id") ?? "";

// An address of this app for a run, e.g. runUrl("report").
export function runUrl(page, dag = dagId, run = runId) {
  return `${page}?${new URLSearchParams({ dag_id: dag, run_id: run })}`;
}

// The log of a task in Airflow's own pages, which lie one level above this app.
export function logUrl(task, dag = dagId, run = runId) {
  return `../dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}/tasks/${task}`;
}

// The frame may open no window and replace no page, but Airflow's page around it is of the same
// origin: a link made there is followed there. Without a frame, links are left alone.
export function leadOut(event) {
  const link = event.target.closest("a[href]");
  if (!link || window.parent === window || link.origin !== location.origin) return;
  const inside = new URL(".", location.href).pathname;
  const page = link.pathname.startsWith(inside) ? link.pathname.slice(inside.length) : null;
  if (page === "run" || page === "") return;
  event.preventDefault();
  const outside = window.parent.document.createElement("a");
  outside.href = link.href;
  const another = page !== null || event.ctrlKey || event.metaKey || event.button === 1;
  if (another) outside.target = "_blank";
  outside.rel = "noopener";
  outside.click();
}

document.addEventListener("click", leadOut);
document.addEventListener("auxclick", (event) => event.button === 1 && leadOut(event));
