"use strict";

// The checkpoint has the fields of inspection.json, and examples.
const { maps, checkpoint, full } = JSON.parse(document.getElementById("data").textContent);
const VISIBLE = 0.01; // minimum attention weight that is drawn or written
const FORMAT = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const dialog = document.getElementById("details");
const sentence = document.getElementById("sentence");
const panel = document.querySelector(".panel");
const choice = panel.querySelector(".choice");

for (const map of maps) document.getElementById("maps").append(mapSection(map));
document.getElementById("layers").append(layerTable());
fillDialog();

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function text(value) {
  return FORMAT.format(value);
}

// The Tab key reaches one cell of `container`; arrow keys move to the others.
function moveByArrows(container) {
  container.querySelector("[data-row]")?.setAttribute("tabindex", 0);
  container.addEventListener("keydown", (event) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const [row, column] = ["row", "column"].map((axis, i) => Number(event.target.dataset[axis]) + steps[event.key][i]);
    const next = container.querySelector(`[data-row="${row}"][data-column="${column}"]`);
    if (!next) return;
    event.target.setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
  });
}

// --- Maps ---

function mapSection(map) {
  const section = document.getElementById("map").content.firstElementChild.cloneNode(true);
  section.querySelector("h2").textContent = map.title;
  section.querySelector(".low").textContent = text(map.limits[0]);
  section.querySelector(".high").textContent = text(map.limits[1]);
  fillMap(section.querySelector(".map"), map);
  const show = ({ target }) => {
    if (target.matches("[data-row]")) section.querySelector(".readout").textContent = target.getAttribute("aria-label");
  };
  section.addEventListener("mouseover", show);
  section.addEventListener("focusin", show);
  return section;
}

function fillMap(table, map) {
  const heads = Array.from({ length: checkpoint.heads }, (_, head) => element("th", { scope: "col" }, head));
  table.append(element("tr", {}, element("td", {}), ...heads));
  checkpoint[map.name].forEach((values, layer) => {
    const cells = values.map((value, head) => element("td", {}, mapCell(map, value, layer, head)));
    table.append(element("tr", {}, element("th", { scope: "row" }, layer), ...cells));
  });
  moveByArrows(table);
}

function mapCell(map, value, layer, head) {
  const [low, high] = map.limits;
  const share = high > low ? Math.min(1, Math.max(0, (value - low) / (high - low))) : 0;
  const label = `layer ${layer}, head ${head}: ${text(value)}`;
  const place = { "data-row": layer, "data-column": head, tabindex: -1 };
  const cell = element("button", { type: "button", "aria-label": label, style: `--share: ${share}`, ...place });
  cell.addEventListener("click", () => open(layer, head));
  return cell;
}

function layerTable() {
  const header = ["layer", "heads", "head size", "condition number"].map((name) => element("th", { scope: "col" }, name));
  const table = element("table", {}, element("tr", {}, ...header));
  checkpoint.condition_number.forEach((condition, layer) => {
    const cells = [layer, checkpoint.head_counts[layer], checkpoint.head_sizes[layer], condition === null ? "" : text(condition)];
    table.append(element("tr", {}, ...cells.map((cell) => element("td", {}, cell))));
  });
  return table;
}

// --- The details of a head ---

function fillDialog() {
  checkpoint.examples.forEach(({ sentence: words }, i) => sentence.append(element("option", { value: i }, words)));
  checkpoint.head_counts.forEach((count, layer) => {
    for (let head = 0; head < count; head++) {
      choice.append(element("option", { value: `${layer} ${head}` }, `layer ${layer}, head ${head}`));
    }
  });
  choice.addEventListener("change", show);
  sentence.addEventListener("change", show);
  document.getElementById("close").addEventListener("click", () => dialog.close());
}

function open(layer, head) {
  choose(layer, head);
  dialog.showModal();
  choice.focus();
}

function choose(layer, head) {
  choice.value = `${layer} ${head}`;
  show();
}

function show() {
  const [layer, head] = choice.value.split(" ").map(Number);
  showExample(layer, head);
  showNearest(layer, head);
  showSingularValues(layer, head);
  panel.querySelector(".importance").textContent =
    `The last hidden states change by ${text(100 * checkpoint.importance[layer][head])}% on average ` +
    `over ${checkpoint.importance_sequences} sequences of the text.`;
  const rows = maps.map(({ name, title }) => [title, text(checkpoint[name][layer][head])]);
  panel.querySelector(".measures").replaceChildren(
    ...rows.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell)))),
  );
}

