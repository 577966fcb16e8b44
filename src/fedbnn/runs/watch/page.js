// Asks for the standing of the run every two seconds and shows it. Names are anybody's: they only ever become text.
"use strict";

const SCORES = {
  own_class_accuracy: ["own-class accuracy", true], all_class_accuracy: ["all-class accuracy", true],
  nll: ["NLL", false], brier: ["Brier score", false], ece: ["ECE", false], mce: ["MCE", false],
  all_class_nll: ["all-class NLL", false],
  rmse: ["RMSE", false], mae: ["MAE", false], crps: ["CRPS", false], coverage_90: ["coverage", true],
  width_90: ["width", false],
};
const EVERY = 2000;
const SERIES = 7;
let shown = "own_class_accuracy";
let latest = [];

const at = (id) => document.getElementById(id);

function make(tag, words = "", style = "") {
  const element = document.createElement(tag);
  element.textContent = words;
  if (style) element.className = style;
  return element;
}

function draw(parent, tag, style, attributes, words = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  element.setAttribute("class", style);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = words;
  parent.append(element);
  return element;
}

const percent = (score) => SCORES[score][1];
const number = (value, score) =>
  value == null ? "–" : percent(score) ? `${(100 * value).toFixed(1)} %` : value.toFixed(3);

function time(seconds) {
  if (seconds < 99.5) return `${seconds.toFixed(seconds < 9.95 ? 1 : 0)} s`;
  return seconds < 5970 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function bytes(count) {
  for (const unit of ["B", "kB", "MB"]) {
    if (count < 1000) return `${unit === "B" ? count : count.toFixed(1)} ${unit}`;
    count /= 1000;
  }
  return `${count.toFixed(1)} GB`;
}

function titleOf(run) {
  return run.method ? `${run.method} on ${run.data}, seed ${run.seed}` : run.name;
}

function progress(run) {
  const row = make("div", "", "run");
  row.dataset.run = run.name;
  const label = make("div", run.method || run.name);
  label.append(" ", make("span", run.state, `state ${run.state}`));
  const bar = make("progress");
  bar.max = run.rounds + 1;
  bar.value = run.state === "finished" ? bar.max : run.round_number + 1;
  bar.setAttribute("aria-label", `rounds of ${run.name}`);
  const held = run.round_number < 0 ? (run.rounds ? "warm-up" : "not begun")
    : `round ${run.round_number} of ${run.rounds}`;
  const left = run.left == null ? "" : `, about ${time(run.left)} left`;
  row.append(label, bar, make("div", held + left, "round"));
  const facts = Object.keys(SCORES).filter((score) => run.curve[score] && run.curve[score].length).slice(0, 5)
    .map((score) => `${SCORES[score][0]} ${number(run.curve[score].at(-1), score)}`);
  if (run.rounds) facts.push(`${run.clients.length} clients`, `${time(run.seconds)} of computing`);
  row.append(make("div", facts.join(" · "), "facts"));
  if (run.problem) row.append(make("div", run.problem, "problem"));
  return row;
}

function ticks(low, high) {
  const rough = (high - low) / 5 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((by) => by * power).find((by) => by >= rough);
  const found = [];
  for (let tick = Math.floor(low / step); tick <= Math.ceil(high / step); tick++) found.push(tick * step);
  return found;
}

function chart(runs) {
  const width = 900, height = 300, left = 60, right = 884, top = 12, bottom = 262;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  const curves = runs.map((run) => (run.curve.round || [])
    .map((round, index) => [round, (run.curve[shown] || [])[index]]).filter(([, value]) => value != null));
  const values = curves.flat().map(([, value]) => value);
  const ends = runs.map((run, index) => curves[index].length
    ? `${titleOf(run)} ${number(curves[index].at(-1)[1], shown)}` : "").filter(Boolean);
  svg.setAttribute("aria-label", `${SCORES[shown][0]} by round. ${ends.join("; ") || "No values yet"}.`);
  const marks = values.length ? ticks(Math.min(...values), Math.max(...values)) : ticks(0, 1);
  const rounds = Math.max(1, ...runs.map((run) => run.rounds));
  const x = (round) => left + (round / rounds) * (right - left);
  const y = (value) => bottom - ((value - marks[0]) / (marks.at(-1) - marks[0] || 1)) * (bottom - top);
  for (const mark of marks) {
    draw(svg, "line", "gridline", { x1: left, x2: right, y1: y(mark), y2: y(mark) });
    draw(svg, "text", "tick", { x: left - 8, y: y(mark) + 4, "text-anchor": "end" },
      percent(shown) ? `${Math.round(1000 * mark) / 10} %` : String(Math.round(1000 * mark) / 1000));
  }
  draw(svg, "line", "axis", { x1: left, x2: right, y1: bottom, y2: bottom });
  for (const round of ticks(0, rounds).filter((one) => Number.isInteger(one) && one <= rounds)) {
    draw(svg, "text", "tick", { x: x(round), y: bottom + 20, "text-anchor": "middle" }, String(round));
  }
  draw(svg, "text", "label", { x: (left + right) / 2, y: height - 4, "text-anchor": "middle" }, "round");
  curves.forEach((points, index) => {
    const style = `s${index % SERIES}`;
    const path = points.map(([round, value]) => `${x(round).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    draw(svg, "polyline", `curve ${style}`, { points: path });
    for (const [round, value] of points) {
      const dot = draw(svg, "circle", `dot ${style}`, { cx: x(round), cy: y(value), r: 3 });
      draw(dot, "title", "", {}, `${titleOf(runs[index])}, round ${round}: ${number(value, shown)}`);
    }
  });
  at("chart").replaceChildren(svg);
  at("legend").replaceChildren(...(runs.length > 1
    ? runs.map((run, index) => make("li", titleOf(run), `s${index % SERIES}`)) : []));
}

function clients(runs) {
  const running = runs.find((run) => run.state === "running");
  const run = running || runs.findLast((one) => one.clients.length) || runs[0];
  at("clients-section").hidden = !run.clients.length;
  const table = make("table");
  const head = make("tr");
  const scores = run.curve.crps ? ["rmse", "crps", "nll", "coverage_90"]
    : ["own_class_accuracy", "all_class_accuracy", "nll", "ece"];
  for (const words of ["client", ...scores.map((one) => SCORES[one][0]), "sent", "received", "last turn", "round"]) {
    const cell = make("th", words);
    cell.scope = "col";
    head.append(cell);
  }
  table.createTHead().append(head);
  const body = table.createTBody();
  for (const client of run.clients) {
    const row = make("tr");
    const name = make("td", client.name);
    if (client.rejected) name.append(" ", make("span", `reply not let in: ${client.rejected}`, "rejected"));
    const unscored = run.curve.round.length > 0 && client.nll == null;
    row.append(name, ...scores.map((score) => make("td", unscored ? "unscored" : number(client[score], score))));
    row.append(...["bytes_up", "bytes_down"].map((way) => make("td", client[way] == null ? "–" : bytes(client[way]))));
    row.append(make("td", client.seconds == null ? "–" : time(client.seconds)), make("td", String(client.round)));
    body.append(row);
  }
  const caption = runs.length > 1 ? [make("p", titleOf(run), "kicker")] : [];
  at("clients").replaceChildren(...caption, table);
}

// Only scores that a run has are offered: those of classification, or those of regression.
function offer(runs) {
  const told = Object.keys(SCORES).filter((score) => runs.some((run) => run.curve[score]));
  if (!told.length) return;
  if (!told.includes(shown)) shown = told.includes("crps") ? "crps" : told[0];
  for (const option of at("score").options) option.hidden = !told.includes(option.value);
  at("score").value = shown;
}

function show(runs) {
  latest = runs;
  const states = runs.map((run) => run.state);
  const waiting = states.every((state) => state === "waiting");
  const title = runs.length > 1 ? `${runs.length} runs` : titleOf(runs[0]);
  at("title").textContent = title;
  const active = states.includes("running") ? "running" : states.every((one) => one === "finished") ? "finished" : "";
  document.title = `${active ? `${active}: ` : ""}${title}`;
  const done = states.filter((state) => state === "finished").length;
  at("status").className = "";
  at("status").textContent = waiting ? "nothing is there yet: waiting for the run to begin"
    : runs.length > 1 ? `${done} of ${runs.length} runs are finished` : `the run is ${states[0]}`;
  document.body.dataset.state = waiting ? "waiting" : active || "unfinished";
  document.querySelector("main").hidden = waiting && runs.length === 1;
  at("runs").replaceChildren(...runs.map(progress));
  offer(runs);
  chart(runs);
  clients(runs);
  const notes = runs.flatMap((run) => run.notes.map((note) => (runs.length > 1 ? `${run.name}: ${note}` : note)));
  at("notes-section").hidden = !notes.length;
  at("notes").replaceChildren(...notes.map((note) => make("li", note)));
}

let before = "";
async function ask() {
  try {
    const answer = await fetch("standing.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    const text = await answer.text();
    if (text !== before) show(JSON.parse(text));
    else if (at("status").className) show(latest);
    before = text;
  } catch {
    at("status").className = "lost";
    at("status").textContent = "fedbnn watch no longer answers; what is shown is the last it told";
  }
  setTimeout(ask, EVERY);
}

for (const [score, [words]] of Object.entries(SCORES)) {
  const option = make("option", words);
  option.value = score;
  at("score").append(option);
}
at("score").addEventListener("change", (event) => { shown = event.target.value; chart(latest); });
ask();
