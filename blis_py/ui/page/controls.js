// Sliders, choices and targets, as the server describes them.

import { element } from "./format.js";

const STATE = ["prompt", "output", "shape"];

export function value(state, control) {
  if (STATE.includes(control.key)) return state[control.key];
  if (control.key.startsWith("pools.")) return state.pools[control.key.slice(6)] ?? control.value;
  return state.settings[control.key] ?? control.value;
}

export function changed(state, control, next) {
  if (STATE.includes(control.key)) return { ...state, [control.key]: next };
  const same = JSON.stringify(next) === JSON.stringify(control.value);
  const within = (map, key) => {
    const { [key]: _, ...others } = map;
    return same ? others : { ...others, [key]: next };
  };
  if (control.key.startsWith("pools.")) return { ...state, pools: within(state.pools, control.key.slice(6)) };
  return { ...state, settings: within(state.settings, control.key) };
}

export class Controls {
  constructor(form, described, move) {
    this.rows = described.map((control) => ({ control, ...made(control, (next) => move(control, next)) }));
    const groups = new Map();
    for (const row of this.rows) {
      if (!groups.has(row.control.group)) groups.set(row.control.group, element("fieldset", {}, element("legend", {}, row.control.group)));
      groups.get(row.control.group).append(row.node);
    }
    form.replaceChildren(...groups.values());
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  show(state) {
    for (const row of this.rows) row.show(value(state, row.control));
  }
}

function made(control, move) {
  const id = `c-${control.key.replaceAll(".", "-")}`;
  const output = element("output", { for: id });
  const kind = { range: slider, choice: select, targets: targets }[control.kind];
  const { input, show } = kind(control, id, output, move);
  input.disabled = Boolean(control.why);
  const label = element("div", { class: "name" }, element("label", { for: id }, control.label), output);
  const why = control.why ? element("span", { class: "why" }, control.why) : null;
  return { node: element("div", { class: "control" }, label, input, why), show };
}

function slider(control, id, output, move) {
  const last = control.values.length - 1;
  const input = element("input", { type: "range", id, min: 0, max: last, step: 1 });
  const label = (at) => `${control.values[at].toLocaleString("en-US")} ${control.unit}`.trim();
  const show = (next) => {
    let at = control.values.indexOf(next);
    if (at < 0) at = control.values.reduce((best, each, index) => (Math.abs(each - next) < Math.abs(control.values[best] - next) ? index : best), 0);
    if (Number(input.value) !== at) input.value = at;
    output.textContent = control.values[at] === next ? label(at) : `${next} ${control.unit}`.trim();
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", () => move(control.values[input.value]));
  return { input, show };
}

function select(control, id, output, move) {
  const input = element("select", { id }, ...control.values.map((word) => element("option", { value: word }, word)));
  input.addEventListener("change", () => move(input.value));
  return { input, show: (next) => (input.value = next) };
}

function targets(control, id, output, move) {
  const input = element("input", { type: "text", id, spellcheck: "false", placeholder: "ttft.p99=500ms tpot.p90=50ms", "aria-describedby": `${id}-hint` });
  input.addEventListener("change", () => move(input.value.split(/[\s,]+/).filter(Boolean)));
  return { input, show: (next) => (input.value = next.join(" ")) };
}
