// A chart as inline SVG from a specification: title, axes, series (lines, steps, areas, points, bands), limits.
//
// Arrow keys or the pointer move a cursor, whose values stand below the chart; points can be chosen.

import { element, number, tick } from "./format.js";
import { logTicks, scale, ticks } from "./scale.js";

const SPACE = "http://www.w3.org/2000/svg";
const LEFT = 52, RIGHT = 14, TOP = 10, BOTTOM = 38;

function svg(name, attributes, text) {
  const made = document.createElementNS(SPACE, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  return made;
}

export function draw(host, spec, options = {}) {
  const width = options.width ?? Math.max(host.clientWidth || 480, 240);
  const height = options.height ?? spec.height ?? 230;
  const shown = spec.series.filter((one) => one.x.length);
  host.replaceChildren();
  host.classList.add("chart");
  host.append(element("figcaption", {}, spec.title));
  if (!shown.length) {
    host.append(element("p", { class: "nothing" }, spec.nothing || "Nothing to draw."));
    return;
  }
  if (shown.length > 1 || shown[0].always) host.append(legend(shown));
  const axes = frame(spec, shown, width, height);
  const root = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "group", "aria-roledescription": "chart",
    "aria-label": described(spec, shown),
  });
  root.append(grid(spec, axes, width, height));
  shown.forEach((one, index) => root.append(series(one, index, axes, options)));
  for (const limit of spec.limits ?? []) root.append(limitLine(limit, axes, width, height));
  const readout = element("p", { class: "readout", "aria-live": "polite" });
  host.append(root, readout);
  if (spec.note) host.append(element("p", { class: "note" }, spec.note));
  cursor(root, readout, spec, shown, axes, height);
}

function legend(shown) {
  const keys = shown.map((one, index) => {
    const mark = svg("svg", { width: 24, height: 10, "aria-hidden": "true" });
    const look = one.kind === "points" ? ["circle", { cx: 12, cy: 5, r: 4 }] : ["line", { x1: 0, y1: 5, x2: 24, y2: 5 }];
    mark.append(svg(look[0], { ...look[1], class: `${one.kind === "points" ? "point" : "line"} s${one.colour ?? index}` }));
    return element("li", {}, mark, ` ${one.name}`);
  });
  return element("ul", { class: "legend" }, ...keys);
}

function extent(values, log) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value === null || !Number.isFinite(value) || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [log ? 0.1 : 0, 1];
}

function frame(spec, shown, width, height) {
  const { x, y } = spec;
  const limits = spec.limits ?? [];
  let [left, right] = extent([...shown.flatMap((one) => one.x), ...limits.filter((one) => one.x && !one.far).map((one) => one.x)], x.log);
  const heights = shown.flatMap((one) => [...one.y, ...(one.low ?? []), ...(one.high ?? [])]);
  let [bottom, top] = extent([...heights, ...limits.filter((one) => one.y).map((one) => one.y)], y.log);
  if (!y.log) bottom = Math.min(bottom, y.from ?? 0);
  if (y.log) [bottom, top] = [bottom / 1.12, top * 1.12];
  top = y.to ?? (y.log ? top : bottom + (top - bottom) * 1.06);
  if (x.from !== undefined) left = x.from;
  if (x.log && right / left < 1.2) [left, right] = [left / 1.5, right * 1.5];
  if (!x.log && x.from !== undefined && shown.some((one) => one.kind === "points")) right *= 1.05;
  if (!x.log && left === right) [left, right] = left ? [left * 0.9, right * 1.1] : [-0.5, 0.5];
  if (bottom === top) top = bottom + 1;
  return {
    x: scale(left, right, LEFT, width - RIGHT, x.log),
    y: scale(bottom, top, height - BOTTOM, TOP, y.log),
  };
}

function grid(spec, { x, y }, width, height) {
  const group = svg("g", { class: "axes", "aria-hidden": "true" });
  const down = height - BOTTOM;
  for (const value of (y.log ? logTicks : ticks)(y.low, y.high, 5)) {
    const at = y.at(value);
    group.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: at, y2: at, class: "rule" }));
    group.append(svg("text", { x: LEFT - 6, y: at + 4, class: "end" }, tick(value)));
  }
  for (const value of (x.log ? logTicks : ticks)(x.low, x.high, width / 75)) {
    const at = x.at(value);
    group.append(svg("line", { x1: at, x2: at, y1: TOP, y2: down, class: "rule" }));
    group.append(svg("text", { x: at, y: down + 15, class: "middle" }, tick(value)));
  }
  group.append(svg("text", { x: (LEFT + width - RIGHT) / 2, y: height - 6, class: "middle label" }, spec.x.label));
  const label = svg("text", { transform: `translate(12 ${(TOP + down) / 2}) rotate(-90)`, class: "middle label" }, spec.y.label);
  group.append(label);
  return group;
}

function series(one, index, axes, options) {
  const group = svg("g", { class: `series s${one.colour ?? index}${one.faint ? " faint" : ""}` });
  if (one.kind === "points") {
    one.x.forEach((value, i) => {
      if (one.y[i] === null) return;
      const point = svg("circle", {
        cx: axes.x.at(value), cy: axes.y.at(one.y[i]), r: one.r ?? 5, class: `point${one.hollow?.[i] ? " hollow" : ""}`,
      });
      if (one.names) point.append(svg("title", {}, one.names[i]));
      if (options.onPoint && one.keys) chosen(point, one.names[i], () => options.onPoint(one.keys[i]));
      group.append(point);
    });
    return group;
  }
  if (one.low) group.append(svg("path", { d: band(one, axes), class: "band" }));
  if (one.kind === "area") group.append(svg("path", { d: `${path(one, axes)}${closing(one, axes)}`, class: "band" }));
  group.append(svg("path", { d: path(one, axes), class: `line${one.dashed ? " dashed" : ""}` }));
  return group;
}

