// What the page shows: everything on it is drawn from these values, and the address bar holds them, so that any view can
// be linked to.

const WORDS = { view: String, block: Number, head: (text) => (isNaN(text) ? text : Number(text)), query: Number, class: Number, image: Number, second: Number, opacity: Number, epoch: Number, step: Number, count: Number, way: String, outliers: String, against: String, sample: String, model: String, beside: String, sentence: String, pixel: String };

export const DEFAULTS = { view: null, block: 0, head: "mean", query: null, class: null, image: 0, second: null, opacity: 0.85, step: 0, count: null, way: "hide", outliers: null, against: null, hover: null };

export class State {
  // a change of one of `pushed` is a step that the browser's Back undoes
  constructor(defaults, pushed = []) {
    this.pushed = pushed;
    this.defaults = { ...defaults };
    this.values = { ...defaults };
    this.listeners = new Set();
    this.waiting = false;
    // popstate comes with the change of the address itself; hashchange comes later, and a write in between would put the
    // old values over the address that Back has reached
    addEventListener("popstate", () => {
      clearTimeout(this.timer);
      if (location.hash && !location.hash.includes("=")) return; // an anchor of the page, not a view of it
      this.set({ ...this.defaults, ...this.read() }, false);
      this.reached = this.step;
    });
  }

  // where a page begins: these values, unless the address says otherwise
  start(values) {
    this.defaults = { ...this.defaults, ...values };
    this.set({ ...values, ...this.read() }, false);
    this.reached = this.step;
  }

  get step() {
    return JSON.stringify(this.pushed.map((name) => this.values[name]));
  }

  read() {
    const found = {};
    for (const [name, text] of new URLSearchParams(location.hash.slice(1))) {
      if (!(name in WORDS)) continue;
      const value = WORDS[name](text);
      if (typeof value === "number" && !(value >= 0)) continue;
      if (typeof value === "number" && name !== "opacity" && !Number.isInteger(value)) continue;
      if (name === "way" && !["hide", "show"].includes(value)) continue;
      if (name === "head" && typeof value === "string" && !["mean", "max"].includes(value)) continue;
      found[name] = value;
    }
    return found;
  }

  // change some values; all watchers are called at most once a frame
  set(changes, write = true) {
    let changed = false;
    for (const [name, value] of Object.entries(changes)) {
      if (this.values[name] !== value) changed = true;
      this.values[name] = value;
    }
    if (!changed) return;
    if (write) this.write();
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      for (const listener of this.listeners) listener(this.values);
    });
  }

  // a step at once, anything else when the reader has stopped moving
  write() {
    if (location.protocol === "about:") return; // inside a notebook's output a page has no address of its own
    clearTimeout(this.timer);
    if (this.reached !== undefined && this.reached !== this.step) this.record("pushState");
    else this.timer = setTimeout(() => this.record("replaceState"), 150);
  }

  record(method) {
    this.reached = this.step;
    const kept = Object.entries(this.values).filter(([name, value]) => name in WORDS && value !== null && value !== this.defaults[name]);
    const text = new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
    history[method](null, "", text ? `#${text}` : location.pathname + location.search);
  }

  watch(listener) {
    this.listeners.add(listener);
    listener(this.values);
  }
}

// The same state with a class of its own: for a viewer beside one whose model has other outputs. `choose(index)` is called when
// another class is chosen in it.
export class OwnClass {
  constructor(state, chosen, choose) {
    Object.assign(this, { state, chosen, choose, watchers: new Map() });
    this.listeners = { delete: (listener) => state.listeners.delete(this.watchers.get(listener)) };
  }

  get values() {
    return { ...this.state.values, class: this.chosen };
  }

  set({ class: chosen, ...others }, write = true) {
    if (chosen !== undefined && chosen !== this.chosen) {
      this.chosen = chosen;
      this.choose(chosen);
      others.tick = performance.now();
    }
    this.state.set(others, write);
  }

  watch(listener) {
    this.watchers.set(listener, () => listener(this.values));
    this.state.watch(this.watchers.get(listener));
  }
}
