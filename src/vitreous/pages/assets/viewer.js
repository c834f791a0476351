// One model and one image on the page: the image, what the model says, and the tabs beside it.

import { make, percent } from "./dom.js";
import { attentionRow, slice } from "./payload.js";
import { Stage, render } from "./stage.js";
import { TABS } from "./tabs.js";

let count = 0;
const STEP = 700; // milliseconds a block when playing

export class Viewer {
  // `source.ablate` is null in a report; in the explorer it asks the server
  static async create(payload, state, source) {
    const image = await createImageBitmap(payload.file("image"));
    return new Viewer(payload, state, source, image);
  }

  constructor(payload, state, source, image) {
    Object.assign(this, { payload, state, source, image, header: payload.header });
    const { grid, prefix, depth, heads } = this.header.model;
    [this.rows, this.columns] = grid;
    this.prefix = prefix.length;
    this.tokens = this.prefix + this.rows * this.columns;
    Object.assign(this, { depth, heads });
    this.id = ++count;
    this.off = new Set();
    this.news = "";
    this.tabs = TABS.filter((tab) => tab.has(payload));
    this.build();
    this.watcher = (values) => this.update(values);
    state.watch(this.watcher);
  }

  // --- what is asked -------------------------------------------------------------------------------------------------

  // the token that asks: what is hovered, else what is pinned, else the class token (null: all patches, on average)
  query(values) {
    if (!this.header.whole) return this.header.model.readsMean ? null : 0;
    return this.pointed(values) ?? (this.header.model.readsMean ? null : 0);
  }

  // the token that is hovered or pinned, or null; a viewer with another grid beside this one means the same place
  pointed(values) {
    const token = values.hover ?? values.query;
    if (token === null || token === undefined) return null;
    const other = values.from;
    if (!other || other === this || (other.rows === this.rows && other.columns === this.columns && other.prefix === this.prefix)) return token < this.tokens ? token : null;
    if (token < other.prefix) return Math.min(token, this.prefix - 1) >= 0 ? Math.min(token, this.prefix - 1) : null;
    const place = token - other.prefix;
    const row = Math.floor(((Math.floor(place / other.columns) + 0.5) / other.rows) * this.rows);
    const column = Math.floor((((place % other.columns) + 0.5) / other.columns) * this.columns);
    return this.prefix + row * this.columns + column;
  }

  row(layer, head, query, into) {
    if (query !== null) return attentionRow(this.payload, Math.min(layer, this.depth - 1), head, query, into);
    const row = new Float32Array(this.tokens);
    for (let token = this.prefix; token < this.tokens; token++) {
      const one = attentionRow(this.payload, layer, head, token);
      for (let i = 0; i < row.length; i++) row[i] += one[i] / (this.tokens - this.prefix);
    }
    return row;
  }

  meanRow(name) {
    const row = new Float32Array(this.tokens);
    for (let token = this.prefix; token < this.tokens; token++) slice(this.payload, name, token).forEach((value, i) => { row[i] += value / (this.tokens - this.prefix); });
    return row;
  }

  nameOf(token) {
    if (token === null) return "the patches on average";
    if (token < this.prefix) return `the ${this.header.model.prefix[token]} token`;
    const place = token - this.prefix;
    return `the patch in row ${Math.floor(place / this.columns) + 1}, column ${(place % this.columns) + 1}`;
  }

  // --- the elements --------------------------------------------------------------------------------------------------