function showExample(layer, head) {
  const example = checkpoint.examples[sentence.value];
  if (!example) {
    panel.querySelector(".attention").replaceChildren("The beginning of the text contains no sentence with a suitable length.");
    return;
  }
  showAttention(example.tokens, weightsOf(example, layer, head));
  const largest = Math.max(...example.changes.flat(2));
  const changes = example.changes[layer][head].map((change, token) =>
    element("span", { class: "change", style: `--share: ${change / largest}` }, example.tokens[token],
      element("small", {}, text(change))),
  );
  panel.querySelector(".changes").replaceChildren(...changes);
}

// A row of weights for each query, from 0 to 1.
function weightsOf(example, layer, head) {
  const bytes = Uint8Array.from(atob(example.attention), (letter) => letter.charCodeAt(0));
  const n = example.tokens.length;
  const before = checkpoint.head_counts.slice(0, layer).reduce((sum, count) => sum + count, head);
  const row = (query) => bytes.subarray((before * n + query) * n, (before * n + query + 1) * n);
  return example.tokens.map((_, query) => Array.from(row(query), (weight) => weight / full));
}

function showAttention(tokens, weights) {
  const place = (row) => ({ "data-row": row, "data-column": 0, tabindex: -1 });
  const queries = tokens.map((token, row) => element("button", { type: "button", ...place(row) }, token));
  const keys = tokens.map((token) => element("span", { class: "key" }, element("span", { class: "weight" }), token));
  const lines = weights.map((row, query) => {
    const group = document.createElementNS("http://www.w3.org/2000/svg", "g");
    row.forEach((weight, key) => weight >= VISIBLE && group.append(line(query, key, weight)));
    return group;
  });
  const attention = panel.querySelector(".attention");
  attention.style.setProperty("--tokens", tokens.length);
  attention.querySelector(".lines").setAttribute("viewBox", `0 0 1 ${tokens.length}`);
  attention.querySelector(".lines").replaceChildren(...lines);
  attention.querySelector(".keys").replaceChildren(...keys);
  const column = element("div", { class: "queries" }, ...queries);
  attention.querySelector(".queries").replaceWith(column);
  moveByArrows(column);

  // Shows all lines, or only those from one query, with its weights as numbers.
  const focus = (query) => {
    lines.forEach((group, i) => group.setAttribute("visibility", query === null || i === query ? "visible" : "hidden"));
    keys.forEach((key, i) => {
      key.style.setProperty("--share", query === null ? 0 : weights[query][i]);
      key.firstChild.textContent = query === null || weights[query][i] < VISIBLE ? "" : weights[query][i].toFixed(2);
    });
    panel.querySelector(".readout").textContent = query === null ? "" : largestOf(tokens, weights, query);
  };
  const focusTarget = ({ target }) => target.matches("[data-row]") && focus(Number(target.dataset.row));
  column.addEventListener("mouseover", focusTarget);
  column.addEventListener("focusin", focusTarget);
  column.addEventListener("mouseleave", () => focus(null));
  column.addEventListener("focusout", () => focus(null));
  focus(null);
}

function line(query, key, weight) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const ends = { x1: 0, y1: query + 0.5, x2: 1, y2: key + 0.5, "stroke-opacity": weight };
  for (const [name, value] of Object.entries(ends)) made.setAttribute(name, value);
  return made;
}

function largestOf(tokens, weights, query) {
  const keys = tokens.map((_, key) => key).sort((one, other) => weights[query][other] - weights[query][one]);
  const shown = keys.slice(0, 5).filter((key) => weights[query][key] >= VISIBLE).map((key) => `${tokens[key]} ${weights[query][key].toFixed(2)}`);
  return `${tokens[query]} attends to ${shown.join(", ")}`;
}

function showNearest(layer, head) {
  const cosines = checkpoint.similarities[layer][head].map((cosine, other) => (other === head ? -Infinity : cosine));
  const nearest = cosines.indexOf(Math.max(...cosines));
  const place = panel.querySelector(".nearest");
  if (cosines.length === 1) return place.replaceChildren("This is the only head in its layer.");
  const button = element("button", { type: "button" }, `head ${nearest}`);
  button.addEventListener("click", () => choose(layer, nearest));
  place.replaceChildren(button, ` (mean cosine similarity ${text(cosines[nearest])})`);
}

function showSingularValues(layer, head) {
  const values = checkpoint.singular_values[layer][head];
  const most = Math.min(checkpoint.head_sizes[layer], checkpoint.max_seq_length - 1);
  panel.querySelector(".rank").textContent =
    `The effective rank is ${text(checkpoint.effective_rank[layer][head])} (at most ${most}). ` +
    `The largest singular value is ${text(values[0])}.`;
  const bars = values.map((value) => element("span", { style: `--share: ${value / (values[0] || 1)}` }));
  panel.querySelector(".bars").replaceChildren(...bars);
  panel.querySelector(".singular").textContent = values.map(text).join(", ");
}
