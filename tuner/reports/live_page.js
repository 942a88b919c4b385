"use strict";
// Asks for the state every two seconds and shows it. Names are set as text, never as HTML.
const EVERY = 2000;
let chosen = null; // the job that was clicked; null: whichever runs
const part = (id) => document.getElementById(id);

function seconds(value) {
  if (value === null || value === undefined) return "-";
  for (const [unit, scale] of [["s", 1], ["ms", 1e3], ["µs", 1e6]])
    if (value * scale >= 1) return `${Number((value * scale).toPrecision(4))} ${unit}`;
  return `${Number((value * 1e9).toPrecision(4))} ns`;
}

function latency(value, low, high) {
  const known = low !== null && high !== null && low < high;
  return seconds(value) + (known ? ` (${seconds(low)} to ${seconds(high)})` : "");
}

function duration(value) {
  if (value === null) return "-";
  const total = Math.round(value), pad = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(total / 3600), minutes = Math.floor(total / 60) % 60;
  return hours ? `${hours}:${pad(minutes)}:${pad(total % 60)}` : `${minutes}:${pad(total % 60)}`;
}

const ratio = (value) => (value === null ? "-" : `${value.toFixed(2)}x`);

function row(cells) {
  const made = document.createElement("tr");
  for (const cell of cells) {
    const place = document.createElement("td");
    if (cell instanceof Node) place.append(cell);
    else place.textContent = String(cell);
    made.append(place);
  }
  return made;
}

function choose(job) {
  const button = document.createElement("button");
  button.textContent = job.job.slice(0, 8);
  button.addEventListener("click", () => { chosen = job.job; refresh(); });
  return button;
}

function jobRow(job, shown) {
  const state = job.phase || job.state;
  const made = row([choose(job), job.model, state, duration(job.seconds), duration(job.seconds_left),
    job.trials, seconds(job.model_untuned_seconds), seconds(job.model_tuned_seconds), job.model_gain ?? "-",
    seconds(job.untuned_seconds), latency(job.expected_seconds, job.low_seconds, job.high_seconds)]);
  made.classList.toggle("shown", job.job === shown);
  made.classList.toggle("lost", job.state === "lost" || job.state === "failed");
  return made;
}

function kernelName(task) {
  const place = document.createElement("span"), kernel = document.createElement("small");
  place.append(task.nodes || task.kernel);
  kernel.textContent = [task.nodes ? task.kernel : "", task.sizes ? `at ${task.sizes}` : ""].filter(Boolean).join(" ");
  place.append(" ", kernel);
  return place;
}

function kernelRow(task) {
  const made = row([kernelName(task), task.occurrences,
    task.trials, task.failures, task.scattered, seconds(task.default_seconds),
    latency(task.best_seconds, task.low_seconds, task.high_seconds), ratio(task.speed_up), task.ended]);
  made.lastElementChild.classList.add("text");
  return made;
}

function svg(tag, attributes, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  return node;
}

// The best latency so far, as the server has placed it.
function drawCurve(curve) {
  const place = part("best");
  place.hidden = !curve;
  place.querySelector("svg")?.remove();
  if (!curve) return;
  const drawing = svg("svg", { viewBox: `0 0 ${curve.width} ${curve.height}`, role: "img", "aria-label": "expected sum of kernels over time" });
  for (const mark of curve.y) {
    drawing.append(svg("path", { class: "grid", d: `M${curve.left} ${mark.at}H${curve.right}` }));
    drawing.append(svg("text", { x: curve.left - 6, y: mark.at + 4, "text-anchor": "end" }, mark.text));
  }
  for (const mark of curve.x)
    drawing.append(svg("text", { x: mark.at, y: curve.bottom + 18, "text-anchor": "middle" }, mark.text));
  drawing.append(svg("path", { class: "axes", d: `M${curve.left} 0V${curve.bottom}H${curve.right}` }));
  drawing.append(svg("path", { class: "line", d: curve.path }));
  place.prepend(drawing);
  place.querySelector("figcaption").textContent = curve.caption;
}

function headlineOf(job) {
  const sum = job.speed_up === null ? "" : `: sum of kernels expected ${ratio(job.speed_up)} as fast as untuned`;
  const gain = job.model_gain === null ? sum : `: whole model ${job.model_gain}`;
  return `${job.model}, ${job.phase || job.state}${gain}`;
}

function show(state) {
  part("database").textContent = state.database;
  const job = state.jobs.find((one) => one.job === state.job);
  part("jobs").tBodies[0].replaceChildren(...state.jobs.map((one) => jobRow(one, state.job)));
  const cost = (task) => -(task.occurrences * (task.best_seconds ?? 0));
  const kernels = [...state.kernels].sort((a, b) => cost(a) - cost(b));
  part("kernels").tBodies[0].replaceChildren(...kernels.map(kernelRow));
  part("title").textContent = job ? headlineOf(job) : "No job yet";
  drawCurve(state.curve);
  part("line").textContent = job
    ? `${job.trials} trials (${job.failures} failed, ${job.scattered} too noisy), `
      + `${job.kernels_measured} of ${job.kernels} kernels measured, ${duration(job.seconds)} elapsed`
      + (job.seconds_left === null ? "" : `, at most ${duration(job.seconds_left)} left`)
    : "";
  const bar = part("bar");
  bar.hidden = !job || job.seconds_left === null;
  if (!bar.hidden) bar.value = job.seconds / (job.seconds + job.seconds_left || 1);
}

async function refresh() {
  try {
    const answer = await fetch("state.json" + (chosen ? `?job=${encodeURIComponent(chosen)}` : ""));
    if (!answer.ok) throw new Error(await answer.text());
    show(await answer.json());
    part("said").textContent = `updated ${new Date().toLocaleTimeString()}, every 2 s`;
  } catch (error) {
    part("said").textContent = `no answer: ${error.message}`;
  }
}

refresh().then(() => { document.documentElement.dataset.interactive = "yes"; });
setInterval(() => { if (!document.hidden) refresh(); }, EVERY);
