// Making and updating elements. Texts only ever become text nodes, so nothing in them is markup.

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);

// element("td", { class: "n" }, "12", child): attributes, then texts and elements.
export function element(tag, attributes = {}, ...children) {
  return built(document.createElement(tag), attributes, children);
}

export function drawn(tag, attributes = {}, ...children) {
  return built(document.createElementNS(SVG, tag), attributes, children);
}

function built(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

// Elements of a text each, [tag, text], made anew only where one has changed: a selection in them stays.
export function fillTexts(node, items) {
  const key = JSON.stringify(items);
  if (node.dataset.key === key) return;
  node.dataset.key = key;
  node.replaceChildren(...items.map(([tag, text]) => element(tag, {}, text)));
}

// Fill a table's body with rows of cells: a text, or { text, class, dot, href, header }.
// Rows and links that stay are kept as they are, with the focus and the selection in them.
export function fillTable(table, rows) {
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, at) => {
    const row = body.rows[at] ?? body.insertRow();
    cells.forEach((cell, column) => {
      const wanted = typeof cell === "object" ? cell : { text: cell };
      fillCell(row, column, wanted);
    });
  });
}

function fillCell(row, column, wanted) {
  const key = JSON.stringify(wanted);
  let cell = row.cells[column];
  if (cell?.dataset.key === key) return;
  if (!cell) {
    cell = element(wanted.header ? "th" : "td", wanted.header ? { scope: "row" } : {});
    row.append(cell);
  }
  cell.dataset.key = key;
  cell.className = wanted.class ?? "";
  const link = cell.querySelector("a");
  if (wanted.href && link) {
    link.href = wanted.href;
    setText(link, wanted.text);
    return;
  }
  const content = wanted.href ? element("a", { href: wanted.href }, wanted.text) : wanted.text;
  cell.replaceChildren(...(wanted.dot ? [element("span", { class: `dot ${wanted.dot}` })] : []), content);
}

// A choice's options, kept as they are unless they changed.
export function fillChoice(select, options) {
  const key = JSON.stringify(options);
  if (select.dataset.key === key) return;
  select.dataset.key = key;
  const chosen = select.value;
  select.replaceChildren(
    element("option", { value: "" }, "all"),
    ...options.map(([value, text]) => element("option", { value }, text)),
  );
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}
