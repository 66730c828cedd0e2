// The state on the screen: undo, redo, and the link that restores it.

const PAUSE_MS = 1000;
const EMPTY = { settings: {}, prompt: 1, output: 1, shape: "as given", pools: {} };

export class History {
  constructor(changed) {
    this.changed = changed;
    this.past = [];
    this.future = [];
    this.state = restored() ?? structuredClone(EMPTY);
    this.moving = null;
    this.latest = 0;
    addEventListener("hashchange", () => {
      const found = restored();
      if (found && JSON.stringify(found) !== JSON.stringify(this.state)) this.set(found);
    });
  }

  // One step of undo for as long as the same control is moved without a pause.
  change(next, control = null) {
    const now = performance.now();
    if (control === null || control !== this.moving || now - this.latest > PAUSE_MS) {
      this.past.push(this.state);
      if (this.past.length > 200) this.past.shift();
    }
    this.moving = control;
    this.latest = now;
    this.future = [];
    this.put(next);
  }

  set(next) {
    this.change(next);
  }

  undo() {
    if (!this.past.length) return;
    this.future.push(this.state);
    this.moving = null;
    this.put(this.past.pop());
  }

  redo() {
    if (!this.future.length) return;
    this.past.push(this.state);
    this.moving = null;
    this.put(this.future.pop());
  }

  put(next) {
    this.state = next;
    history.replaceState(null, "", JSON.stringify(next) === JSON.stringify(EMPTY) ? location.pathname + location.search : `#${packed(next)}`);
    this.changed(next);
  }
}

const packed = (state) => btoa(unescape(encodeURIComponent(JSON.stringify(state)))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

function restored() {
  if (location.hash.length < 2) return null;
  try {
    const text = decodeURIComponent(escape(atob(location.hash.slice(1).replaceAll("-", "+").replaceAll("_", "/"))));
    const found = JSON.parse(text);
    const state = { ...structuredClone(EMPTY), ...found };
    return [found, state.settings, state.pools].every((each) => each && typeof each === "object") ? state : null;
  } catch {
    return null;
  }
}