  build() {
    const { model, image } = this.header;
    this.stage = new Stage(this.payload, this.image, {
      choose: (hover) => this.state.set({ hover, from: this }),
      pin: (token) => this.state.set({ query: token === this.state.values.query ? null : token, hover: null, from: this }),
      label: `${image.name || "Image"}. Arrow keys choose a patch, Home lets go of it.`,
      describedBy: `said-${this.id}`,
    });
    this.stage.element.addEventListener("pointerleave", () => this.state.set({ hover: null }));
    this.said = make("p", { class: "said", id: `said-${this.id}`, "aria-live": "polite" });
    this.opacity = make("input", { type: "range", min: 0, max: 100, "aria-label": "Opacity of the heat" });
    this.opacity.addEventListener("input", () => this.state.set({ opacity: Number(this.opacity.value) / 100 }));
    const save = make("button", { class: "chip", onclick: () => this.save() }, "Save as PNG");
    this.answers = make("ol", { class: "answers", "aria-label": "What the model says" });
    this.list = make("div", { class: "tabs", role: "tablist", "aria-label": "Views" });
    this.panel = make("div", { class: "panel", role: "tabpanel", id: `panel-${this.id}`, tabindex: "-1" });
    this.buttons = new Map();
    for (const tab of this.tabs) {
      const button = make("button", { role: "tab", id: `tab-${tab.name}-${this.id}`, "aria-controls": `panel-${this.id}`, onclick: () => this.state.set({ tab: tab.name }) }, tab.title);
      button.addEventListener("keydown", (event) => this.step(event));
      this.buttons.set(tab.name, button);
      this.list.append(button);
    }
    const left = make("div", { class: "left" }, this.stage.element, this.said, make("div", { class: "controls under" }, make("label", { class: "slider" }, make("span", {}, "Heat"), this.opacity), save), model.classifier ? [make("h2", { class: "quiet" }, "What it sees"), this.answers] : null);
    const right = make("div", { class: "right" }, this.list, this.panel);
    this.element = make("article", { class: "viewer", "aria-label": `${model.name}: ${image.name}` }, left, right);
    this.fillAnswers(this.header.predictions);
  }

  fillAnswers(predictions, before = null) {
    const explained = new Set((this.header.explained ?? []).map((each) => each.index));
    this.answers.replaceChildren(
      ...predictions.slice(0, 6).map((each) => {
        const was = before?.find((other) => other.index === each.index);
        const change = was ? each.probability - was.probability : 0;
        const inside = [make("span", { class: "name" }, each.label), make("span", { class: "track", "aria-hidden": "true" }, make("span", { class: "bar", style: { width: `${100 * each.probability}%` } })), make("span", { class: "value" }, percent(each.probability), before ? make("small", {}, ` ${change >= 0 ? "+" : "−"}${Math.abs(100 * change).toFixed(1)}`) : null)];
        const can = explained.has(each.index);
        return make("li", {}, can ? make("button", { class: "answer", "data-class": each.index, title: `Where is ${each.label}?`, onclick: () => this.state.set({ tab: "relevance", class: each.index, map: "relevance" }) }, inside) : make("div", { class: "answer" }, inside));
      }),
    );
  }

  step(event) {
    const names = [...this.buttons.keys()];
    const here = names.indexOf(this.tab.name);
    const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: names.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const name = names[(to + names.length) % names.length];
    this.state.set({ tab: name });
    this.buttons.get(name).focus();
  }

  // --- drawing -------------------------------------------------------------------------------------------------------

  update(values) {
    const begun = performance.now();
    values = { ...values, layer: Math.min(values.layer < 0 ? this.depth - 1 : values.layer, this.depth - 1) };
    if (typeof values.head === "number" && values.head >= this.heads) values.head = "mean";
    const tab = this.tabs.find((each) => each.name === values.tab) ?? this.tabs[0];
    if (tab !== this.tab) {
      if (this.timer) this.play(); // stops
      this.tab = tab;
      this.shown = tab.build(this);
      this.panel.replaceChildren(this.shown.element);
      this.panel.setAttribute("aria-labelledby", `tab-${tab.name}-${this.id}`);
      for (const [name, button] of this.buttons) {
        button.setAttribute("aria-selected", String(name === tab.name));
        button.tabIndex = name === tab.name ? 0 : -1;
      }
    }
    this.opacity.value = Math.round(100 * values.opacity);
    this.drawn = tab.stage(this, values);
    this.stage.draw({ opacity: values.opacity, ...this.drawn });
    this.shown.update(values);
    this.say(tab, values);
    this.took = performance.now() - begun; // how long a hover takes to answer: measured by the tests
  }

