// Stacked bars of a ledger: one bar for each request or group of requests, its lines in one colour each.

import { element, number } from "./format.js";

// Ten colours, then the same with stripes.
const look = (index) => `f${index % 10}${index >= 10 ? " striped" : ""}`;

export function bars(host, spec) {
  const most = Math.max(...spec.bars.map((bar) => bar.values.reduce((a, b) => a + b, 0)), 1e-9);
  const rows = spec.bars.map((bar) => {
    const total = bar.values.reduce((a, b) => a + b, 0);
    const parts = bar.values.map((value, index) =>
      value > 0 ? element("span", { class: `bar ${look(index)}`, style: `width:${(100 * value) / most}%`, title: `${spec.lines[index]}: ${number(value)} ${spec.unit}` }) : null,
    );
    return element("div", { class: "bar-row" }, element("span", { class: "bar-name" }, `${bar.name}: ${bar.text ?? `${number(total)} ${spec.unit}`}`), element("span", { class: "bar-track" }, ...parts));
  });
  const keys = spec.lines.map((line, index) => element("li", {}, element("span", { class: `swatch ${look(index)}`, "aria-hidden": "true" }), ` ${line}`));
  host.classList.add("chart");
  host.replaceChildren(element("figcaption", {}, spec.title), ...rows, element("ul", { class: "legend" }, ...keys));
}
