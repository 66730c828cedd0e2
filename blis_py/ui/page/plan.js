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
    this.best = null;
    this.say("Searching…");
    try {
      for await (const message of messages("/api/plan", { state, vary: at("vary").value }, stopped.signal)) {
        if (message.progress) this.say(message.progress);
        if (message.candidate) this.candidate(this.named(message.candidate, state), state);
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
    const pools = Object.entries(one.pools).map(([pool, instances]) => `${instances} ${pool}`);
    const what = pools.length ? pools.join(" + ") : `${count} × ${gpu.toUpperCase()} TP${tp}`;
    return { ...one, name: `${what}, ${one.holds ? "holds" : "misses"}`, state: this.with(one, state) };
  }

  candidate(one, state) {
    this.report(one);
    const cost = (each) => each.dollars ?? each.gpus;
    if (!one.holds || (this.best && cost(this.best) <= cost(one))) return;
    this.best = one;
    const dollars = one.dollars === null ? "" : `, $${one.dollars.toFixed(2)} an hour`;
    at("found").replaceChildren(element("p", {}, `The cheapest so far: ${one.name}${dollars}.`), this.use(one, state));
  }

  with(one, state) {
    return { ...state, settings: { ...state.settings, ...one.settings }, pools: { ...state.pools, ...one.pools } };
  }

  use(one, state) {
    const next = this.with(one, state);
    return element("button", { type: "button", onclick: () => this.choose(next) }, "Show this configuration");
  }

  show(found, state) {
    this.say(found.holds ? "Found." : "Nothing holds; the nearest to it is below.");
    at("found").replaceChildren(element("ul", {}, ...found.answer.map((line) => element("li", {}, line.trim()))), this.use(found, state));
  }

  say(text, tone = "") {
    at("progress").className = `quiet ${tone}`;
    at("progress").textContent = text;
  }

  // Of pools, a plan varies their instances and nothing else.
  vary(hasPools) {
    at("vary").disabled = hasPools;
    if (hasPools) at("vary").value = "instances";
  }

  busy(yes) {
    at("plan").disabled = yes;
    at("stop").disabled = !yes;
  }
}
