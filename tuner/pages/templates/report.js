"use strict";
// Strings from records only ever become text nodes; nothing is parsed as HTML.

function h(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

async function inflated(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

// Tables: a click on a heading sorts, once more the other way round.

function valueOf(cell) {
  const given = cell.dataset.v ?? cell.textContent;
  const number = Number(given);
  return given.trim() !== "" && !Number.isNaN(number) ? number : given.toLowerCase();
}

function sortBy(table, column) {
  const heading = table.tHead.rows[0].cells[column];
  const first = column ? "descending" : "ascending";
  const other = column ? "ascending" : "descending";
  const direction = heading.getAttribute("aria-sort") === first ? other : first;
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows].map((row) => [valueOf(row.cells[column]), row]);
  rows.sort(([a], [b]) => {
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return sign * (a < b ? -1 : a > b ? 1 : 0);
  });
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    cell.tabIndex = 0;
    cell.addEventListener("click", () => sortBy(table, column));
    cell.addEventListener("keydown", (event) => { if (event.key === "Enter") sortBy(table, column); });
  });
}

function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of document.querySelectorAll("#kernel-table tbody tr")) {
    const content = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => content.includes(word));
    shown += !row.hidden;
  }
  document.getElementById("found").textContent = `${shown} kernels`;
}

// Plots: figures of Bokeh that are filled with a kernel's data; its script starts with the first.

let bokeh = null;

function started() {
  bokeh ??= (async () => {
    const [library, figures] = await Promise.all([inflated("data-library"), inflated("data-figures")]);
    const script = document.createElement("script");
    script.nonce = document.querySelector("script[nonce]").nonce;
    script.textContent = library;
    document.head.append(script);
    return figures;
  })();
  return bokeh;
}

function fill(value, data) {
  if (Array.isArray(value)) { value.forEach((item) => fill(item, data)); return; }
  if (value === null || typeof value !== "object") return;
  if (value.name === "ColumnDataSource" && data[value.attributes?.name]) {
    const columns = Object.entries(data[value.attributes.name]);
    value.attributes.data = { type: "map", entries: columns };
    return;
  }
  Object.values(value).forEach((item) => fill(item, data));
}

async function plot(place, name, data) {
  if (!document.getElementById("data-library").textContent) {
    place.textContent = "No plots: the page was made without the library that draws them (pip install bokeh).";
    return;
  }
  const style = getComputedStyle(document.documentElement);
  const colors = { "#010101": style.getPropertyValue("--dim").trim(), "#020202": style.getPropertyValue("--line").trim() };
  const text = (await started()).replace(/#010101|#020202/g, (found) => colors[found]);
  const item = JSON.parse(text)[name];
  fill(item, data);
  if (!place.isConnected) return;
  item.target_id = null;
  await Bokeh.embed.embed_item(item, place);
  place.dataset.drawn = name;
}

// A kernel, opened.

function table(headings, rows, classes) {
  const cell = (content) => (content instanceof Node ? h("td", {}, content) : h("td", String(content).length > 40 ? { class: "text" } : {}, String(content)));
  const body = rows.map((row, number) => h("tr", { class: classes?.[number] ?? "" }, row.map(cell)));
  return h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, headings.map((name) => h("th", {}, name)))), h("tbody", {}, body)));
}

function range(item, end) {
  if (item.ratio === null) return item.failed || "reference";
  const at = (value) => (100 * Math.min(value, end)) / end;
  return svg("svg", { class: "range", viewBox: "0 0 100 10", preserveAspectRatio: "none" },
    svg("rect", { x: at(item.low), y: 3, width: Math.max(0.8, at(item.high) - at(item.low)), height: 4 }),
    svg("rect", { class: "one", x: at(1), y: 0, width: 0.6, height: 10 }));
}

