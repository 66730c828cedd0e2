// "Find the cheapest that holds": a plan behind the page, with progress, stoppable.

import { element } from "./format.js";
import { messages } from "./jobs.js";

const at = (id) => document.getElementById(id);

export class Planner {
  constructor(report, choose) {
    Object.assign(this, { report, choose, stopped: null });
    at("plan").addEventListener("click", () => this.run());
    at("stop").addEventListener("click", () => this.stopped?.abort());
  }

  async run() {
    this.stopped?.abort();
    const stopped = (this.stopped = new AbortController());
    const state = this.state();
    this.busy(true);
    at("found").replaceChildren();
    this.say("Searching…");
    try {
      for await (const message of messages("/api/plan", { state, vary: at("vary").value }, stopped.signal)) {
        if (message.progress) this.say(message.progress);
        if (message.candidate) this.report(this.named(message.candidate, state));
        if (message.refused || message.failed) this.say(message.refused ?? message.failed, "failed");
        if (message.done) this.show(message.done, state);
      }
    } catch {
      this.say(stopped.signal.aborted ? "Stopped; what was found so far stays." : "The server does not answer.");
    }
    if (this.stopped === stopped) this.busy(false);
  }

  named(one, state) {
    const { num_instances: count, tp, gpu } = one.settings;
    return { ...one, name: `${count} × ${gpu.toUpperCase()} TP${tp}, ${one.holds ? "holds" : "misses"}`, state: { ...state, settings: { ...state.settings, ...one.settings } } };
  }

  show(found, state) {
    this.say(found.holds ? "Found." : "Nothing holds; the nearest to it is below.");
    const use = element("button", { type: "button", onclick: () => this.choose({ ...state, settings: { ...state.settings, ...found.settings } }) }, "Show this configuration");
    at("found").replaceChildren(element("ul", {}, ...found.answer.map((line) => element("li", {}, line.trim()))), use);
  }

  say(text, tone = "") {
    at("progress").className = `quiet ${tone}`;
    at("progress").textContent = text;
  }

  busy(yes) {
    at("plan").disabled = yes;
    at("stop").disabled = !yes;
  }
}
