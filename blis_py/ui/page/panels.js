// What is shown of an answer: verdict, figures, charts, classes, points, ledger, comparison.

import { bars } from "./bars.js";
import { draw } from "./chart.js";
import { element, number } from "./format.js";

const at = (id) => document.getElementById(id);

export function verdict(answer) {
  const box = at("verdict");
  box.className = `verdict ${answer.verdict.tone}`;
  const list = answer.findings.map((one) => element("li", {}, element("span", { class: one.tone }, one.text)));
  box.replaceChildren(element("strong", {}, answer.verdict.text), ...(list.length ? [element("ul", {}, ...list)] : []));
}

export function refused(text) {
  const box = at("verdict");
  box.className = "verdict bad";
  box.replaceChildren(element("strong", {}, text));
}

export function label(answer, busy) {
  const host = at("label");
  host.className = `label ${answer.kind}${busy ? " busy" : ""}`;
  host.textContent = answer.label;
}

export function tiles(answer, pinned) {
  const before = new Map((pinned?.tiles ?? []).map((one) => [one.name, one]));
  at("tiles").replaceChildren(
    ...answer.tiles.map((one) => {
      const then = before.get(one.name);
      const parts = [one.text, one.unit ? element("small", {}, ` ${one.unit}`) : null];
      if (one.band) parts.push(element("span", { class: "expected" }, `whole run: ${number(one.band[0])} to ${number(one.band[1])}`));
      if (then && then.text !== one.text) parts.push(element("small", { class: "expected" }, `pinned: ${then.text}`));
      return element("div", { class: "tile" }, element("dt", {}, one.name), element("dd", { "data-source": one.source, "data-value": one.value ?? "" }, ...parts));
    }),
  );
}

function figures(host, specs) {
  if (host.firstElementChild?.tagName === "P") host.replaceChildren();
  while (host.children.length < specs.length) host.append(element("figure"));
  while (host.children.length > specs.length) host.lastChild.remove();
  specs.forEach((spec, index) => draw(host.children[index], spec, { height: 210 }));
}

export function charts(answer, pinned) {
  const own = answer.distributions.map((spec) => {
    const before = pinned?.distributions.find((one) => one.title === spec.title);
    const then = before?.series.find((one) => one.name === "all requests");
    return then ? { ...spec, series: [...spec.series, { ...then, name: "pinned", dashed: true, colour: 9 }] } : spec;
  });
  figures(at("distributions"), own);
  states(answer);
}

// Of a large whole run they come later; those of its sample would be of something else.
export function states(answer) {
  if (answer.over_time.length) figures(at("over-time"), answer.over_time);
  else at("over-time").replaceChildren(element("p", { class: "nothing" }, "Follows in a moment."));
}

export function classes(answer, columns) {
  const names = { requests: "requests", ...columns };
  const head = element("tr", {}, element("th", { scope: "col" }, "SLO class"), ...Object.values(names).map((name) => element("th", { scope: "col" }, name)));
  const rows = answer.classes.map((one) => element("tr", {}, element("th", { scope: "row" }, one.name), ...Object.keys(names).map((key) => element("td", {}, number(one[key])))));
  at("classes").replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}

export function again(answer) {
  at("command").textContent = answer.command;
  at("yaml").textContent = answer.yaml;
  at("capacity").textContent = answer.capacity;
}

const AXES = { throughput: "output tokens/s", dollars: "dollars an hour" };

// `latency` is an entry of `axes`: key, label, unit.
export function points(groups, across, latency, choose) {
  const up = latency.key;
  const usable = (one) => Number.isFinite(one[across] ?? NaN) && Number.isFinite(one[up] ?? NaN);
  const series = groups
    .map((group) => ({ ...group, points: group.points.filter(usable) }))
    .filter((group) => group.points.length)
    .map((group) => ({
      name: group.name, kind: group.line ? "line" : "points", always: true, colour: group.colour, r: group.r,
      x: group.points.map((one) => one[across]), y: group.points.map((one) => one[up]),
      names: group.points.map((one) => `${one.name ?? group.name}: ${number(one[across])} ${AXES[across]}, ${latency.label} ${number(one[up])} ${latency.unit}`.trimEnd()),
      hollow: group.points.map((one) => one.saturated), keys: group.line || !group.points[0].state ? null : group.points.map((one) => one.state),
    }));
  const best = frontier(groups.filter((group) => !group.line).flatMap((group) => group.points).filter((one) => usable(one) && !one.saturated), across, up);
  if (best.length > 1) series.push({ name: "frontier", kind: "line", dashed: true, colour: 6, x: best.map((one) => one[across]), y: best.map((one) => one[up]) });
  draw(at("points"), {
    title: `${latency.label} against ${AXES[across]}`, x: { label: AXES[across] }, y: { label: latency.unit, log: true }, series, height: 280,
    note: "Filled: keeps up; hollow: saturated. Points of earlier configurations and of the plan can be chosen.",
    nothing: "After the whole run.",
  }, { onPoint: choose, height: 280 });
}

// Points that no other one beats in both: more throughput (or fewer dollars), and a lower latency.
export function frontier(all, across, up) {
  const sign = across === "dollars" ? 1 : -1;
  const order = [...all].sort((a, b) => sign * (a[across] - b[across]) || a[up] - b[up]);
  let least = Infinity;
  const best = order.filter((one) => one[up] < least && ((least = one[up]), true));
  return best.sort((a, b) => a[across] - b[across]);
}

export function ledger(found) {
  const host = at("ledger");
  if (found.chart) bars(host, found.chart);
  else host.replaceChildren(element("p", { class: "nothing" }, found.nothing ?? found.refused ?? found.failed ?? ""));
}

export function compared(found) {
  const host = at("compared");
  if (!found.compared) {
    host.replaceChildren(element("p", { class: "nothing" }, `Not runs of the same requests, so requests cannot be paired: ${found.refused ?? found.failed}`));
    return;
  }
  const percent = (share) => (share === null ? "–" : Math.abs(share) < 0.0005 ? "=" : `${share > 0 ? "+" : "−"}${Math.abs(100 * share).toFixed(1)} %`);
  const sure = (one) => (one.relative === 0 ? "the same" : one.sure === null ? "too few to tell" : one.sure ? "sure" : "could be chance");
  const rows = Object.entries(found.compared).flatMap(([metric, figures]) =>
    ["p50", "p99"].map((stat) => {
      const one = figures[stat];
      const interval = one.interval ? `${percent(one.interval[0])} … ${percent(one.interval[1])}` : "";
      const tone = one.sure && one.relative ? (one.relative < 0 ? "good" : "bad") : "";
      const cells = [number(one.first), number(one.second), element("span", { class: tone }, percent(one.relative)), interval, sure(one)];
      return element("tr", {}, element("th", { scope: "row" }, found.headings[`${metric}.${stat}`]), ...cells.map((cell) => element("td", {}, cell)));
    }),
  );
  const head = ["latency", "pinned", "now", "change", "95 % interval", "sure?"].map((name) => element("th", { scope: "col" }, name));
  const settings = found.settings.map((one) => `${one.key}: ${one.values.map((value) => value ?? "as given").join(" → ")}`).join("; ");
  host.replaceChildren(element("p", {}, settings || "The same settings."), element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)));
}