function chosen(point, name, act) {
  point.setAttribute("tabindex", 0);
  point.setAttribute("role", "button");
  point.setAttribute("aria-label", name);
  point.classList.add("choice");
  point.addEventListener("click", act);
  point.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    act();
  });
}

function path(one, { x, y }) {
  const parts = [];
  let before = null;
  for (let i = 0; i < one.x.length; i++) {
    if (one.y[i] === null) { before = null; continue; }
    const across = x.at(Math.max(one.x[i], x.low)).toFixed(1);
    const up = y.at(one.y[i]).toFixed(1);
    if (before === null) parts.push(one.kind === "step" ? `M${across},${y.at(y.low).toFixed(1)}V${up}` : `M${across},${up}`);
    else parts.push(one.kind === "step" ? `H${across}V${up}` : `L${across},${up}`);
    before = up;
  }
  return parts.join("");
}

function closing(one, { x, y }) {
  const floor = y.at(y.low).toFixed(1);
  return `V${floor}H${x.at(one.x[0]).toFixed(1)}Z`;
}

function band(one, { x, y }) {
  const there = one.x.map((value, i) => `${x.at(value).toFixed(1)},${y.at(one.high[i]).toFixed(1)}`);
  const back = one.x.map((value, i) => `${x.at(value).toFixed(1)},${y.at(one.low[i]).toFixed(1)}`).reverse();
  return `M${there.join("L")}L${back.join("L")}Z`;
}

function limitLine(limit, { x, y }, width, height) {
  const group = svg("g", { class: "limit" });
  if (limit.y !== undefined) {
    const at = y.at(limit.y);
    group.append(svg("line", { x1: LEFT, x2: width - RIGHT, y1: at, y2: at }));
    group.append(svg("text", { x: width - RIGHT - 3, y: at - 4, class: "end" }, limit.label));
    return group;
  }
  const at = limit.far ? width - RIGHT : x.at(limit.x);
  const row = height - BOTTOM - 6 - 13 * (limit.row ?? 0);
  const before = at > width * 0.6;
  if (!limit.far) group.append(svg("line", { x1: at, x2: at, y1: TOP, y2: height - BOTTOM }));
  if (limit.share !== undefined && limit.share !== null && !limit.far) {
    group.append(svg("circle", { cx: at, cy: y.at(limit.share), r: 5, class: "ring" }));
  }
  const text = limit.far ? `${limit.label}, far to the right` : limit.label;
  group.append(svg("text", { x: before ? at - 4 : at + 4, y: row, class: before ? "end" : "" }, text));
  return group;
}

function described(spec, shown) {
  const readings = shown.slice(0, 6).map((one) => {
    const last = one.y.length - 1;
    return `${one.name}: from ${number(one.x[0])}, ${number(one.y[0])} to ${number(one.x[last])}, ${number(one.y[last])}`;
  });
  return `${spec.title}. ${spec.y.label} over ${spec.x.label}. ${readings.join("; ")}. Arrow keys read values.`;
}

function cursor(root, readout, spec, shown, axes, height) {
  const line = svg("line", { y1: TOP, y2: height - BOTTOM, class: "cursor", visibility: "hidden" });
  root.append(line);
  const values = [...new Set(shown.filter((one) => one.kind !== "points").flatMap((one) => one.x))].sort((a, b) => a - b);
  let at = -1;
  const show = (index) => {
    at = Math.min(Math.max(index, 0), values.length - 1);
    if (at < 0) return;
    const place = axes.x.at(Math.max(values[at], axes.x.low));
    line.setAttribute("x1", place);
    line.setAttribute("x2", place);
    line.setAttribute("visibility", "visible");
    const readings = shown.filter((one) => one.kind !== "points").map((one) => `${one.name} ${number(read(one, values[at]))}`);
    readout.textContent = `${spec.x.label}: ${number(values[at])} · ${readings.join(" · ")}`;
  };
  if (!values.length) return;
  root.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (event.target !== root || (!step && event.key !== "Home" && event.key !== "End")) return;
    event.preventDefault();
    show(event.key === "Home" ? 0 : event.key === "End" ? values.length - 1 : at + step);
  });
  root.addEventListener("pointermove", (event) => {
    const box = root.getBoundingClientRect();
    const value = axes.x.back(((event.clientX - box.left) * root.viewBox.baseVal.width) / box.width);
    show(nearest(values, value));
  });
  root.addEventListener("pointerleave", () => {
    line.setAttribute("visibility", "hidden");
    readout.textContent = "";
  });
}

function read(one, value) {
  if (value < one.x[0]) return one.kind === "step" ? 0 : null;
  return one.y[nearestBelow(one.x, value)];
}

function nearestBelow(values, value) {
  let low = 0, high = values.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= value) low = middle;
    else high = middle - 1;
  }
  return low;
}

function nearest(values, value) {
  const below = nearestBelow(values, value);
  return below + 1 < values.length && values[below + 1] - value < value - values[below] ? below + 1 : below;
}
