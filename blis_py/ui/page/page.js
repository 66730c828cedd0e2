// The page: settings are moved, a sample answers at once, the whole run follows when the hand rests.

import { Controls, changed, value } from "./controls.js";
import { copied } from "./copy.js";
import { element } from "./format.js";
import { History } from "./history.js";
import { Latest, job } from "./jobs.js";
import * as show from "./panels.js";
import { Planner } from "./plan.js";
import { themed } from "./theme.js";

const REST_MS = 80;
const at = (id) => document.getElementById(id);
const page = { controls: null, axes: [], columns: {}, answer: null, pinned: null, visited: new Map(), candidates: new Map(), curve: {}, ofState: "" };
let resting = 0;

const keyOf = (state) => JSON.stringify(state);
const current = (state) => keyOf(state) === keyOf(moves.state);
const shown = (state) => page.answer?.kind === "whole" && page.ofState === keyOf(state);

const samples = new Latest(async (state) => {
  const answer = await job("sample", { state });
  if (answer.superseded || !current(state) || shown(state)) return;
  put(answer, state, answer.kind === "sample");
});

const wholes = new Latest(async (state) => {
  if (!current(state)) return;
  const answer = shown(state) ? page.answer : await job("whole", { state });
  if (answer.superseded || !current(state) || !put(answer, state, false)) return;
  visited(state, answer);
  more.want(state);
});

// In a turn of their own: the next whole run waits for none of them.
const more = new Latest(async (state, latest) => {
  const still = () => current(state) && latest();
  if (page.pinned && still()) {
    const found = await job("compare", { state, pinned: page.pinned.state });
    if (!found.superseded && current(state)) show.compared(found);
  }
  const steps = [
    ...(page.answer.over_time.length ? [] : [["states", (found) => { page.answer.over_time = found.over_time ?? []; show.states(page.answer); }]]),
    ["ledger", (found) => show.ledger(found)], ["curve", (found) => { page.curve = found; points(); }],
  ];
  for (const [kind, put] of steps) {
    if (!still()) return;
    const found = await job(kind, { state });
    if (!found.superseded && current(state)) put(found);
  }
});

// The whole run begins as soon as the hand rests, beside the sample: two processes.
function simulate(state) {
  if (page.answer) at("label").classList.add("stale"); // until the next answer; seen on slow machines
  samples.want(state);
  clearTimeout(resting);
  resting = setTimeout(() => wholes.want(state), REST_MS);
}

const moves = new History((state) => {
  page.controls?.show(state);
  page.curve = {};
  simulate(state);
  tools();
});

function put(answer, state, busy) {
  if (answer.refused || answer.failed) {
    show.refused(answer.refused ?? answer.failed);
    at("label").className = "label";
    at("label").textContent = "Not simulated: what is below is of the configuration before.";
    return false;
  }
  page.answer = answer;
  page.ofState = keyOf(state);
  show.label(answer, busy);
  show.verdict(answer);
  show.tiles(answer, page.pinned?.answer);
  show.charts(answer, page.pinned?.answer);
  show.classes(answer, page.columns);
  show.again(answer);
  points();
  tools();
  performance.mark(`drawn-${answer.kind}`);
  document.body.dataset.drawn = answer.kind;
  document.body.dataset.state = page.ofState;
  return true;
}

function visited(state, answer) {
  page.visited.set(keyOf(state), { ...answer.point, state, name: named(state) });
  points();
}

function named(state) {
  const moved = { ...state.settings, ...state.pools };
  const words = Object.entries(moved).map(([key, value]) => `${key.split(".").pop()} ${value}`);
  return words.join(", ") || "as opened";
}

function points() {
  const now = page.answer ? [{ ...page.answer.point, name: "now" }] : [];
  show.points([
    { name: page.curve.sampled ? "other rates (samples)" : "other rates", line: true, colour: 5, points: [...(at("x").value === "throughput" ? page.curve.points ?? [] : [])].sort((a, b) => a[at("x").value] - b[at("x").value]) },
    { name: "plan: holds", colour: 2, points: [...page.candidates.values()].filter((one) => one.holds) },
    { name: "plan: misses", colour: 1, points: [...page.candidates.values()].filter((one) => !one.holds) },
    { name: "looked at before", colour: 6, points: [...page.visited.entries()].filter(([key]) => key !== page.ofState).map(([, one]) => one) },
    ...(page.pinned ? [{ name: "pinned", colour: 9, r: 7, points: [{ ...page.pinned.answer.point, state: page.pinned.state }] }] : []),
    { name: "now", colour: 0, r: 7, points: now },
  ], at("x").value, page.axes[at("y").selectedIndex], (state) => moves.set(state));
}

function tools() {
  at("undo").disabled = !moves.past.length;
  at("redo").disabled = !moves.future.length;
  at("pin").disabled = at("report").disabled = page.answer === null;
  at("pin").textContent = page.pinned ? "Unpin" : "Pin";
}

function pin() {
  page.pinned = page.pinned ? null : { state: structuredClone(moves.state), answer: page.answer };
  at("pinned-section").hidden = !page.pinned;
  at("compared").replaceChildren("Move a setting to compare.");
  put(page.answer, moves.state, page.answer.kind === "sample");
}

async function report() {
  const button = at("report");
  button.disabled = true;
  button.textContent = "Writing…";
  const found = await job("report", { state: moves.state });
  button.textContent = "Download report";
  button.disabled = false;
  if (!found.html) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([found.html], { type: "text/html" }));
  link.download = "report.html";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const planner = new Planner(
  (one) => { page.candidates.set(keyOf([one.settings, one.pools]), one); points(); },
  (state) => moves.set(state),
);
planner.state = () => moves.state;

async function start() {
  themed(at("theme"));
  at("undo").addEventListener("click", () => moves.undo());
  at("redo").addEventListener("click", () => moves.redo());
  at("pin").addEventListener("click", pin);
  at("report").addEventListener("click", report);
  at("link").addEventListener("click", () => copied(at("link"), location.href));
  at("copy-command").addEventListener("click", () => copied(at("copy-command"), at("command").textContent));
  at("copy-yaml").addEventListener("click", () => copied(at("copy-yaml"), at("yaml").textContent));
  addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z" || event.target.type === "text") return;
    event.preventDefault();
    event.shiftKey ? moves.redo() : moves.undo();
  });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width && page.answer) { show.charts(page.answer, page.pinned?.answer); points(); }
    width = innerWidth;
  });
  const found = await job("start", { state: {} });
  if (found.refused || found.failed) return show.refused(found.refused ?? found.failed);
  page.axes = found.axes;
  page.columns = found.columns;
  at("y").replaceChildren(...found.axes.map((one) => element("option", { value: one.key }, one.label)));
  for (const id of ["x", "y"]) at(id).addEventListener("change", points);
  page.controls = new Controls(at("controls"), found.controls, (control, next) => {
    const before = value(moves.state, control);
    if (JSON.stringify(before) !== JSON.stringify(next)) moves.change(changed(moves.state, control, next), control.key);
  });
  page.controls.show(moves.state);
  planner.vary(found.has_pools);
  simulate(moves.state);
}

start();