function finalists(items) {
  if (!items.length) return [h("p", { class: "dim" }, "No finalists were compared yet.")];
  const end = 1.05 * Math.max(1, ...items.map((item) => item.high ?? 1));
  const rows = items.map((item) => [
    `${item.sketch} ${item.schedule}${item.won ? " (applied)" : ""}`,
    item.ratio === null ? "-" : `${item.ratio.toFixed(3)} (${item.low.toFixed(3)} to ${item.high.toFixed(3)})`,
    range(item, end), item.processes, item.pairs, item.choices]);
  return [table(["schedule", "time / default (95 %)", "", "processes", "pairs", "choices"], rows, items.map((item) => (item.won ? "won" : "")))];
}

function roofline(roof) {
  const bars = roof.bars.map(([name, seconds, text]) =>
    h("div", {}, h("i", { style: `width:${(45 * seconds) / roof.most}%` }), `${name}: ${text}`));
  return [h("div", { class: "bars" }, bars), h("p", { class: "dim" }, roof.note), h("div", { class: "plot", "data-plot": "roof" })];
}

function failures(items) {
  if (!items.length) return [h("p", { class: "dim" }, "No candidate failed.")];
  return items.map((item) => h("details", {},
    h("summary", {}, `${item.count} ${item.status}: ${item.reason}`), h("p", {}, item.example), h("pre", {}, item.error)));
}

function detailsOf(data) {
  const back = h("p", {}, h("a", { href: "#kernels" }, "back to the table"));
  const facts = h("dl", { class: "facts" }, data.facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  const schedule = data.schedule
    ? [h("p", {}, `${data.schedule.sketch}: ${data.schedule.choices}`), h("details", {}, h("summary", {}, `${data.schedule.steps.length} steps, schedule ${data.schedule.hash}`), h("pre", {}, data.schedule.steps.join("\n")))]
    : [];
  return [
    back, h("h3", {}, data.nodes, " ", h("small", {}, data.gain)),
    h("div", { class: "pair" }, h("div", {}, facts), data.roof ? h("div", {}, h("h4", {}, "Time against the roofline"), roofline(data.roof)) : null),
    h("h4", {}, "Latency over trials"), h("div", { class: "plot", "data-plot": "trials" }),
    h("h4", {}, "Finalists"), finalists(data.finalists),
    h("h4", {}, "Applied schedule"), schedule, h("p", { class: "dim" }, "Its code: ", h("code", {}, data.inspect)),
    h("h4", {}, "Fastest trials of the search"), table(["latency", "sketch", "choices"], data.fastest),
    h("h4", {}, "Why candidates failed"), failures(data.failures),
  ].flat();
}

function plotted(data) {
  const micro = (group) => ({ ...group, y: group.y.map((seconds) => 1e6 * seconds) });
  const trials = { line: micro(data.trials.line) };
  for (const [kind, group] of Object.entries(data.trials.points)) trials[kind] = micro(group);
  return { trials, roof: data.roof?.plot };
}

let opened = 0;

async function open(anchor) {
  const place = document.getElementById("kernel");
  const turn = ++opened;
  const data = JSON.parse(await inflated(`data-${anchor}`));
  if (turn !== opened) return;
  place.replaceChildren(...detailsOf(data).filter(Boolean));
  place.hidden = false;
  place.dataset.kernel = anchor;
  place.scrollIntoView({ block: "start" });
  const figures = plotted(data);
  for (const part of place.querySelectorAll("[data-plot]")) await plot(part, part.dataset.plot, figures[part.dataset.plot]);
  if (turn === opened) place.dataset.complete = anchor;
}

function follow() {
  const anchor = location.hash.slice(1);
  if (/^k\d+$/.test(anchor) && document.getElementById(`data-${anchor}`)) open(anchor);
}

document.querySelectorAll("table.sortable").forEach(makeSortable);
document.getElementById("search").addEventListener("input", (event) => search(event.target.value));
window.addEventListener("hashchange", follow);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", follow); // plots have colours of their own
follow();
document.documentElement.dataset.interactive = Math.round(performance.now());