  say(tab, values) {
    const { values: heat, query } = this.drawn;
    if (!heat) return void (this.said.textContent = "");
    let best = 0;
    for (let i = 1; i < heat.length; i++) if (heat[i] > heat[best]) best = i;
    const most = this.nameOf(this.prefix + best);
    if (tab.stage === TABS[0].stage) {
      const head = typeof values.head === "number" ? `head ${values.head}` : values.head === "max" ? "the strongest head" : "heads on average";
      this.said.textContent = `Block ${values.layer}, ${head}: ${this.nameOf(query)} looks most at ${most} (${percent(heat[best])} of its attention).`;
    } else if (tab.name === "rollout") this.said.textContent = `${percent(heat[best])} of ${this.nameOf(query)} can have come from ${most}.`;
    else if (tab.name === "positions") this.said.textContent = `How alike the position of ${this.nameOf(query)} and every other are.`;
    else this.said.textContent = `Strongest at ${most}.`;
  }

  // --- doing ---------------------------------------------------------------------------------------------------------

  play() {
    if (this.timer) {
      clearInterval(this.timer);
      this.timer = null;
    } else {
      this.timer = setInterval(() => this.state.set({ layer: (Math.max(0, this.state.values.layer) + 1) % this.depth }), STEP);
      this.state.set({ layer: 0 });
    }
    this.playButton.setAttribute("aria-pressed", String(Boolean(this.timer)));
    this.playButton.textContent = this.timer ? "Pause" : "Play";
  }

  async toggle(layer, head) {
    const key = `${layer}.${head}`;
    this.off.has(key) ? this.off.delete(key) : this.off.add(key);
    await this.ask();
  }

  async clear() {
    this.off.clear();
    await this.ask();
  }

  async ask() {
    const mine = (this.asked = Symbol("asked"));
    if (!this.off.size) {
      this.news = "";
      this.fillAnswers(this.header.predictions);
    } else {
      this.news = "Asking the model …";
      this.state.set({ tick: performance.now() });
      try {
        const predictions = await this.source.ablate([...this.off]);
        if (this.asked !== mine) return;
        const [first, now] = [this.header.predictions[0], predictions[0]];
        this.news = now.index === first.index ? `Without ${this.off.size} head${this.off.size > 1 ? "s" : ""} it still says ${now.label}, ${percent(now.probability)} instead of ${percent(first.probability)}.` : `Without ${this.off.size} head${this.off.size > 1 ? "s" : ""} it says ${now.label} instead of ${first.label}.`;
        this.fillAnswers(predictions, this.header.predictions);
      } catch (error) {
        if (this.asked !== mine) return;
        this.news = error.message;
      }
    }
    if (this.shown) this.shown.last = null;
    this.state.set({ tick: performance.now() });
  }

  async save() {
    const width = 1024, height = Math.round((width * this.image.height) / this.image.width), band = 84;
    const canvas = new OffscreenCanvas(width, height);
    render(canvas, this.image, this.stage.small, this.stage, this.stage.shown);
    const whole = new OffscreenCanvas(width, height + band);
    const context = whole.getContext("2d");
    context.fillStyle = "#fff";
    context.fillRect(0, 0, width, height + band);
    context.drawImage(canvas, 0, 0);
    context.fillStyle = "#1b1f24";
    context.font = "600 22px system-ui, sans-serif";
    context.fillText(`${this.tab.title} · ${this.header.model.name.split("/").at(-1)}`, 20, height + 34, width - 40);
    context.font = "18px system-ui, sans-serif";
    context.fillText(this.said.textContent, 20, height + 64, width - 40);
    const blob = await whole.convertToBlob({ type: "image/png" });
    const link = make("a", { href: URL.createObjectURL(blob), download: `${this.tab.name}.png` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  destroy() {
    clearInterval(this.timer);
    this.state.listeners.delete(this.watcher);
    this.element.remove();
  }
}
