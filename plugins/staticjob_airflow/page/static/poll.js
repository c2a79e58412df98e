// Asking again: soon while something changes, ever later while nothing does, never when show says it is over.

const FIRST = 2000;
const LONGEST = 30000;

export async function fetchJson(url) {
  const response = await fetch(url, { headers: { Accept: "application/json" } });
  if (response.ok) return response.json();
  const detail = await response.json().then((body) => body.detail, () => null);
  const error = new Error(typeof detail === "string" ? detail : `${response.status} ${response.statusText}`);
  error.refused = response.status >= 400 && response.status < 500;
  throw error;
}

function seen() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}

// Calls show(document) for every change until it returns true, and trouble(error | null).
// A refusal (no login, no right, no such run) ends it; any other failure is tried again.
export async function poll(url, show, trouble) {
  let wait = FIRST;
  let last = "";
  for (;;) {
    try {
      const answer = await fetchJson(url);
      trouble(null);
      const text = JSON.stringify(answer);
      wait = text === last ? Math.min(wait * 1.5, LONGEST) : FIRST;
      if (text !== last && show(answer)) return;
      last = text;
    } catch (error) {
      trouble(error);
      if (error.refused) return;
      last = ""; // the next answer is shown over the trouble, whatever it is
      wait = Math.min(wait * 2, LONGEST);
    }
    await new Promise((resolve) => setTimeout(resolve, wait));
    await seen();
  }
}
